"""The options of verification: what a user may give, where it may be stored, what it defaults to."""

from __future__ import annotations

import dataclasses
import math
import numbers
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from transformers.generation.streamers import BaseStreamer

from ..compat import keep_unknown_fields, stored
from ..couplings import coupling, couplings
from ..eagle3.config import Eagle3Config
from ..errors import LossyError, unknown
from ..laws import Law, make
from .statistics import VerificationStats

DEFAULT_DRAFT_LENGTH = 7
DEFAULT_HEAD_CHAIN = 4
DRAFT_MODES = ("tree", "chain", "sampled")
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
            far (:class:`hf_lossy.drafting.schedule.Expected`), or a tree's depth and size
            (:class:`hf_lossy.drafting.schedule.ExpectedTree`). The first such call for a target and a draft takes a few
            seconds to measure them, which ``max_time`` does not count.
        assistant_confidence_threshold: stop drafting after a token with q below this; 0 (default) never stops.
        accounting: also compute TV, KL, overshoot, acceptance and waste of every emitted token.
        assistant_model: the draft; or absent with ``prompt_lookup_num_tokens``.
        prompt_lookup_num_tokens: γ of a draft that looks its candidates up in the text itself, unless
            ``num_assistant_tokens`` is given too (:class:`hf_lossy.drafting.PromptLookupDraft`).
        verification_stats: a collector that the call's statistics are added to.
        generator: a ``torch.Generator``; the global one is left alone then. For a batch also a list, one a row: no row's
            coins depend on its neighbours then.
        streamer, tokenizer, assistant_tokenizer, stop_strings: as in transformers' ``generate``.
    """

    verification: str | dict[str, Any] | Law | None = None
    verification_config: dict[str, Any] | None = None
    coupling: str | None = None
    bonus: str | None = None
    draft_probs: str | None = None
    draft_mode: str | None = None
    tree_size: int | None = None
    tree_depth: int | None = None
    tree_top_k: int | None = None
    draft_temperature: float | None = None
    num_assistant_tokens: int | None = None
    num_assistant_tokens_schedule: str | None = None
    assistant_confidence_threshold: float | None = None
    accounting: bool | None = None
    assistant_model: PreTrainedModel | None = None
    prompt_lookup_num_tokens: int | None = None
    verification_stats: VerificationStats | None = None
    generator: torch.Generator | list[torch.Generator] | None = None
    streamer: Any = None
    tokenizer: Any = None
    assistant_tokenizer: Any = None
    stop_strings: str | list[str] | None = None

    def __post_init__(self) -> None:
        if self.verification_config is not None and not isinstance(self.verification_config, dict):
            raise LossyError(
                f"verification_config must be a dict of the law's parameters, got {self.verification_config!r}"
            )
        for name, allowed in (
            ("coupling", [c for c in couplings() if c != "tree"]),
            ("bonus", ["induced", "target"]),
            ("draft_probs", ["head", "point_mass"]),
            ("draft_mode", list(DRAFT_MODES)),
            ("num_assistant_tokens_schedule", ["constant", "heuristic", "expected"]),
        ):
            value = getattr(self, name)
            if value is not None and value not in allowed:
                raise unknown(name, value, allowed)
        for name, low in (
            ("num_assistant_tokens", 1),
            ("prompt_lookup_num_tokens", 1),
            ("tree_size", 2),
            ("tree_depth", 0),
            ("tree_top_k", 1),
        ):
            if getattr(self, name) is not None:
                setattr(self, name, at_least(low, name, getattr(self, name)))
        for name, high in (("draft_temperature", float("inf")), ("assistant_confidence_threshold", 1.0)):
            value = getattr(self, name)
            sound = isinstance(value, numbers.Real) and not isinstance(value, bool) and 0 <= float(value) <= high
            if value is not None and not (sound and math.isfinite(value)):
                raise LossyError(f"{name} must be {'at least 0' if high > 1 else 'in [0, 1]'}, got {value!r}")
        for name, kind in (
            ("verification_stats", VerificationStats),
            ("generator", torch.Generator),
            ("accounting", bool),
            ("streamer", BaseStreamer),
        ):
            value = getattr(self, name)
            duck = name == "streamer" and hasattr(value, "put") and hasattr(value, "end")
            several = name == "generator" and isinstance(value, list) and all(isinstance(one, kind) for one in value)
            if value is not None and not isinstance(value, kind) and not duck and not several:
                raise LossyError(f"{name} must be a {kind.__name__}, got the {type(value).__name__} {value!r}")
        # a compiled or PEFT-wrapped model is no PreTrainedModel, but does what one does
        model = self.assistant_model
        if model is not None and not hasattr(model, "prepare_inputs_for_generation") and not is_head(model):
            raise LossyError(
                f"assistant_model must be a loaded model, got {type(self.assistant_model).__name__}: load it with "
                "AutoModelForCausalLM.from_pretrained first"
            )
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


def at_least(low: int, name: str, value: Any) -> int:
    """A whole number of at least ``low``, or an error that names it."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < low:
        raise LossyError(f"{name} must be a whole number of at least {low}, got {value!r}")
    return int(value)


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


NAMES = tuple(f.name for f in dataclasses.fields(Options))
STORED = (
    "verification",
    "verification_config",
    "coupling",
    "bonus",
    "draft_probs",
    "draft_mode",
    "tree_size",
    "tree_depth",
    "tree_top_k",
    "draft_temperature",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
    "accounting",
)
"""The options that a ``generation_config`` can carry."""
SHARED = (
    "assistant_model",
    "prompt_lookup_num_tokens",
    "streamer",
    "tokenizer",
    "assistant_tokenizer",
    "stop_strings",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
)
"""The options that transformers' ``generate`` has as well."""


def from_config(config: GenerationConfig | None, prepared: bool = False) -> Options:
    """The options stored on a generation config; in a prepared one transformers' defaults count as not set."""
    return Options(**{name: stored(config, name) if prepared else getattr(config, name, None) for name in STORED})


def configure(model: PreTrainedModel, **options: Any) -> None:
    """Check verification options and store them on ``model.generation_config``, so that they survive ``save_pretrained``
    and ``from_pretrained`` and a checkpoint can carry its verification.

    Args:
        model: the target.
        **options: any of ``verification``, ``verification_config``, ``coupling``, ``bonus``, ``draft_probs``,
            ``draft_mode``, ``tree_size``, ``tree_depth``, ``tree_top_k``, ``draft_temperature``,
            ``num_assistant_tokens``, ``num_assistant_tokens_schedule``, ``assistant_confidence_threshold``,
            ``accounting``; None removes what was stored under a name.

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
