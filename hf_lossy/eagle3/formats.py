"""Reading EAGLE-3 heads of five producers, and writing this package's format and the speculators one.

The order of detection is that of :func:`detect`; every choice can be overridden by an argument and read from
``head.config`` afterwards.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import LossyError, unknown
from .config import Eagle3Config
from .head import Eagle3Head

PRODUCERS = ("hf_lossy", "speculators", "modelopt", "angelslim", "specforge", "safeailab")
TAP_CONVENTIONS = ("auto", "input", "output")
_COUNTS_OUTPUTS = ("modelopt", "specforge", "angelslim")
"""Producers whose ids count the outputs of layers: id i is transformers' ``hidden_states[i + 1]``."""
_LAYER = "layers.0."
_TEXT_KEYS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "rms_norm_eps")


def load_head(
    path: str | Path,
    target: PreTrainedModel | None = None,
    *,
    producer: str | None = None,
    tap_layers: list[int] | None = None,
    tap_convention: str = "auto",
    rope_theta: float | None = None,
    norm_before_residual: bool | None = None,
    feedback: str | None = None,
    double_norm: bool | None = None,
    dtype: torch.dtype | None = None,
) -> Eagle3Head:
    """Read an EAGLE-3 head from a folder or the Hub.

    Args:
        path: a folder with ``config.json`` and ``model.safetensors`` or ``pytorch_model.bin`` (read with
            ``weights_only=True``), or a Hub id.
        target: the model it drafts for; needed for its shape and, where the head has none, its embedding. A head in this
            package's format can be read without one.
        producer: override the detection.
        tap_layers: ids of the tapped layers, instead of the checkpoint's.
        tap_convention: what ids mean: ``"input"`` of layer i (SafeAILab, speculators), ``"output"`` of layer i
            (SpecForge, ModelOpt, AngelSlim), ``"auto"`` by producer; given ``tap_layers`` count inputs under ``"auto"``.
        rope_theta: override the base of the rotation (AngelSlim heads are trained with 10000 whatever their config says).
        norm_before_residual, feedback, double_norm: override what can't be seen in a file.
        dtype: of the head; the target's unless given, float32 without a target.

    Raises:
        LossyError: files that are missing or truncated, tensors that are missing, unexpected or of the wrong shape,
            vocabulary maps that don't fit, a target of another size.
    """
    folder = _folder(path)
    config, tensors = _read(folder)
    if producer is not None and producer not in PRODUCERS:
        raise unknown("producer", producer, PRODUCERS)
    if tap_convention not in TAP_CONVENTIONS:
        raise unknown("tap_convention", tap_convention, TAP_CONVENTIONS)
    if feedback not in (None, "pre_norm", "post_norm"):
        raise unknown("feedback", feedback, ("pre_norm", "post_norm"))
    tensors = normalised(tensors)
    who = producer or detect(config, tensors, folder)
    if who == "hf_lossy":
        resolved = Eagle3Config.from_dict(config)
    elif target is None:
        raise LossyError(
            f"{path} ({who}): pass the target model, whose size and layers the head's config does not tell"
        )
    else:
        resolved = resolve(config, tensors, who, target, tap_layers, tap_convention)
    if tap_layers is not None and who == "hf_lossy":
        resolved.taps = [i + (tap_convention == "output") for i in tap_layers]
    if rope_theta is not None:
        resolved.rope_parameters = {**resolved.rope_parameters, "rope_theta": float(rope_theta)}
    for name, value in (
        ("norm_before_residual", norm_before_residual),
        ("feedback", feedback),
        ("double_norm", double_norm),
    ):
        if value is not None:
            setattr(resolved, name, value)
    tensors["d2t"] = draft_map(tensors, resolved.draft_vocab_size, resolved.vocab_size, str(path))
    tensors.pop("t2d", None)
    if not resolved.own_embedding:
        tensors.pop("embed_tokens.weight", None)
    head = Eagle3Head(resolved)
    _assign(head, tensors, str(path))
    if target is not None:
        check_target(head, target)
        head.borrow_embedding(target)
    dtype = dtype or (torch.float32 if target is None else target.dtype)
    for (
        parameter
    ) in head.parameters():  # not the buffers: the frequencies of the rotation stay in float32, as in any model
        parameter.data = parameter.data.to(dtype)
    return head.eval()


