"""Lenience: Δ, the share of the draft's deviation that is taken back, and the ceiling, as functions of TV(p, q)."""

from __future__ import annotations

import bisect
import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..accounting import account
from ..bench.estimates import Track, clustered_mean, untracked
from ..laws import Law, law
from ..loading import Pair
from ..numerics import tv
from .drawing import Figure, axes_grid, line, shown, table
from .families import two_tokens
from .settings import Settings, recorded, sampled, together

LENIENCES = (0.8, 0.6, 0.4, 0.2)
EDGES = (0.001, 0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.7)
"""Between these values of TV(p, q) positions are averaged; below the first Δ is a quotient of rounding errors."""
CEILINGS = (law("lenience", lenience=0.4), law("adaptive_ensemble", lenience=0.4), law("cos", draft_weight=0.4))
"""One law with a ceiling and two without, whose largest ratio π/p is compared."""
FIRST = 0.1
"""p of the first token of the two-token pairs."""


def delta(one: Law, p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch"]:
    """Δ = 1 − TV(π, p) / TV(q, p): the share of the draft's deviation from the target that a law takes back. For lenience it
    is Σ(q − p/ℓ)+ / Σ(p − q)+, the Δ of Eq. 10 of 2607.26627."""
    return 1 - account(p, q, one.induced(p, q)).tv / tv(p, q)


def measure(pair: Pair, settings: Settings, track: Track = untracked) -> dict[str, Any]:
    """Δ and overshoot at recorded prefixes, by TV(p, q), and for two-token pairs.

    Returns:
        ``bins``: for each range of TV(p, q) its positions, the mean Δ of each ℓ, and for each law of ``CEILINGS`` the mean
        and the largest max log(π/p), None where it is infinite. ``two_tokens``: Δ over TV(p, q).
    """
    bins: list[list[int]] = [[] for _ in EDGES]
    distances: list[list[float]] = [[] for _ in EDGES]
    deltas: list[dict[float, list[float]]] = [{ell: [] for ell in LENIENCES} for _ in EDGES]
    overshoots: list[dict[str, list[float]]] = [{str(one): [] for one in CEILINGS} for _ in EDGES]
    positions = 0
    for texts, seen in together(recorded(pair, settings, track, num_assistant_tokens=1, **sampled(pair))):
        positions += len(texts)
        p, q = seen.p[:, 0], seen.q[:, 0]
        each = tv(p, q).tolist()
        taken_back = {ell: delta(law("lenience", lenience=ell), p, q).tolist() for ell in LENIENCES}
        ratios = {str(one): account(p, q, one.induced(p, q)).max_log_ratio.tolist() for one in CEILINGS}
        for row, (i, distance) in enumerate(zip(texts, each, strict=True)):
            k = bisect.bisect_right(EDGES, distance) - 1
            if k < 0:
                continue
            bins[k].append(i)
            distances[k].append(distance)
            for ell in LENIENCES:
                deltas[k][ell].append(taken_back[ell][row])
            for one in CEILINGS:
                overshoots[k][str(one)].append(ratios[str(one)][row])
    found = []
    for k, clusters in enumerate(bins):
        if not clusters:
            continue
        ones = [1.0] * len(clusters)
        found.append(
            {
                "from": EDGES[k],
                "to": EDGES[k + 1] if k + 1 < len(EDGES) else 1.0,
                "positions": len(clusters),
                "distance": clustered_mean(distances[k], ones, clusters),
                "delta": {f"{ell:g}": clustered_mean(deltas[k][ell], ones, clusters) for ell in LENIENCES},
                "overshoot": {
                    name: {**clustered_mean(x, ones, clusters), "largest": max(x)} if math.isfinite(max(x)) else None
                    for name, x in overshoots[k].items()
                },
            }
        )
    grid = torch.linspace(0.0, 1 - FIRST, 81, dtype=torch.float64)[1:]
    p, q = two_tokens(FIRST, grid)
    return {
        "settings": settings.described(pair, positions=positions, below_the_first_bin=positions - sum(map(len, bins))),
        "bins": found,
        "two_tokens": {
            "p": FIRST,
            "distance": grid.tolist(),
            "delta": {f"{ell:g}": delta(law("lenience", lenience=ell), p, q).tolist() for ell in LENIENCES},
        },
    }


# --- for people -------------------------------------------------------------------------------------------------------


def draw(figures: dict[str, Any]) -> Figure:
    """Δ of two-token pairs and at recorded prefixes; the overshoot beside the ceiling."""
    figure, axes = axes_grid(1, 3)
    by_hand, real, ceiling = axes[0]
    for ell in LENIENCES:
        by_hand.plot(
            figures["two_tokens"]["distance"], figures["two_tokens"]["delta"][f"{ell:g}"], label=f"ℓ = {ell:g}"
        )
        rows = [one["delta"][f"{ell:g}"] for one in figures["bins"]]
        line(real, [one["distance"]["mean"] for one in figures["bins"]], rows, f"ℓ = {ell:g}")
    by_hand.set(title=f"two tokens, p = ({FIRST:g}, {1 - FIRST:g})", xlabel="TV(p, q)", ylabel="Δ")
    real.set(title="recorded prefixes", xlabel="TV(p, q)", ylabel="Δ")
    for colour, one in enumerate(CEILINGS):
        kept = [b for b in figures["bins"] if b["overshoot"][str(one)] is not None]
        xs = [b["distance"]["mean"] for b in kept]
        found = [b["overshoot"][str(one)] for b in kept]
        line(ceiling, xs, found, f"{one}, mean", color=f"C{colour}")
        ceiling.plot(xs, [x["largest"] for x in found], "x", color=f"C{colour}", label=f"{one}, largest")
    bound = CEILINGS[0].overshoot_bound
    ceiling.axhline(bound, color="black", linestyle="--", label=f"log 1/ℓ = {bound:.2f}")
    ceiling.set(title="the ceiling", xlabel="TV(p, q)", ylabel="max log(π/p), nats")
    for ax in axes.flat:
        ax.legend(fontsize="small")
    return figure


def describe(figures: dict[str, Any]) -> str:
    """The text beside the figure."""
    some = figures["settings"]
    columns = ("TV(p, q)", "positions", *(f"Δ at ℓ = {ell:g}" for ell in LENIENCES))
    ceilings = ("TV(p, q)", *(f"{one}: {what}" for one in CEILINGS for what in ("mean", "largest")))
    rows, others = [], []
    for one in figures["bins"]:
        between = f"{one['from']:g} to {one['to']:g}"
        rows.append([between, str(one["positions"]), *(shown(one["delta"][f"{ell:g}"], 3) for ell in LENIENCES)])
        cells = []
        for found in (one["overshoot"][str(ceiling)] for ceiling in CEILINGS):
            cells += ["∞", "∞"] if found is None else [shown(found, 2), f"{found['largest']:.2f}"]
        others.append([between, *cells])
    return f"""# Lenience: Δ and the ceiling

Lenience emits q + Δ(p − q) where q ≤ p, with Δ = Σ(q − p/ℓ)+ / Σ(p − q)+: what the ceiling p/ℓ cuts off the draft goes
back to the tokens that the draft has too little of (Eq. 10 and Figure 8 of the paper). Δ = 0 keeps the draft; Δ = 1 is the
target. Here Δ = 1 − TV(π, p)/TV(q, p) of the law as it runs.

Left: p = ({FIRST:g}, {1 - FIRST:g}) beside q = p + (d, −d), where Δ = (1 − {FIRST:g} (1/ℓ − 1)/d)+: no mass is taken back as
long as the draft stays below the ceiling. Middle: the same at recorded prefixes. Right: the largest log(π/p) at a prefix.
Lenience stays below log 1/ℓ; the ensembles have no ceiling.

![figure](figure.png)

{some["positions"]} positions in {some["texts"]} texts of {some["pair"]}, T = {some["temperature"]:g}, of which
{some["below_the_first_bin"]} have TV(p, q) < {EDGES[0]:g} and are left out; ± half of a 95 % interval over texts.

{table(columns, rows)}
Largest log(π/p) at a prefix, in nats (log 1/0.4 = {CEILINGS[0].overshoot_bound:.2f}): mean over prefixes, and the largest.

{table(ceilings, others)}"""
