"""The options of verification: what a user may give, where it may be stored, what it defaults to."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_type_hints

import torch
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from transformers.generation.streamers import BaseStreamer

from ..compat import keep_unknown_fields, stored
from ..couplings import DescendCoupling, GreedyCoupling, coupling, couplings
from ..eagle3.config import Eagle3Config
from ..errors import LossyError, unknown
from ..laws import Law, make
from .checks import Check, among, instance, number, whole
from .statistics import VerificationStats

DEFAULT_DRAFT_LENGTH = 7
DEFAULT_HEAD_CHAIN = 4
TREE = {"tree_size": 60, "tree_depth": 5, "tree_top_k": 10}
"""The options of a tree with their defaults on an accelerator, EAGLE-3's own for 8B models."""
CPU_TREE = {"tree_size": 8, "tree_depth": 2, "tree_top_k": 4}
"""On a CPU, where a forward over more tokens costs more: what paid there in float32 and in bfloat16
(docs/results/bench/smollm2-eagle3.json)."""
UNSUPPORTED = {
    "assistant_ensemble_weight": "it is a law of its own: use verification='cos', draft_weight = 1 - weight",
    "assistant_early_exit": "early exit has no draft distribution here; pass a draft as assistant_model",
    "use_mtp": "multi-token-prediction drafts return unprocessed logits (huggingface/transformers#47932)",
    "speculation_type": "this kind of draft returns unprocessed logits (huggingface/transformers#47932)",
    "guidance_scale": "classifier-free guidance keeps state between calls and can't be rolled back",
    "watermarking_config": "watermarking processors keep state between calls and can't be rolled back",
    "penalty_alpha": "contrastive search is another decoding method",
    "dola_layers": "DoLa is another decoding method",
    "constraints": "constrained beam search is another decoding method",
    "force_words_ids": "constrained beam search is another decoding method",
}
"""Generation settings that would silently do nothing, with the reason."""
STATEFUL = (SynthIDTextWatermarkLogitsProcessor, UnbatchedClassifierFreeGuidanceLogitsProcessor)
"""Logits processors that remember what they were called with."""


Where = Literal["ours", "both", "call", "theirs"]
"""Who else knows an option: nobody (``ours``, which a generation config can carry), transformers' ``generate`` too
(``both``), nobody and it is for one call (``call``), or transformers' ``generate``, which does not hand it on
(``theirs``)."""


def _coupling(name: str, value: Any) -> Any:
    unchosen = {
        DescendCoupling.name: "where candidates are a function of the prefix",
        GreedyCoupling.name: "where nothing is sampled",
    }
    chosen = sorted(one for one in couplings() if one not in unchosen)
    if value in unchosen:
        raise LossyError(
            f"{name}={value!r} is what runs {unchosen[value]}, and can't be chosen: leave it out, or for sampled candidates "
            f"give {', '.join(map(repr, chosen))}"
        )
    return among(*chosen)(name, value)


def _law_parameters(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise LossyError(f"{name} must be a dict of the law's parameters, got {value!r}")
    return value


def _model(name: str, value: Any) -> Any:
    # a compiled or PEFT-wrapped model is no PreTrainedModel, but does what one does
    if not hasattr(value, "prepare_inputs_for_generation") and not is_head(value):
        raise LossyError(
            f"{name} must be a loaded model, got {type(value).__name__}: load it with AutoModelForCausalLM.from_pretrained "
            "first"
        )
    return value


def _are_generators(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, torch.Generator) for one in value)


