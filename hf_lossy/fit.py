"""Whether a target and a draft fit, how fast each is here, and the draft length that pays best."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from .cached_model import CachedModel
from .compat import default_cache
from .drafting.vocabulary import first_difference, shared_limit
from .errors import LossyError


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
    for role, model in (("target", target), ("draft", draft)):
        cache = default_cache(model)
        layers = sorted({type(layer).__name__ for layer in cache.layers}) or ["made at the first forward"]
        try:
            CachedModel(model, cache, role)
            found.append(Check(f"{role} cache", f"{type(cache).__name__} of {', '.join(layers)}", True))
        except LossyError as error:
            found.append(Check(f"{role} cache", str(error), False))
    found.append(Check("dtypes", f"{target.dtype} / {draft.dtype}", True))
    found.append(Check("devices", f"{target.device} / {draft.device}", True))
    return found


@torch.no_grad()
def forward_seconds(
    model: PreTrainedModel, prefix: torch.Tensor, lengths: Sequence[int], repeats: int = 9
) -> dict[int, float]:
    """Median seconds of a forward over n new tokens after ``prefix`` [1, L], for each n, repeats interleaved."""
    times: dict[int, list[float]] = {n: [] for n in lengths}
    cached = CachedModel(model, default_cache(model), "model")
    cached(prefix)
    for repeat in range(repeats + 1):
        for n in lengths:
            tokens = prefix[:, -1:].expand(-1, n)
            _synchronise(model.device)
            began = time.perf_counter()
            cached(tokens, logits=n)
            _synchronise(model.device)
            if repeat:  # the first round is a warm-up
                times[n].append(time.perf_counter() - began)
            cached.crop(prefix.shape[1])
    return {n: statistics.median(t) for n, t in times.items()}


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def expected_tokens(acceptance: float, gamma: int) -> float:
    """Tokens a round of the token coupling when every drafted token is accepted with the same probability α, each on its
    own: (1 − α^(γ+1)) / (1 − α), the bonus token included (2211.17192, Eq. 1)."""
    return gamma + 1.0 if acceptance >= 1 else (1 - acceptance ** (gamma + 1)) / (1 - acceptance)


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
