"""What an EAGLE-3 head is worth as a draft: how much of its chains and trees is kept, how fast that is beside plain
decoding, and what each law does on a tree under both readings of q."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from ..generation import VerificationStats, generate
from ..generation.options import DEFAULT_HEAD_CHAIN, tree_defaults
from ..generation.statistics import RowStats
from ..laws import Law, law, law_class, listed
from ..loading import Pair, dtype_name
from .estimates import Track, clustered_mean, spread, untracked
from .outside import outside_forwards
from .throughput import GREEDY, Measured, Method, ratio, run_in_turn, setting

SECTIONS = ("acceptance", "speed", "laws")
TEMPERATURE = 0.7
SAMPLED = {"do_sample": True, "temperature": TEMPERATURE, "top_k": 0, "top_p": 1.0}
READINGS = ("head", "point_mass")

Shape = dict[str, Any]
"""The arguments of ``generate`` that say how a head drafts."""


def chain(length: int) -> Shape:
    """The head's likeliest tokens, one after another."""
    return {"draft_mode": "chain", "num_assistant_tokens": length}


def sampled(length: int) -> Shape:
    """Tokens drawn from the head, one after another."""
    return {"draft_mode": "sampled", "num_assistant_tokens": length}


def tree(size: int, depth: int, top_k: int) -> Shape:
    """A dynamic tree."""
    return {"draft_mode": "tree", "tree_size": size, "tree_depth": depth, "tree_top_k": top_k}


REFERENCE = (chain(4), tree(60, 5, 10))
"""The shapes that acceptance is reported for; the laws run on the second."""
SHAPES = (
    chain(1),
    chain(2),
    chain(4),
    tree(3, 1, 2),
    tree(8, 2, 4),
    tree(16, 3, 4),
    tree(32, 4, 8),
    tree(60, 5, 10),
)
"""The shapes that are timed. Up to three tokens a forward may cost a CPU no more than one."""
SAMPLED_SHAPES = (sampled(1), sampled(2), sampled(4))
"""Those that are timed besides when sampling; greedily they are chains."""


def shape_name(arguments: Mapping[str, Any]) -> str:
    """How a head drafts under some arguments of ``generate``, in words: a tree's size/depth/top-k, a chain's length."""
    mode = arguments.get("draft_mode") or "tree"
    if mode == "tree":
        defaults = tree_defaults(getattr(arguments.get("assistant_model"), "device", None))
        return "tree " + "/".join(str(arguments.get(name) or default) for name, default in defaults.items())
    length = arguments.get("num_assistant_tokens") or DEFAULT_HEAD_CHAIN
    return f"{'sampled ' * (mode == 'sampled')}chain, γ = {length}"