def is_head_config(config: dict[str, Any]) -> bool:
    """Whether a ``config.json`` is that of an EAGLE-3 head, as far as that shows without the weights."""
    marks = {"speculators_model_type", "eagle_config", "draft_vocab_size", "aux_hidden_states_layer_ids"}
    architecture = (config.get("architectures") or [""])[0]
    return (
        config.get("model_type") == Eagle3Config.model_type
        or not marks.isdisjoint(config)
        or architecture in ("Eagle3LlamaForCausalLM", "LlamaForCausalLMEagle3")
    )


def detect(config: dict[str, Any], tensors: dict[str, Tensor], folder: Path | str = "") -> str:
    """Which producer wrote a checkpoint, from its config and its (normalised) tensors."""
    kind = config.get("speculators_model_type")
    if config.get("model_type") == Eagle3Config.model_type:
        return "hf_lossy"
    if kind is not None:
        if kind != "eagle3":
            raise LossyError(f"{folder} is a speculators checkpoint of type {kind!r}, expected 'eagle3'")
        return "speculators"
    if "fc.weight" not in tensors or f"{_LAYER}hidden_norm.weight" not in tensors:
        fc = tensors.get("fc.weight")
        what = "is an EAGLE-1/2 head" if fc is not None and fc.shape[1] == 2 * fc.shape[0] else "is no EAGLE-3 head"
        raise LossyError(f"{folder} {what} (fc.weight and hidden_norm.weight mark EAGLE-3): give an EAGLE-3 checkpoint")
    eagle = config.get("eagle_config") or {}
    architecture = (config.get("architectures") or [""])[0]
    reduced = "d2t" in tensors and tensors["d2t"].numel() < config.get("vocab_size", 0)
    if {"use_input_layernorm_in_first_layer", "next_layer_regular"} & eagle.keys() or (
        reduced and "t2d" not in tensors
    ):
        return "modelopt"
    if architecture == "Eagle3LlamaForCausalLM" or "aux_hidden_states_layer_ids" in config:
        return "angelslim"
    if architecture == "LlamaForCausalLMEagle3":
        return "specforge"
    if architecture == "LlamaForCausalLM" and "draft_vocab_size" in config:
        return "safeailab"
    raise LossyError(
        f"{folder}: can't tell who wrote this head (architectures {config.get('architectures')!r}): pass producer=, one of "
        f"{', '.join(map(repr, PRODUCERS))}"
    )


