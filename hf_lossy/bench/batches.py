"""Tokens per second of batches in units of one sequence at a time, and of a draft length that follows the acceptance in
units of fixed ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..generation import VerificationStats, generate
from ..generation.options import DEFAULT_HEAD_CHAIN, TREE
from ..loading import Pair
from ..timing import timed
from .estimates import Track, rotated, spread, untracked
from .throughput import GREEDY, SAMPLED, Measured, Method, draft_length, ratio, run_in_turn, setting
from .trees import SHAPES, shape_name

SIZES = (1, 8)
LENGTHS = (1, 2, 3, 4, 5, 7, 10, 14, 20)
"""Fixed γ that ``expected`` is compared with."""


def measure_batches(
    pair: Pair, prompts: int, repeats: int, max_new_tokens: int, seed: int = 0, track: Track = untracked
) -> dict[str, Any]:
    """The same prompts in batches of each of :data:`SIZES`, lossless, greedy and sampled, in rotating order after a warm-up.

    Returns:
        ``settings``; ``modes``: for greedy and sampled the tokens/s of each size (median and quartiles over the repeats)
        and the ratio to one at a time, repeat by repeat; ``same_greedy_text``: on how many prompts every size wrote the
        same.
    """
    texts = (pair.prompts * prompts)[: max(SIZES) * -(-prompts // max(SIZES))]
    batches = {size: [pair.inputs(*texts[i : i + size]) for i in range(0, len(texts), size)] for size in SIZES}
    rates: dict[tuple[str, int], list[float]] = {(mode, size): [] for mode in ("greedy", "sampled") for size in SIZES}
    written: dict[int, list[list[int]]] = {}

    def whole(mode: str, size: int, repeat: int) -> tuple[list[Tensor], VerificationStats]:
        stats, found = VerificationStats(), []
        for i, inputs in enumerate(batches[size]):
            found.append(
                generate(
                    pair.target,
                    **inputs,
                    **{
                        **pair.drafting(),
                        **(GREEDY if mode == "greedy" else SAMPLED),
                        "max_new_tokens": max_new_tokens,
                    },
                    verification="lossless",
                    generator=torch.Generator(pair.target.device).manual_seed(seed + 1000 * repeat + i),
                    verification_stats=stats,
                )
            )
        return found, stats

    for mode, size in rates:
        whole(mode, size, 0)  # warm-up
    cases = list(rates)
    cells = [(repeat, case) for repeat in range(repeats) for case in rotated(cases, repeat)]
    for repeat, (mode, size) in track(cells, f"{pair.name}: batches"):
        (found, stats), seconds = timed(partial(whole, mode, size, repeat), pair.target.device)
        rates[mode, size].append(stats.emitted / seconds)
        if mode == "greedy" and repeat == 0:
            emitted = [sum(r.emitted for r in row.rounds) for row in stats.rows]
            new = [row for ids, inputs in zip(found, batches[size], strict=True) for row in _new(ids, inputs)]
            written[size] = [row[:count] for row, count in zip(new, emitted, strict=True)]
    return {
        "settings": setting(
            pair,
            seed,
            prompts=len(texts),
            repeats=repeats,
            max_new_tokens=max_new_tokens,
        ),
        "modes": {
            mode: [
                {
                    "batch_size": size,
                    "tokens_per_second": spread(rates[mode, size]),
                    "ratio": spread([a / b for a, b in zip(rates[mode, size], rates[mode, SIZES[0]], strict=True)]),
                }
                for size in SIZES
            ]
            for mode in ("greedy", "sampled")
        },
        "same_greedy_text": sum(len(set(map(tuple, rows))) == 1 for rows in zip(*written.values(), strict=True)),
    }


def _new(ids: Tensor, inputs: dict[str, Tensor]) -> Sequence[list[int]]:
    return list(ids[:, inputs["input_ids"].shape[1] :].tolist())


def measure_schedule(
    pair: Pair, prompts: int, repeats: int, max_new_tokens: int, seed: int = 0, track: Track = untracked
) -> dict[str, Any]:
    """``num_assistant_tokens_schedule="expected"`` beside every fixed γ of :data:`LENGTHS` and plain decoding, greedy and
    lossless, so that all write the same text. An EAGLE-3 head drafts chains, and trees beside the fixed ones of
    :data:`hf_lossy.bench.trees.SHAPES`.

    Returns:
        ``settings``; ``methods``: tokens/s of each; ``best``: for ``expected``, and ``expected tree``, the fastest of the
        fixed; ``ratios``: to these, to the pair's own γ and to plain decoding, as
        :func:`hf_lossy.bench.throughput.ratio`; ``mean_length``: tokens that each schedule drafted a round;
        ``target_seconds``: of a forward over n tokens, by n, as each schedule measured them before; ``same_text``: on how
        many prompts all wrote the same.
    """
    common = {"max_new_tokens": max_new_tokens, **GREEDY, "verification": "lossless"}

    def method(name: str, **how: Any) -> Method:
        drafting = {k: v for k, v in pair.drafting().items() if k not in ("num_assistant_tokens", *TREE)}
        if pair.head is not None:
            drafting["draft_mode"] = "chain"
        if pair.draft is None and "num_assistant_tokens" in how:
            how = {"prompt_lookup_num_tokens": how["num_assistant_tokens"]}
        return Method(name, True, {**drafting, **common, **how})

    own = draft_length(pair) if pair.head is None else DEFAULT_HEAD_CHAIN
    lengths = sorted({*LENGTHS, own})
    made = [method(f"γ = {n}", num_assistant_tokens=n) for n in lengths]
    fixed = {"expected": [one.name for one in made]}
    made.append(method("expected", num_assistant_tokens_schedule="expected"))
    if pair.head is not None:
        trees = [method(shape_name(shape), **shape) for shape in SHAPES if shape["draft_mode"] == "tree"]
        fixed["expected tree"] = [one.name for one in trees]
        tree = {"draft_mode": "tree", "num_assistant_tokens_schedule": "expected"}
        made += [*trees, method("expected tree", **tree)]
    made.append(Method("plain", False, {"max_new_tokens": max_new_tokens, **GREEDY}))
    inputs = [pair.inputs(text) for text in pair.prompts[:prompts]]
    found = run_in_turn([(pair, one) for one in made], inputs, repeats, seed, track, f"{pair.name}: draft lengths")
    by_name: dict[str, Measured] = {one.method.name: one for one in found}
    rates = {name: one.summary()["tokens_per_second"] for name, one in by_name.items()}
    best = {name: max(others, key=lambda other: rates[other]["median"]) for name, others in fixed.items()}
    rounds = {name: [r for stats in by_name[name].stats for r in stats.rounds] for name in fixed}
    beside = dict.fromkeys([*best.items(), ("expected", f"γ = {own}"), *((name, "plain") for name in fixed)])
    return {
        "settings": setting(
            pair,
            seed,
            prompts=len(inputs),
            repeats=repeats,
            max_new_tokens=max_new_tokens,
            own_length=own,
        ),
        "methods": rates,
        "best": best,
        "ratios": [ratio(by_name[name], by_name[other]) for name, other in beside],
        "mean_length": {name: sum(r.drafted for r in mine) / len(mine) for name, mine in rounds.items()},
        "target_seconds": {name: by_name[name].stats[0].settings["target_seconds"] for name in fixed},
        "same_text": sum(len({tuple(one.texts[i]) for one in found}) == 1 for i in range(len(inputs))),
    }