def measure_trees(
    pair: Pair,
    prompts: int,
    repeats: int,
    max_new_tokens: int,
    sequences: int,
    seed: int = 0,
    track: Track = untracked,
) -> Iterator[dict[str, Any]]:
    """The figures so far, again and again with one of ``SECTIONS`` more, which comes last.

    Args:
        prompts, repeats: of the speed.
        sequences: prompts of the acceptance; the laws run on the first quarter of them.
    """
    if pair.head is None:
        yield {"left_out": "it has no EAGLE-3 head"}
        return
    texts = pair.prompts[:sequences]
    figures: dict[str, Any] = {
        "settings": setting(
            pair,
            seed,
            prompts=len(pair.prompts[:prompts]),
            repeats=repeats,
            max_new_tokens=max_new_tokens,
            sequences=len(texts),
            sampled=SAMPLED,
            target_parameters=pair.target.num_parameters(),
            head_parameters=pair.head.num_parameters(),
        )
    }
    figures["acceptance"] = measure_acceptance(pair, texts, max_new_tokens, seed, track)
    yield dict(figures)
    pairs = [pair] if pair.target.dtype != torch.float32 else [pair, in_dtype(pair, torch.bfloat16)]
    inputs = [pair.inputs(text) for text in pair.prompts[:prompts]]
    figures["speed"] = measure_speed(pairs, inputs, SHAPES, repeats, max_new_tokens, GREEDY, seed, track)
    yield dict(figures)
    del pairs
    few = texts[: max(1, len(texts) // 4)]
    figures["laws"] = measure_laws(pair, few, REFERENCE[1], max_new_tokens, seed, track)
    yield dict(figures)


def in_dtype(pair: Pair, dtype: torch.dtype) -> Pair:
    """A copy of a pair with its parameters in another dtype. The buffers stay: the frequencies of the rotation are among
    them, which a model loaded in that dtype has in float32 too."""
    models = {"target": copy.deepcopy(pair.target), "draft": copy.deepcopy(pair.draft)}
    for model in models.values():
        assert model is not None
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
    return dataclasses.replace(pair, **models)


# --- acceptance -------------------------------------------------------------------------------------------------------


def measure_acceptance(
    pair: Pair, texts: Sequence[str], max_new_tokens: int, seed: int, track: Track
) -> list[dict[str, Any]]:
    """What lossless verification keeps of each reference shape, greedily and sampled, and of a chain that the head samples;
    intervals over prompts."""
    cases = [(shape, sampling) for sampling in (GREEDY, SAMPLED) for shape in REFERENCE] + [(sampled(4), SAMPLED)]
    stats = [VerificationStats() for _ in cases]
    for i, text in enumerate(track(texts, f"{pair.name}: acceptance")):
        inputs = pair.inputs(text)
        for (shape, sampling), collected in zip(cases, stats, strict=True):
            run(pair, inputs, law("lossless"), {**shape, **sampling}, max_new_tokens, seed + i, collected)
    return [
        {
            "name": shape_name(shape),
            "temperature": sampling.get("temperature", 0.0),
            "mean_acceptance_length": acceptance_length(collected.rows),
            "per_position": per_position(collected.rows),
            "tokens_per_forward": collected.block_efficiency,
        }
        for (shape, sampling), collected in zip(cases, stats, strict=True)
    ]


def run(
    pair: Pair,
    inputs: dict[str, Tensor],
    one: Law,
    arguments: dict[str, Any],
    max_new_tokens: int,
    seed: int,
    stats: VerificationStats,
) -> None:
    """One text under a law; what happened is added to ``stats``."""
    generator = torch.Generator(pair.target.device).manual_seed(seed)
    arguments = {**arguments, "assistant_model": pair.draft, "max_new_tokens": max_new_tokens}
    generate(pair.target, **inputs, **arguments, verification=one, generator=generator, verification_stats=stats)


def acceptance_length(rows: Sequence[RowStats], prompts: Sequence[int] | None = None) -> dict[str, Any]:
    """Mean of 1 + accepted tokens over the rounds that drafted something, which the first of a text can't, since the head
    reads what the target says of the prompt.

    Args:
        rows: texts.
        prompts: which prompt each is of; one each unless given.
    """
    drafted = [[r for r in row.rounds if r.drafted] for row in rows]
    kept = [float(sum(1 + r.accepted for r in rounds)) for rounds in drafted]
    return clustered_mean(kept, [float(len(rounds)) for rounds in drafted], prompts or range(len(rows)))


def per_position(rows: Sequence[RowStats]) -> list[dict[str, Any]]:
    """For each position of a chain or level of a tree, the share of the rounds that drafted one and kept it."""
    deep = [[(r.accepted, r.levels) for r in row.rounds] for row in rows]
    return [
        clustered_mean(
            [float(sum(accepted > i for accepted, _ in rounds)) for rounds in deep],
            [float(sum(depth > i for _, depth in rounds)) for rounds in deep],
            range(len(rows)),
        )
        for i in range(max((depth for rounds in deep for _, depth in rounds), default=0))
    ]


# --- speed ------------------------------------------------------------------------------------------------------------


class Clock(BaseStreamer):
    """Times the steps of transformers' plain decoding: for each call the seconds from its first token to its last."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, int]] = []
        """Seconds and steps of each call."""
        self._times: list[float] = []

    def put(self, value: Tensor) -> None:
        self._times.append(time.perf_counter())

    def end(self) -> None:
        _, *times = self._times  # the prompt comes first
        self.calls.append((times[-1] - times[0], len(times) - 1))
        self._times = []

    def step(self, calls: slice) -> float:
        """Seconds a step over some of the calls."""
        seconds, steps = (sum(column) for column in zip(*self.calls[calls], strict=True))
        return seconds / steps if steps else math.nan


def measure_speed(
    pairs: Sequence[Pair],
    inputs: Sequence[dict[str, Tensor]],
    shapes: Sequence[Shape],
    repeats: int,
    max_new_tokens: int,
    sampling: dict[str, Any],
    seed: int,
    track: Track,
) -> dict[str, Any]:
    """Tokens/s of each shape, lossless, beside transformers' plain decoding, all in turn in one run.

    Args:
        pairs: the same models in one dtype or several.
        inputs: the prompts, as ``generate`` takes them.

    Returns:
        For each dtype: ``plain``: tokens/s and milliseconds a step; ``shapes``: for each the tokens/s and their ratio to
        plain decoding's, the prompt's reading included; the mean acceptance length; and, over the rounds and steps after
        the first, milliseconds a round, the ``break_even`` mean acceptance length, at which a round takes as long as the
        plain steps it replaces, and ``speed_up`` = mean acceptance length / break-even. ``best``: the name of the shape with
        the largest speed-up; ``pays``: whether that is above 1.
    """
    length = {"max_new_tokens": max_new_tokens}
    clocks = [Clock() for _ in pairs]
    work = []
    for pair, clock in zip(pairs, clocks, strict=True):
        dtype, ours = dtype_name(pair.target), {"assistant_model": pair.draft, "verification": law("lossless")}
        work.append((pair, Method(f"plain, {dtype}", False, {**length, **sampling, "streamer": clock})))
        for shape in shapes:
            work.append((pair, Method(f"{shape_name(shape)}, {dtype}", True, {**length, **sampling, **ours, **shape})))
    found = run_in_turn(work, inputs, repeats, seed, track, f"{pairs[0].name}: tokens/s")
    each, figures = len(shapes) + 1, {}
    for k, (pair, clock) in enumerate(zip(pairs, clocks, strict=True)):
        plain, *drafted = found[k * each : (k + 1) * each]
        starts = range(1, 1 + repeats * len(inputs), len(inputs))  # the first call was a warm-up
        steps = [clock.step(slice(start, start + len(inputs))) for start in starts]
        timed = [_speed(one, plain, shape, steps) for one, shape in zip(drafted, shapes, strict=True)]
        best = max(timed, key=lambda one: one["speed_up"]["median"])
        figures[dtype_name(pair.target)] = {
            "plain": {
                "tokens_per_second": _rates(plain),
                "step_milliseconds": spread([1e3 * step for step in steps]),
            },
            "shapes": timed,
            "best": best["name"],
            "pays": best["speed_up"]["median"] > 1,
        }
    return figures


def _speed(one: Measured, plain: Measured, shape: Shape, steps: list[float]) -> dict[str, Any]:
    rounds = [outside_forwards(stats)["microseconds_per_round"]["round"] / 1e6 for stats in one.stats]
    lengths = [acceptance_length(stats.rows)["mean"] for stats in one.stats]
    even = [seconds / step for seconds, step in zip(rounds, steps, strict=True)]
    rows = [row for stats in one.stats for row in stats.rows]
    return {
        "name": shape_name(shape),
        "shape": shape,
        "tokens_per_second": _rates(one),
        "ratio": ratio(one, plain),
        "mean_acceptance_length": acceptance_length(rows, [*range(len(plain.texts))] * len(one.stats)),
        "round_milliseconds": spread([1e3 * seconds for seconds in rounds]),
        "break_even": spread(even),
        "speed_up": spread([a / b for a, b in zip(lengths, even, strict=True)]),
        "same_text": sum(a == b for a, b in zip(one.texts, plain.texts, strict=True)),
    }


def _rates(one: Measured) -> dict[str, Any]:
    everything = list(range(len(one.tokens[0])))
    return spread([one.rate(repeat, everything) for repeat in range(len(one.tokens))])


# --- laws -------------------------------------------------------------------------------------------------------------


def strengths() -> Iterator[Law]:
    """Every registered law at two strengths of its grid, the first and the third; one where it has no strength."""
    for name in listed():
        cls = law_class(name)
        if cls.knob is None or not cls.grid:
            yield cls()
        else:
            for strength in dict.fromkeys((cls.grid[0], cls.grid[:3][-1])):
                yield cls(**{cls.knob: strength})


def measure_laws(
    pair: Pair, texts: Sequence[str], shape: Shape, max_new_tokens: int, seed: int, track: Track
) -> dict[str, Any]:
    """What each law keeps of a tree and how far it goes from the target: where the candidates count with the head's
    probability, and where each counts as q = 1."""
    cases = [(one, reading) for one in strengths() for reading in READINGS]
    stats = [VerificationStats() for _ in cases]
    inputs = [pair.inputs(text) for text in texts]
    cells = [(i, k) for i in range(len(texts)) for k in range(len(cases))]
    for i, k in track(cells, f"{pair.name}: laws on a tree"):
        one, reading = cases[k]
        arguments = {**shape, **SAMPLED, "draft_probs": reading, "accounting": True}
        run(pair, inputs[i], one, arguments, max_new_tokens, seed + i, stats[k])
    return {
        "name": shape_name(shape),
        "temperature": TEMPERATURE,
        "prompts": len(texts),
        "laws": [
            {"law": str(one), "draft_probs": reading, **_distance(collected)}
            for (one, reading), collected in zip(cases, stats, strict=True)
        ],
    }


def _distance(stats: VerificationStats) -> dict[str, Any]:
    tables = [row.accounting or {} for row in stats.rows]
    tv, total = [table["tv"] for table in tables], stats.accounting or {}
    largest = total["max_log_ratio"]
    return {
        "mean_acceptance_length": acceptance_length(stats.rows),
        "tv": clustered_mean([sum(x) for x in tv], [float(len(x)) for x in tv], range(len(tv))),
        "max_log_ratio": None if math.isinf(largest) else largest,  # None: something was emitted that the target can't
        "kl": None if math.isinf(total["kl"]) else total["kl"],
        "tokens": stats.emitted,
    }
