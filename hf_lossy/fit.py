"""Whether a target and a draft fit, how fast each is here, and the draft length that pays best; of an EAGLE-3 head, whether
it was read as it was trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from .cached_model import CachedModel
from .compat import attention_of, default_cache
from .drafting.schedule import expected_tokens
from .drafting.vocabulary import first_difference, shared_limit
from .eagle3 import Eagle3Head
from .eagle3.training import measured
from .errors import LossyError
from .loading import dtype_name
from .tapping import Taps
from .tree_mask import check_takes_trees

TREES = "trees"
"""What the check is called without which a head can still draft chains."""


@dataclass(frozen=True)
class Check:
    """One thing that has to fit: what was looked at, what was found, and whether it is a problem."""

    what: str
    found: str
    ok: bool


def checks(target: PreTrainedModel, draft: PreTrainedModel, tokenizer: Any, assistant_tokenizer: Any) -> list[Check]:
    """Tokenizers, vocabularies, cache classes, dtypes and devices of a pair."""
    difference = first_difference(tokenizer, assistant_tokenizer)
    rows = [m.config.get_text_config(decoder=True).vocab_size for m in (target, draft)]
    same = "the same" if difference is None else "token {} is {!r} / {!r}".format(*difference)
    found = [Check("tokenizers", f"{len(tokenizer)} / {len(assistant_tokenizer)} tokens, {same}", difference is None)]
    try:
        limit = shared_limit(rows[0], rows[1], tokenizer, assistant_tokenizer)
        found.append(Check("output rows", f"{rows[0]} / {rows[1]}, {limit} ids in use", True))
    except LossyError as error:
        found.append(Check("output rows", f"{rows[0]} / {rows[1]}: {error}", False))
    found += [_cache_check(model, role) for role, model in (("target", target), ("draft", draft))]
    return found + _places(target, draft)


def head_checks(target: PreTrainedModel, head: Eagle3Head) -> list[Check]:
    """Sizes, tapped layers, embedding, the target's cache and attention, dtypes and devices of a target and its head."""
    ours, theirs = head.config, target.config.get_text_config(decoder=True)
    sizes = (
        ("hidden size of the target", ours.target_hidden_size, theirs.hidden_size),
        ("vocabulary", ours.vocab_size, theirs.vocab_size),
    )
    found = [Check(what, f"{b} / {a}", a == b) for what, a, b in sizes]
    taps = f"{theirs.num_hidden_layers} layers / taps {', '.join(map(str, ours.taps))}"
    found.append(_tried("tapped layers", taps, lambda: Taps(target, ours.taps)))
    whose = "the head's own" if ours.own_embedding else "the target's"
    wide = f"{theirs.hidden_size} / {ours.hidden_size} wide, {whose}"
    found.append(Check("embedding", wide, ours.own_embedding or ours.hidden_size == theirs.hidden_size))
    found.append(_cache_check(target, "target"))
    takes = f"{attention_of(target)} attention takes them"
    found.append(_tried(TREES, takes, lambda: check_takes_trees(target, default_cache(target), "target")))
    return found + _places(target, head)


def _cache_check(model: PreTrainedModel, role: str) -> Check:
    cache = default_cache(model)
    layers = sorted({type(layer).__name__ for layer in cache.layers}) or ["made at the first forward"]
    kinds = f"{type(cache).__name__} of {', '.join(layers)}"
    return _tried(f"{role} cache", kinds, lambda: CachedModel(model, cache, role))


def _tried(what: str, found: str, attempt: Callable[[], object]) -> Check:
    try:
        attempt()
    except LossyError as error:
        return Check(what, str(error), False)
    return Check(what, found, True)


def _places(target: PreTrainedModel, draft: PreTrainedModel) -> list[Check]:
    dtypes, devices = f"{target.dtype} / {draft.dtype}", f"{target.device} / {draft.device}"
    return [Check("dtypes", dtypes, True), Check("devices", devices, True)]


# --- how fast ---------------------------------------------------------------------------------------------------------


def break_even(gamma: int, draft_step: float, verify: float, plain_step: float, overhead: float = 0.0) -> float:
    """The block efficiency at which a round costs as much as the plain steps it replaces:
    (γ · draft step + verification + overhead) / plain step, all in seconds."""
    return (gamma * draft_step + verify + overhead) / plain_step


