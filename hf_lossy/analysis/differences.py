"""Where the same prompt and seed part ways under a law and its matched baseline, and the tokens' p, q and π there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..accounting import account
from ..bench.estimates import Track, clustered_mean, untracked
from ..bench.rounds import record
from ..bench.throughput import SAMPLED
from ..evaluation.statistics import wilson
from ..generation import generate
from ..laws import Law, law
from ..loading import Pair
from .drawing import Figure, axes_grid, shown, table
from .settings import Settings, sampled

LAWS = (
    law("lenience", lenience=0.4),
    law("cos", draft_weight=0.4),
    law("adaptive_ensemble", lenience=0.4),
    law("speccascade", p_base=0.1),
    law("typical", epsilon=0.09),
)
SHOWN = 5
"""Examples a law in the text; the result file has them all."""
AFTERWARDS = 10
"""Tokens of each text that are shown from the divergence on."""


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first index at which two sequences have different tokens; None where one begins with the other."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)


def measure(pair: Pair, settings: Settings, track: Track = untracked) -> dict[str, Any]:
    """Decode each prompt under every law and its baseline with the same seed, and look at the first divergence.

    p, q and π are those after the common prefix. (An EAGLE-3 head's q depends on how deep in a draft a position stands;
    shown is the one right after the prefix.)

    Returns:
        ``laws``: for each law how many texts ``parted``, their share with Wilson's interval, where on average, the mean p
        and q of both tokens, TV(π, π of the baseline) there, and all ``examples``.
    """
    texts: dict[tuple[str, int], list[int]] = {}
    prompts = pair.prompts[: settings.texts]
    arguments = {**pair.drafting(**sampled(pair)), **SAMPLED, "temperature": settings.temperature}
    arguments["max_new_tokens"] = settings.max_new_tokens
    used = list(dict.fromkeys([*LAWS, *(one.matched_baseline() for one in LAWS)]))
    lengths = []
    for i, prompt in enumerate(track(prompts, f"{pair.name}: the same seeds under each law")):
        inputs = pair.inputs(prompt)
        lengths.append(inputs["input_ids"].shape[1])
        for one in used:
            generator = torch.Generator(pair.target.device).manual_seed(settings.seed + i)
            ids = generate(pair.target, **inputs, **arguments, verification=one, generator=generator)
            texts[str(one), i] = ids[0].tolist()
    found = []
    for one in LAWS:
        both = [(texts[str(one), i], texts[str(one.matched_baseline()), i]) for i in range(len(prompts))]
        places = [(i, at) for i, (a, b) in enumerate(both) if (at := first_difference(a, b)) is not None]
        examples = [looked_at(pair, one, settings, i, lengths[i], at, *both[i]) for i, at in places]
        found.append({"law": str(one), "baseline": str(one.matched_baseline()), **summary(examples, len(prompts))})
    return {"settings": settings.described(pair, prompts=len(prompts)), "laws": found}


def looked_at(
    pair: Pair, one: Law, settings: Settings, prompt: int, start: int, at: int, ours: list[int], theirs: list[int]
) -> dict[str, Any]:
    """One divergence: the words around it, and what both laws thought of both tokens."""
    text = torch.tensor([ours[:at]], device=pair.target.device)
    generator = torch.Generator(pair.target.device).manual_seed(settings.seed)
    drafting = {**sampled(pair), "num_assistant_tokens": 1}
    seen = next(record(pair, text, [at], generator, settings.temperature, **drafting))
    p, q = seen.p[0, 0], seen.q[0, 0]
    pi, base = one.induced(p, q), one.matched_baseline().induced(p, q)

    def token(ids: list[int]) -> dict[str, Any]:
        which = ids[at]
        values = {name: float(x[which]) for name, x in (("p", p), ("q", q), ("pi", pi), ("pi_baseline", base))}
        return {"token": pair.tokenizer.decode([which]), **values, "text": words(pair, ids[at : at + AFTERWARDS])}

    return {
        "prompt": prompt,
        "position": at - start,
        "before": words(pair, ours[max(start, at - AFTERWARDS) : at]),
        "law": token(ours),
        "baseline": token(theirs),
        "tv": float(account(base, None, pi).tv),
    }


def words(pair: Pair, ids: Sequence[int]) -> str:
    """Tokens as text on one line."""
    return str(pair.tokenizer.decode(list(ids))).replace("\n", "⏎")


def summary(examples: list[dict[str, Any]], prompts: int) -> dict[str, Any]:
    """How many parted, where, and what p and q say about the tokens there."""

    def mean(values: list[float]) -> dict[str, Any] | None:
        return clustered_mean(values, [1.0] * len(values), range(len(values))) if values else None

    return {
        "parted": len(examples),
        "share": len(examples) / prompts,
        "share_interval": wilson(len(examples), prompts),
        "position": mean([float(one["position"]) for one in examples]),
        "tv": mean([one["tv"] for one in examples]),
        **{
            f"{name}_of_{whose}": mean([one[whose][name] for one in examples])
            for whose in ("law", "baseline")
            for name in ("p", "q")
        },
        "examples": examples,
    }


# --- for people -------------------------------------------------------------------------------------------------------


def draw(figures: dict[str, Any]) -> Figure:
    """p over q of the two tokens at each first divergence."""
    figure, axes = axes_grid(1, len(LAWS))
    for ax, one in zip(axes[0], figures["laws"], strict=True):
        for whose, marker in (("law", "o"), ("baseline", "x")):
            xs, ys = ([example[whose][name] for example in one["examples"]] for name in ("q", "p"))
            ax.scatter(xs, ys, marker=marker, s=14, alpha=0.6, label=one[whose])
        ax.set(title=f"{one['parted']} first divergences", xlabel="q of the token", ylabel="p of the token")
        ax.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
        ax.legend(fontsize="small")
    return figure


def describe(figures: dict[str, Any]) -> str:
    """The text beside the figure."""
    some = figures["settings"]
    columns = (
        *("law", "baseline", "parted", "% [95 %]", "token"),
        *(f"{name} of {whose}'s" for name in ("p", "q") for whose in ("law", "baseline")),
        "TV(π, π of baseline)",
    )
    rows = []
    for one in figures["laws"]:
        low, high = one["share_interval"]
        share = f"{100 * one['share']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
        rows.append(
            [
                one["law"],
                one["baseline"],
                f"{one['parted']}/{some['prompts']}",
                share,
                shown(one["position"], 1),
                *(shown(one[f"{name}_of_{whose}"], 3) for name in ("p", "q") for whose in ("law", "baseline")),
                shown(one["tv"], 3),
            ]
        )
    parts = [
        f"""# Where a law and its baseline part ways

The same prompt and the same seed, decoded under a law and under its matched baseline; the first token that differs, and what
the target (p), the draft (q), the law (π) and the baseline say about both tokens after the common prefix.

![figure](figure.png)

{some["prompts"]} prompts of {some["pair"]}, T = {some["temperature"]:g}, at most {some["max_new_tokens"]} tokens; Wilson's
intervals for shares, else ± half of a 95 % interval over texts. "token": how many tokens after the prompt.

{table(columns, rows)}"""
    ]
    for one in figures["laws"]:
        parts.append(f"\n## {one['law']} against {one['baseline']}\n\n")
        rows = []
        for example in one["examples"][:SHOWN]:
            ours, theirs = example["law"], example["baseline"]
            for who, found in ((one["law"], ours), (one["baseline"], theirs)):
                numbers = (f"{found[name]:.3f}" for name in ("p", "q", "pi", "pi_baseline"))
                rows.append([f"{example['prompt']}: …{example['before']}", who, found["text"], *numbers])
        parts.append(table(("prompt, before", "decoded under", "goes on with", "p", "q", "π", "π of baseline"), rows))
    return "".join(parts)