@dataclass
class Options:
    """Everything ``generate`` takes besides transformers' own arguments. None: not given.

    Attributes:
        verification: name of a law, a dict ``{"method": ..., **parameters}``, or a :class:`hf_lossy.laws.Law`.
        verification_config: parameters for a name.
        coupling: ``"block"`` (default), ``"token"`` or ``"reference"``; deterministic candidates always use the tree
            coupling.
        bonus: the token after a block that was accepted whole: ``"induced"`` (default) follows the law, by one more step
            of the draft; ``"target"`` is drawn from p, as transformers does.
        draft_probs: ``"head"`` (default): q is the distribution the candidates came from; ``"point_mass"``: each
            candidate counts as q = 1.
        draft_mode: how an EAGLE-3 head drafts: ``"tree"`` (default), ``"chain"`` (its likeliest tokens) or ``"sampled"`` (a
            chain drawn from its softmax, which the token and block couplings verify).
        tree_size: nodes of an EAGLE-3 tree, the root included (EAGLE's total_token); unless given 60, and 8 on a CPU.
        tree_depth: expansions after a tree's first level, so that its longest path drafts one token more; 5, and 2 on a
            CPU.
        tree_top_k: candidates expanded at each level, and children of each; 10, and 4 on a CPU.
        draft_temperature: temperature of the draft (0: greedy, q is a point mass); the target's unless given.
        num_assistant_tokens: γ, drafted tokens in a round; 7 unless given, 4 for a chain of an EAGLE-3 head.
        num_assistant_tokens_schedule: ``"constant"`` (default), ``"heuristic"``, or ``"expected"``: in each round the γ with
            the most expected tokens a second, from measured forward times and how often each place was accepted so
            far (:class:`hf_lossy.drafting.schedule.Expected`), a lookup's also from how many tokens matched
            (:class:`hf_lossy.drafting.schedule.ExpectedLookup`; what ``prompt_lookup_num_tokens`` says does not matter
            then), or a tree's depth and size (:class:`hf_lossy.drafting.schedule.ExpectedTree`). The first such call for a
            target and a draft takes a few seconds to measure them, which ``max_time`` does not count.
        assistant_confidence_threshold: stop drafting after a token with q below this; 0 (default) never stops.
        accounting: also compute TV, KL, overshoot, acceptance and waste of every emitted token.
        assistant_model: the draft; or absent with ``prompt_lookup_num_tokens``.
        prompt_lookup_num_tokens: γ of a draft that looks its candidates up in the text itself, unless
            ``num_assistant_tokens`` is given too (:class:`hf_lossy.drafting.PromptLookupDraft`).
        verification_stats: a collector that the call's statistics are added to.
        generator: a ``torch.Generator``; the global one is left alone then. For a batch also a list, one a row: no row's
            coins depend on its neighbours then, at a fixed draft length (that of a lookup, or of another schedule, is one
            for all rows).
        streamer, tokenizer, assistant_tokenizer, stop_strings: as in transformers' ``generate``.
    """

    verification: Annotated[str | dict[str, Any] | Law | None, "ours"] = None
    verification_config: Annotated[dict[str, Any] | None, "ours", _law_parameters] = None
    coupling: Annotated[str | None, "ours", _coupling] = None
    bonus: Annotated[str | None, "ours", among("induced", "target")] = None
    draft_probs: Annotated[str | None, "ours", among("head", "point_mass")] = None
    draft_mode: Annotated[str | None, "ours", among("tree", "chain", "sampled")] = None
    tree_size: Annotated[int | None, "ours", whole(2)] = None
    tree_depth: Annotated[int | None, "ours", whole(0)] = None
    tree_top_k: Annotated[int | None, "ours", whole(1)] = None
    draft_temperature: Annotated[float | None, "ours", number()] = None
    num_assistant_tokens: Annotated[int | None, "both", whole(1)] = None
    num_assistant_tokens_schedule: Annotated[str | None, "both", among("constant", "heuristic", "expected")] = None
    assistant_confidence_threshold: Annotated[float | None, "both", number(1.0)] = None
    accounting: Annotated[bool | None, "ours", instance(bool)] = None
    assistant_model: Annotated[PreTrainedModel | None, "theirs", _model] = None
    prompt_lookup_num_tokens: Annotated[int | None, "theirs", whole(1)] = None
    verification_stats: Annotated[VerificationStats | None, "call", instance(VerificationStats)] = None
    generator: Annotated[
        torch.Generator | list[torch.Generator] | None, "call", instance(torch.Generator, _are_generators)
    ] = None
    streamer: Annotated[
        Any, "theirs", instance(BaseStreamer, lambda value: hasattr(value, "put") and hasattr(value, "end"))
    ] = None
    tokenizer: Annotated[Any, "theirs"] = None
    assistant_tokenizer: Annotated[Any, "theirs"] = None
    stop_strings: Annotated[str | list[str] | None, "theirs"] = None

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            if (value := getattr(self, name)) is not None:
                setattr(self, name, check(name, value))
        if self.verification is not None:
            self.law()

    def law(self) -> Law:
        """The law, made and checked."""
        assert self.verification is not None
        law = make(self.verification, self.verification_config)
        if self.coupling is not None and not coupling(self.coupling).supports(law):
            raise LossyError(
                f"coupling={self.coupling!r} does not exist for {law}: its published rule is the token coupling already; "
                "use coupling='token' or 'block'"
            )
        return law

    def filled(self, *sources: Options) -> Options:
        """These options, with what is not given taken from the first source that has it (a law with its parameters)."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for source in sources:
            if values["verification"] is None and source.verification is not None:
                own = values["verification_config"]
                values["verification"] = source.verification
                values["verification_config"] = source.verification_config
                if own is not None:  # parameters of this call, over the stored ones
                    values["verification_config"] = {**(source.verification_config or {}), **own}
            elif values["verification"] is None and values["verification_config"] is None:
                values["verification_config"] = source.verification_config
            missing = [name for name, value in values.items() if value is None and name != "verification_config"]
            values |= {name: getattr(source, name) for name in missing}
        return Options(**values)


def tree_defaults(device: torch.device | None) -> dict[str, int]:
    """The options of a tree where they are not given, for a target's device."""
    return CPU_TREE if device is not None and device.type == "cpu" else TREE


