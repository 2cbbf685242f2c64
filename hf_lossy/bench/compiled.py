"""Tokens per second with compiled forwards and static caches, of this package, transformers' assisted generation and plain
decoding."""

from __future__ import annotations

from typing import Any

from transformers import CompileConfig

from ..compat import on_every_device
from ..generation import VerificationStats
from ..loading import Pair
from ..timing import timed
from .estimates import Track, untracked
from .throughput import Method, draft_length, methods, ratio, run_in_turn, setting, transformers_draft_length

MODES = ("greedy", "sampled")
WHO = ("plain", "transformers", "ours")


def measure_compiled(
    pair: Pair, prompts: int, repeats: int, max_new_tokens: int, seed: int = 0, track: Track = untracked
) -> dict[str, Any]:
    """Each way of decoding, lossless, greedy and sampled, as it is and compiled (``cache_implementation="static"`` and a
    default ``CompileConfig``), in rotating order (:func:`run_in_turn`). Everything that will be run has been compiled
    before: every method writes every text once, the longest prompt first.

    Returns:
        ``settings``; ``methods`` and ``ratios`` as in :func:`measure_throughput`; ``warm_up_seconds`` of each method;
        ``refused``: what transformers says to a static cache, by method (its older versions assist with none);
        ``same_greedy_text``: on how many prompts each wrote what plain decoding did. Or ``left_out``.
    """
    if pair.head is not None:
        return {"left_out": "an EAGLE-3 head reads the target's hidden states through hooks, which are not compiled"}
    config = on_every_device(CompileConfig())
    asked = {"cache_implementation": "static", "compile_config": config}
    plain = {one.name: one for one in methods(pair, max_new_tokens)}
    work: list[tuple[Pair, Method]] = []
    for mode in MODES:
        for who in WHO:
            one = plain[f"{who}, {mode}"]
            work += [(pair, one), (pair, Method(f"{one.name}, compiled", one.ours, {**one.arguments, **asked}))]
    inputs = [pair.inputs(text) for text in pair.prompts[:prompts]]
    longest_first = sorted(inputs, key=lambda one: -one["input_ids"].shape[1])
    warm_up, refused = dict[str, float](), dict[str, str]()
    with transformers_draft_length(pair.draft, draft_length(pair)):
        for _, one in track(work, f"{pair.name}: compiling"):

            def write(method: Method = one) -> None:
                for i, prompt in enumerate(longest_first):
                    method(pair, prompt, seed + i, VerificationStats())

            try:
                _, warm_up[one.name] = timed(write, pair.target.device)
            except ValueError as error:
                if one.ours:
                    raise
                refused[one.name] = str(error)
        work = [(pair, one) for _, one in work if one.name not in refused]
        found = run_in_turn(work, inputs, repeats, seed, track, f"{pair.name}: compiled, tokens/s")
    by_name = {one.method.name: one for one in found}
    ratios = []
    for mode in MODES:
        ours, theirs, neither = (f"{who}, {mode}" for who in reversed(WHO))
        ratios += [(f"{ours}, compiled", f"{other}, compiled") for other in (theirs, neither)]
        ratios += [(f"{ours}, compiled", theirs), (ours, theirs)]
        ratios += [(f"{one}, compiled", one) for one in (ours, theirs, neither)]
    texts = by_name["plain, greedy"].texts
    return {
        "settings": setting(
            pair,
            seed,
            prompts=len(inputs),
            repeats=repeats,
            max_new_tokens=max_new_tokens,
            num_assistant_tokens=draft_length(pair),
            compile_config=config.to_dict(),
        ),
        "methods": {name: one.summary() for name, one in by_name.items()},
        "ratios": [ratio(by_name[a], by_name[b]) for a, b in ratios if a in by_name and b in by_name],
        "warm_up_seconds": warm_up,
        "refused": refused,
        "same_greedy_text": {
            name: sum(text == other for text, other in zip(one.texts, texts, strict=True))
            for name, one in by_name.items()
            if "greedy" in name and one.texts is not texts
        },
    }
