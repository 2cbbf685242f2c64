"""Tokens per second of this package, of transformers' assisted generation and of plain decoding, run in turn."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import LossyError
from ..generation import VerificationStats, generate
from ..laws import law
from ..loading import Pair, dtype_name
from ..timing import timed
from .estimates import Track, bootstrap, rotated, spread, untracked
from .outside import outside_forwards

GREEDY = {"do_sample": False}
SAMPLED = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
COLD = {**SAMPLED, "temperature": 1e-4}
"""Sampled code on both sides, and the greedy text: what the coins let a round keep can't blur the time of a round."""
DRAFT_WEIGHT = 0.4
COS = f"cos {DRAFT_WEIGHT:g}"
COMPARISONS = (
    ("ours, greedy", "transformers, greedy"),
    ("ours, greedy", "plain, greedy"),
    ("transformers, greedy", "plain, greedy"),
    ("ours, sampled", "transformers, sampled"),
    ("ours, sampled", "plain, sampled"),
    ("transformers, sampled", "plain, sampled"),
    ("ours, sampled at T = 1e-4", "transformers, sampled at T = 1e-4"),
    (f"ours, {COS}, bonus=target", f"transformers, {COS}"),
    (f"ours, {COS}, bonus=induced", f"transformers, {COS}"),
    (f"ours, {COS}, bonus=target", "plain, sampled"),
    (f"ours, {COS}, bonus=induced", "plain, sampled"),
    (f"transformers, {COS}", "plain, sampled"),
)
"""Speed of the first in units of the second. Greedy and sampled without more are lossless."""


@dataclass(frozen=True)
class Method:
    """One way of decoding: whose ``generate`` is called, and with what."""

    name: str
    ours: bool
    arguments: dict[str, Any]

    def __call__(self, pair: Pair, inputs: dict[str, Tensor], seed: int, stats: VerificationStats) -> Tensor:
        if not self.ours:
            torch.manual_seed(seed)
            ids: Tensor = pair.target.generate(**inputs, **self.arguments)
            return ids
        generator = torch.Generator(pair.target.device).manual_seed(seed)
        return generate(pair.target, **inputs, **self.arguments, generator=generator, verification_stats=stats)


@dataclass
class Measured:
    """What a method did: tokens, seconds and target forwards [repeat][prompt], statistics [repeat], the texts of the first
    repeat."""

    method: Method
    tokens: list[list[int]] = field(default_factory=list)
    seconds: list[list[float]] = field(default_factory=list)
    forwards: list[list[int]] = field(default_factory=list)
    stats: list[VerificationStats] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)

    def rate(self, repeat: int, prompts: list[int]) -> float:
        """Tokens per second of one repeat over some of the prompts."""
        return sum(self.tokens[repeat][i] for i in prompts) / sum(self.seconds[repeat][i] for i in prompts)

    def pace(self, repeat: int, prompts: list[int]) -> float:
        """Target forwards (rounds) per second of one repeat over some of the prompts."""
        return sum(self.forwards[repeat][i] for i in prompts) / sum(self.seconds[repeat][i] for i in prompts)

    def summary(self) -> dict[str, Any]:
        """The method's figures as plain numbers."""
        everything = list(range(len(self.tokens[0])))
        rates = [self.rate(repeat, everything) for repeat in range(len(self.tokens))]
        found: dict[str, Any] = {
            "tokens": sum(map(sum, self.tokens)),
            "seconds": sum(map(sum, self.seconds)),
            "target_forwards": sum(map(sum, self.forwards)),
            "tokens_per_second": spread(rates),
        }
        if self.method.ours:
            total = VerificationStats()
            for stats in self.stats:
                total.add(stats)
            shares = [outside_forwards(stats)["share"] for stats in self.stats]
            found |= {
                "statistics": {k: v for k, v in total.summary().items() if k != "accounting"},
                "outside_forwards": {**outside_forwards(total), "share_by_repeat": spread(shares)},
            }
        return found