def is_head(model: Any) -> bool:
    """Whether an assistant is an EAGLE-3 head."""
    return getattr(getattr(model, "config", None), "model_type", None) == Eagle3Config.model_type


def position_limit(target: PreTrainedModel, draft: PreTrainedModel | None) -> int | None:
    """The most tokens, prompt included, that a target and its draft take, as their configurations tell; None where neither
    does. A head has no limit of its own that would be below its target's."""
    models = [target] if draft is None or is_head(draft) else [target, draft]
    limits = [getattr(m.config.get_text_config(decoder=True), "max_position_embeddings", None) for m in models]
    return min((limit for limit in limits if limit), default=None)


_ABOUT = {name: hint.__metadata__ for name, hint in get_type_hints(Options, include_extras=True).items()}
_CHECKS: dict[str, Check] = {name: check for name, (_, *checks) in _ABOUT.items() for check in checks}


def _of(*where: Where) -> tuple[str, ...]:
    return tuple(name for name, about in _ABOUT.items() if about[0] in where)


NAMES = _of("ours", "both", "call", "theirs")
STORED = _of("ours", "both")
"""The options that a ``generation_config`` can carry."""
SHARED = _of("both", "theirs")
"""The options that transformers' ``generate`` has as well."""
HANDED_ON = _of("ours", "both", "call")
"""The options that transformers' ``generate`` hands on to a decoding loop of one's own."""


def from_config(config: GenerationConfig | None, prepared: bool = False) -> Options:
    """The options stored on a generation config; in a prepared one transformers' defaults count as not set."""
    return Options(**{name: stored(config, name) if prepared else getattr(config, name, None) for name in STORED})


def configure(model: PreTrainedModel, **options: Any) -> None:
    """Check verification options and store them on ``model.generation_config``, so that they survive ``save_pretrained``
    and ``from_pretrained`` and a checkpoint can carry its verification.

    Args:
        model: the target.
        **options: the fields of :class:`Options`, but for models, tokenizers, generators and what else is an object; None
            removes what was stored under a name.

    Raises:
        LossyError: an option that is unknown, can't be stored, or has a wrong value.
    """
    for name in options:
        if name not in STORED:
            raise unknown("option to store", name, STORED)
    config = model.generation_config
    merged = {name: getattr(config, name, None) for name in STORED}
    if "verification" in options:
        merged["verification_config"] = None  # the parameters of another law
    merged |= options
    checked = Options(**merged)
    if checked.verification is not None:
        law = checked.law().to_dict()
        merged |= {"verification": law.pop("method"), "verification_config": law}
    for name, value in merged.items():
        if value is not None:
            setattr(config, name, value)
        elif hasattr(config, name):
            setattr(config, name, None) if name in SHARED else delattr(config, name)
    keep_unknown_fields(config)