def resolve(
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    producer: str,
    target: PreTrainedModel,
    tap_layers: list[int] | None,
    tap_convention: str,
) -> Eagle3Config:
    """The resolved configuration of a foreign checkpoint: shapes from the tensors, conventions from the producer."""
    nested = config.get("transformer_layer_config") or {}
    eagle = config.get("eagle_config") or {}
    flat = {**config, **nested}
    theirs = target.config.get_text_config(decoder=True)
    missing = [k for k in ("fc.weight", "lm_head.weight", f"{_LAYER}self_attn.q_proj.weight") if k not in tensors]
    if missing:
        raise LossyError(f"the checkpoint lacks {missing[0]}: it is truncated, or not an EAGLE-3 head")
    hidden, joined = tensors["fc.weight"].shape
    if joined % theirs.hidden_size:
        raise LossyError(
            f"the head's fc.weight takes {joined} numbers, no multiple of the target's width {theirs.hidden_size}: it "
            "belongs to another target"
        )
    count = joined // theirs.hidden_size
    heads = flat.get("num_attention_heads", theirs.num_attention_heads)
    q_rows, k_rows = (tensors[f"{_LAYER}self_attn.{x}_proj.weight"].shape[0] for x in "qk")
    if q_rows % heads:
        raise LossyError(
            f"q_proj has {q_rows} rows, no multiple of num_attention_heads={heads}: the config does not fit"
        )
    dim = q_rows // heads  # not from the config: some say 80 where the tensor says 128
    rope = dict(flat.get("rope_parameters") or flat.get("rope_scaling") or {})
    rope.setdefault("rope_type", rope.pop("type", "default"))
    theta = rope.get("rope_theta", flat.get("rope_theta", 10000.0))
    rope["rope_theta"] = 10000.0 if producer == "angelslim" else float(theta)
    ids = tap_layers or config.get("eagle_aux_hidden_state_layer_ids") or eagle.get("eagle_aux_hidden_state_layer_ids")
    ids = ids or config.get("aux_hidden_states_layer_ids")
    counts_outputs = tap_convention == "output"
    if tap_convention == "auto" and tap_layers is None:
        counts_outputs = producer in _COUNTS_OUTPUTS
    layers = theirs.num_hidden_layers
    taps = [i + counts_outputs for i in ids] if ids else [2, layers // 2, layers - 3]
    if len(taps) != count or len(set(taps)) != count or not all(0 <= t <= layers for t in taps):
        raise LossyError(
            f"the head's fc.weight joins {count} hidden states but the tapped layers are {taps} of {layers}: "
            "pass tap_layers="
        )
    return Eagle3Config(
        vocab_size=theirs.vocab_size,
        draft_vocab_size=tensors["lm_head.weight"].shape[0],
        hidden_size=hidden,
        target_hidden_size=theirs.hidden_size,
        intermediate_size=tensors[f"{_LAYER}mlp.gate_proj.weight"].shape[0],
        num_attention_heads=heads,
        num_key_value_heads=k_rows // dim,
        head_dim=dim,
        hidden_act=flat.get("hidden_act", "silu"),
        rms_norm_eps=flat.get("rms_norm_eps", 1e-6),
        max_position_embeddings=flat.get("max_position_embeddings", 2048),
        rope_parameters=rope,
        taps=taps,
        fc_norm=any(k.startswith("fc_norm.") for k in tensors),
        norm_before_fc="input_norm.weight" in tensors,
        norm_before_residual=bool(config.get("norm_before_residual", False)) if producer == "speculators" else False,
        feedback="post_norm" if producer == "speculators" and config.get("norm_output") else "pre_norm",
        qk_norm=f"{_LAYER}self_attn.q_norm.weight" in tensors,
        fc_bias="fc.bias" in tensors,
        attention_bias=f"{_LAYER}self_attn.q_proj.bias" in tensors,
        mlp_bias=f"{_LAYER}mlp.gate_proj.bias" in tensors,
        own_embedding="embed_tokens.weight" in tensors and tensors["embed_tokens.weight"].shape[1] == hidden,
        producer=producer,
    )


def normalised(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under one set of names: ``midlayer.`` and a ``model.`` prefix are other spellings."""
    names = {}
    for name in tensors:
        short = name.removeprefix("model.")
        names[name] = short.replace("midlayer.", _LAYER, 1) if short.startswith("midlayer.") else short
    return {names[name]: tensor for name, tensor in tensors.items()}


def draft_map(tensors: dict[str, Tensor], draft_vocab: int, vocab: int, where: str) -> Tensor:
    """The checked offsets d2t, int64 [Dv]; zeros for a head over the whole vocabulary."""
    offsets = tensors.get("d2t")
    if draft_vocab == vocab and (offsets is None or not offsets.any()):
        return torch.zeros(draft_vocab, dtype=torch.long)
    if offsets is None:
        raise LossyError(
            f"{where}: the head drafts {draft_vocab} of {vocab} tokens but has no d2t, which says which ones"
        )
    if offsets.shape != (draft_vocab,):
        raise LossyError(f"{where}: d2t has shape {tuple(offsets.shape)}, expected ({draft_vocab},)")
    ids = torch.arange(draft_vocab) + offsets.long()
    if int(ids.min()) < 0 or int(ids.max()) >= vocab or ids.unique().numel() != draft_vocab:
        raise LossyError(
            f"{where}: d2t does not map the draft ids to {draft_vocab} different target ids below {vocab} (it holds "
            "offsets: target id = draft id + d2t[draft id])"
        )
    mask = tensors.get("t2d")
    if mask is not None and not torch.equal(mask.bool().nonzero().squeeze(1), ids.sort().values):
        raise LossyError(
            f"{where}: d2t and t2d name different target tokens; the checkpoint's vocabulary map is damaged"
        )
    return offsets.long()


def check_target(head: Eagle3Head, target: PreTrainedModel) -> None:
    """Raise unless a head's sizes are those of a target."""
    theirs = target.config.get_text_config(decoder=True)
    for name, ours, expected in (
        ("hidden size of the target", head.config.target_hidden_size, theirs.hidden_size),
        ("vocabulary", head.config.vocab_size, theirs.vocab_size),
    ):
        if ours != expected:
            raise LossyError(f"the head was made for a target with {name} {ours}, this one has {expected}")
    if max(head.config.taps) > theirs.num_hidden_layers:
        raise LossyError(
            f"the head taps layer {max(head.config.taps)} of a target with {theirs.num_hidden_layers} layers"
        )
    if not head.config.own_embedding and head.config.hidden_size != theirs.hidden_size:
        raise LossyError(
            f"the head is {head.config.hidden_size} wide and has no embedding of its own, and the target's is "
            f"{theirs.hidden_size} wide: the checkpoint lacks embed_tokens.weight"
        )


def save_speculators(head: Eagle3Head, folder: str | Path, target_name: str) -> None:
    """Write a head in the speculators format, which vLLM reads.

    Args:
        head: any head but one with ``double_norm``, which the format can't say.
        folder: made if it is not there.
        target_name: what goes into ``speculators_config.verifier.name_or_path``.
    """
    c = head.config
    if c.double_norm:
        raise LossyError("the speculators format can't express double_norm=True")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    layer = {name: getattr(c, name) for name in (*_TEXT_KEYS, "head_dim", "hidden_act", "max_position_embeddings")}
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 4}],
            "verifier": {"name_or_path": target_name, "architectures": []},
        },
        "transformer_layer_config": {
            "model_type": "qwen3" if c.qk_norm else "llama",
            "vocab_size": c.vocab_size,
            "num_hidden_layers": 1,
            "rope_parameters": c.rope_parameters,
            **layer,
        },
        "draft_vocab_size": c.draft_vocab_size,
        "norm_before_residual": c.norm_before_residual,
        "norm_before_fc": c.norm_before_fc,
        "fc_norm": c.fc_norm,
        "norm_output": c.feedback == "post_norm",
        "target_hidden_size": c.target_hidden_size,
        "eagle_aux_hidden_state_layer_ids": c.taps,
    }
    tensors = {k: v.contiguous() for k, v in head.state_dict().items()}
    mask = torch.zeros(c.vocab_size, dtype=torch.bool)
    mask[head.draft_to_target.cpu()] = True
    tensors["t2d"] = mask
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _folder(path: str | Path) -> Path:
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    if str(path).startswith((".", "/", "~")):
        raise LossyError(f"{path} is no folder: give a folder with config.json and the head's weights, or a Hub id")
    from huggingface_hub import snapshot_download

    try:
        patterns = ["config.json", "*.safetensors", "*.safetensors.index.json", "pytorch_model.bin"]
        return Path(snapshot_download(str(path), allow_patterns=patterns))
    except Exception as error:  # offline, no such repository, no access: the cause is chained
        raise LossyError(f"{path} is no folder and can't be fetched from the Hub ({error})") from error


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not (folder / "config.json").is_file():
        raise LossyError(f"{folder} has no config.json")
    try:
        config = json.loads((folder / "config.json").read_text())
    except json.JSONDecodeError as error:
        raise LossyError(f"{folder / 'config.json'} is damaged: {error}") from error
    index = folder / "model.safetensors.index.json"
    names = (
        sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.is_file() else ["model.safetensors"]
    )
    tensors: dict[str, Tensor] = {}
    try:
        if all((folder / name).is_file() for name in names):
            for name in names:
                tensors |= load_file(folder / name)
            return config, tensors
        if (folder / "pytorch_model.bin").is_file():
            return config, torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise LossyError(f"the weights in {folder} are truncated or damaged ({error}): fetch them again") from error
    raise LossyError(f"{folder} has neither {' and '.join(names)} nor pytorch_model.bin")


def _assign(head: Eagle3Head, tensors: dict[str, Tensor], where: str) -> None:
    expected = head.state_dict()
    missing, unexpected = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    shapes = [k for k in expected.keys() & tensors.keys() if expected[k].shape != tensors[k].shape]
    if missing or unexpected or shapes:
        parts = [f"missing {', '.join(missing)}"] if missing else []
        parts += [f"unexpected {', '.join(unexpected)}"] if unexpected else []
        parts += [f"{k} is {tuple(tensors[k].shape)}, expected {tuple(expected[k].shape)}" for k in sorted(shapes)]
        raise LossyError(f"{where}: the tensors don't fit the head that its config describes: {'; '.join(parts)}")
    head.load_state_dict(tensors, assign=False)