def setting(pair: Pair, seed: int, **amounts: Any) -> dict[str, Any]:
    """What a measurement was made with: how much of what, then the pair's dtype and device, and the seed."""
    return {**amounts, "dtype": dtype_name(pair.target), "device": str(pair.target.device), "seed": seed}


def draft_length(pair: Pair) -> int:
    """γ of a pair, the same for both sides."""
    return int(pair.generate.get("num_assistant_tokens") or pair.generate.get("prompt_lookup_num_tokens") or 7)


def methods(pair: Pair, max_new_tokens: int) -> list[Method]:
    """Everything that is compared on a pair: the same processors, draft length and law on both sides."""
    gamma, length = draft_length(pair), {"max_new_tokens": max_new_tokens}
    if pair.draft is None:
        theirs: dict[str, Any] = {**length, "prompt_lookup_num_tokens": gamma}
        ours: dict[str, Any] = theirs
    else:
        theirs = {**length, "assistant_model": pair.draft}  # γ: see transformers_draft_length
        ours = {**theirs, "num_assistant_tokens": gamma}
    lossless = {"verification": law("lossless"), "bonus": "target"}
    found = []
    for name, sampling in (("greedy", GREEDY), ("sampled", SAMPLED)):
        found += [
            Method(f"plain, {name}", False, {**length, **sampling}),
            Method(f"transformers, {name}", False, {**theirs, **sampling}),
            Method(f"ours, {name}", True, {**ours, **sampling, **lossless}),
        ]
    cold = {**COLD, **lossless}
    found.append(Method("transformers, sampled at T = 1e-4", False, {**theirs, **COLD}))
    found.append(Method("ours, sampled at T = 1e-4", True, {**ours, **cold}))
    if pair.draft is not None:
        weight = {"assistant_ensemble_weight": 1 - DRAFT_WEIGHT}  # transformers weights the target
        cos = {"verification": law("cos", draft_weight=DRAFT_WEIGHT)}
        found.append(Method(f"transformers, {COS}", False, {**theirs, **SAMPLED, **weight}))
        for bonus in ("target", "induced"):
            name = f"ours, {COS}, bonus={bonus}"
            found.append(Method(name, True, {**ours, **SAMPLED, **cos, "bonus": bonus}))
    return found


@contextmanager
def counted_forwards(model: PreTrainedModel) -> Iterator[list[int]]:
    """Count the model's forwards, whoever calls it, in the one entry of the list."""
    count = [0]

    def count_one(*_: Any) -> None:
        count[0] += 1

    handle = model.register_forward_pre_hook(count_one)
    try:
        yield count
    finally:
        handle.remove()


@contextmanager
def transformers_draft_length(draft: PreTrainedModel | None, gamma: int) -> Iterator[None]:
    """Let transformers' assisted generation draft γ tokens a round, always: it reads the draft's generation config only."""
    if draft is None:
        yield
        return
    before = draft.generation_config
    draft.generation_config = copy.deepcopy(before)
    draft.generation_config.num_assistant_tokens = gamma
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0
    try:
        yield
    finally:
        draft.generation_config = before


def run_in_turn(
    work: Sequence[tuple[Pair, Method]],
    inputs: Sequence[dict[str, Tensor]],
    repeats: int,
    seed: int,
    track: Track,
    description: str,
) -> list[Measured]:
    """Run every method on every prompt, ``repeats`` times, in rotating order after a warm-up.

    Args:
        work: the methods, each with the models that it runs on, all on one device.
        inputs: the prompts, as ``generate`` takes them.
    """
    device = work[0][0].target.device
    found = [(pair, Measured(method)) for pair, method in work]
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        for pair, one in found:
            one.method(pair, inputs[0], seed, VerificationStats())  # warm-up
        cells = [(repeat, i) for repeat in range(repeats) for i in range(len(inputs))]
        for repeat, i in track(cells, description):
            for pair, one in rotated(found, repeat + i):
                if i == 0:
                    one.tokens.append([])
                    one.seconds.append([])
                    one.forwards.append([])
                    one.stats.append(VerificationStats())
                call = partial(one.method, pair, inputs[i], seed + 1000 * repeat + i, one.stats[-1])
                with counted_forwards(pair.target) as forwards:
                    ids, seconds = timed(call, device)
                one.seconds[-1].append(seconds)
                one.forwards[-1].append(forwards[0])
                new = ids[0, inputs[i]["input_ids"].shape[1] :].tolist()
                one.tokens[-1].append(len(new))
                if repeat == 0:
                    one.texts.append(new)
    return [one for _, one in found]