def best_gamma(
    acceptance: float, draft_step: float, target: dict[int, float], overhead: float = 0.0
) -> tuple[int, dict[int, float]]:
    """The draft length with the largest expected speed-up, and the speed-up of each.

    Args:
        acceptance: probability that a drafted token is accepted.
        draft_step: seconds of a draft forward over one token.
        target: seconds of a target forward over n tokens; γ needs γ + 1 of them, and 1 for plain decoding.
        overhead: seconds of a round outside the forwards.
    """
    speed = {
        n - 1: expected_tokens(acceptance, n - 1) / break_even(n - 1, draft_step, seconds, target[1], overhead)
        for n, seconds in target.items()
        if n > 1
    }
    return max(speed, key=lambda g: speed[g]), speed


# --- an EAGLE-3 head --------------------------------------------------------------------------------------------------


def described(head: Eagle3Head) -> dict[str, Any]:
    """What was read from a head's files or decided from them, by name."""
    names = (
        "producer",
        "taps",
        "target_hidden_size",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "draft_vocab_size",
        "rope_parameters",
        "norm_before_residual",
        "feedback",
        "fc_norm",
        "norm_before_fc",
        "qk_norm",
        "double_norm",
        "own_embedding",
    )
    found = {name: getattr(head.config, name) for name in names}
    dtype = dtype_name(head)
    return {**found, "dtype": dtype, "parameters": sum(p.numel() for p in head.parameters())}


class Variant(NamedTuple):
    """A way to read a head.

    Attributes:
        name: in words.
        taps: ``hidden_states`` indices.
        switches: fields of the head's config that are different.
        choices: arguments of :func:`hf_lossy.eagle3.load_head` that read it so.
    """

    name: str
    taps: list[int]
    switches: dict[str, bool]
    choices: dict[str, Any]


def variants(head: Eagle3Head, target: PreTrainedModel) -> list[Variant]:
    """The head as it was read, and in the other ways that its files can't rule out: taps that count the outputs of layers
    instead of their inputs or the other way round, a second norm over the feature, the other residual."""
    taps, layers = list(head.config.taps), target.config.get_text_config(decoder=True).num_hidden_layers
    found = [Variant("as read", taps, {}, {})]
    for name, by in (("taps + 1", 1), ("taps − 1", -1)):
        shifted = [tap + by for tap in taps]
        if min(shifted) >= 0 and max(shifted) <= layers:
            found.append(Variant(name, shifted, {}, {"tap_layers": shifted, "tap_convention": "input"}))
    for switch in ("double_norm", "norm_before_residual"):
        other = {switch: not getattr(head.config, switch)}
        found.append(Variant(f"{switch}={other[switch]}", taps, other, other))
    return found


class Agreement(NamedTuple):
    """How well a head's first step agrees with its target on one text: how many positions; at how many the likeliest tokens
    are the same; and the sum of Σ min(p, q), the probability that a token drawn from the head is accepted (T = 1)."""

    positions: float
    same: float
    accepted: float


@torch.no_grad()
def probe(
    head: Eagle3Head, target: PreTrainedModel, text: Int[Tensor, "1 length"], prompt: int
) -> dict[str, Agreement]:
    """Position 0 of a head's drafts in every one of its :func:`variants`, at the same positions: those before each token
    of a text but the first ``prompt`` ones."""
    ways = variants(head, target)
    indices = sorted({tap for way in ways for tap in way.taps})
    taps = Taps(target, indices)
    with taps:
        logits = target(input_ids=text, use_cache=False).logits
    states = dict(zip(indices, taps.take([0], text.shape[1]).chunk(len(indices), -1), strict=True))
    counted = torch.zeros_like(text, dtype=torch.bool)
    counted[:, prompt - 1 : -1] = True
    head.borrow_embedding(target)
    found = {}
    for way in ways:
        joined = torch.cat([states[tap] for tap in way.taps], -1).to(head.device)
        ids, z, where = (x.to(head.device) for x in (text, logits[counted], counted))
        with switched(head, way.switches):
            positions, same, _, accepted = measured(head, joined, ids, z, where, 1, [1.0])[0].tolist()
        found[way.name] = Agreement(positions, same, accepted)
    return found


@contextmanager
def switched(head: Eagle3Head, switches: dict[str, bool]) -> Iterator[None]:
    """Fields of a head's config set otherwise in a block."""
    before = {name: getattr(head.config, name) for name in switches}
    for name, value in switches.items():
        setattr(head.config, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(head.config, name, value)