def measure_throughput(
    pair: Pair,
    prompts: int,
    repeats: int,
    max_new_tokens: int,
    seed: int = 0,
    track: Track = untracked,
    holding: str = "",
) -> dict[str, Any]:
    """Every method, or those whose name holds a text, on every prompt (:func:`run_in_turn`).

    Returns:
        ``settings``; ``methods``: tokens/s, statistics and time outside forwards; ``ratios``: median of the repeats' ratios
        of tokens/s with its quartiles and the 95 % bootstrap interval over prompts, and in ``rounds_per_second`` the same of
        target forwards, which does not depend on how many tokens the coins let a round keep; ``same_greedy_text``: on how
        many prompts greedy speculation wrote what plain decoding did. Or ``left_out``: why there is nothing to compare.
    """
    if pair.head is not None:
        return {"left_out": "an EAGLE-3 head is no draft of transformers' assisted generation; see the part trees"}
    inputs = [pair.inputs(text) for text in pair.prompts[:prompts]]
    work = [(pair, method) for method in methods(pair, max_new_tokens) if holding in method.name]
    if not work:
        names = ", ".join(method.name for method in methods(pair, max_new_tokens))
        raise LossyError(f"no method's name holds {holding!r}: there are {names}")
    with transformers_draft_length(pair.draft, draft_length(pair)):
        found = run_in_turn(work, inputs, repeats, seed, track, f"{pair.name}: tokens/s")
    by_name = {one.method.name: one for one in found}
    plain = by_name["plain, greedy"].texts if "plain, greedy" in by_name else None
    return {
        "settings": setting(
            pair,
            seed,
            prompts=len(inputs),
            repeats=repeats,
            max_new_tokens=max_new_tokens,
            num_assistant_tokens=draft_length(pair),
            sampled=SAMPLED,
            coupling="tree" if pair.draft is None else "block",
            target_parameters=pair.target.num_parameters(),
            draft_parameters=None if pair.draft is None else pair.draft.num_parameters(),
        ),
        "methods": {name: one.summary() for name, one in by_name.items()},
        "ratios": [ratio(by_name[a], by_name[b]) for a, b in COMPARISONS if a in by_name and b in by_name],
        "same_greedy_text": {
            name: sum(text == other for text, other in zip(by_name[name].texts, plain, strict=True))
            for name in ("ours, greedy", "transformers, greedy")
            if plain is not None and name in by_name
        },
    }


def ratio(a: Measured, b: Measured) -> dict[str, Any]:
    """Tokens/s, and rounds/s, of ``a`` in units of ``b``'s: median and quartiles over the repeats, interval over prompts."""
    repeats, prompts = range(len(a.tokens)), len(a.tokens[0])

    def compared(figure: Callable[[Measured, int, list[int]], float]) -> dict[str, Any]:
        def ratios(chosen: list[int]) -> list[float]:
            return [figure(a, repeat, chosen) / figure(b, repeat, chosen) for repeat in repeats]

        interval = bootstrap(prompts, lambda chosen: statistics.median(ratios(chosen)))
        finite = interval is None or all(map(math.isfinite, interval))
        return {**spread(ratios(list(range(prompts)))), "interval": interval if finite else None}

    return {
        "of": a.method.name,
        "to": b.method.name,
        "prompts": prompts,
        **compared(Measured.rate),
        "rounds_per_second": compared(Measured.pace),
    }
