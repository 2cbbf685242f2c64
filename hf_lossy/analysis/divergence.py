"""How far truncation-based verification is from truncation sampling: KL(emitted ‖ p_Θ) for a sampled draft and for a point
mass (Lemma 2 and Proposition 1 of 2607.26627)."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..accounting import account
from ..bench.estimates import Track, clustered_mean, untracked
from ..laws import Law, law
from ..loading import Pair
from ..numerics import one_hot, tv
from .drawing import Figure, axes_grid, line, shown, table
from .families import blended
from .settings import Settings, recorded, sampled, together

SHARES = tuple(2.0**-k for k in range(11))
"""How far the draft stands from the target on the way to the real one."""
LAWS = tuple(
    law(name, **{knob: strength, "fallback": fallback})
    for name, knob, strengths in (("speccascade", "p_base", (0.1, 0.3)), ("typical", "epsilon", (0.09, 0.2)))
    for strength in strengths
    for fallback in ("draft", "target")
)
DRAFTS = ("sampled", "point_mass")


class Divergence(NamedTuple):
    """Of what a law emits from its matched baseline p_Θ, one figure a row.

    Attributes:
        kl: KL(π ‖ p_Θ) in nats; infinite where something outside A is emitted.
        kl_on_set: the same of π renormalised on A; equal to it where nothing outside A is emitted.
        outside: π outside A.
        tv: TV(π, p_Θ).
    """

    kl: Float[Tensor, "*batch"]
    kl_on_set: Float[Tensor, "*batch"]
    outside: Float[Tensor, "*batch"]
    tv: Float[Tensor, "*batch"]


def divergence(one: Law, p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"]) -> Divergence:
    """π of a truncation-based law against its matched baseline at the same p."""
    pi, base = one.induced(p, q), one.matched_baseline().induced(p, q)
    on_set = pi.where(base > 0, 0.0)
    whole, inner = account(base, None, pi), account(base, None, on_set / on_set.sum(-1, keepdim=True))
    return Divergence(whole.kl, inner.kl, pi.where(base == 0, 0.0).sum(-1), whole.tv)


def likeliest(q: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
    """A point mass on the draft's likeliest token: what a deterministic drafter's candidate counts as."""
    return one_hot(q.argmax(-1), q)


def limit(one: Law, p: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch"]:
    """KL of a point mass as q → p: −log p_Θ(argmax p)."""
    return -one.matched_baseline().induced(p, p).amax(-1).log()


def measure(pair: Pair, settings: Settings, track: Track = untracked) -> dict[str, Any]:
    """The divergence at recorded prefixes, with drafts that come closer and closer to the target.

    Returns:
        ``laws``: for each law and for each share the mean ``distance`` TV(p, q), and for a ``sampled`` draft and a
        ``point_mass`` the figures of :class:`Divergence` (``kl`` is the mean where it is finite, ``infinite`` the share of
        positions where it is not); ``limit``: what the KL of the point mass goes to. Half-widths: 95 %, over texts.
    """
    clusters: list[int] = []
    values: dict[tuple[str, float, str], list[dict[str, float]]] = {}
    limits: dict[str, list[float]] = {str(one): [] for one in LAWS}
    distances: dict[float, list[float]] = {share: [] for share in SHARES}
    for texts, seen in together(recorded(pair, settings, track, num_assistant_tokens=1, **sampled(pair))):
        clusters += texts
        p, draft = seen.p[:, 0], seen.q[:, 0]
        for one in LAWS:
            limits[str(one)] += limit(one, p).tolist()
        for share in SHARES:
            q = blended(p, draft, share)
            distances[share] += tv(p, q).tolist()
            for one, (kind, given) in itertools.product(LAWS, (("sampled", q), ("point_mass", likeliest(q)))):
                rows = torch.stack(divergence(one, p, given), -1).tolist()
                found = (dict(zip(Divergence._fields, row, strict=True)) for row in rows)
                values.setdefault((str(one), share, kind), []).extend(found)
    return {
        "settings": settings.described(pair, positions=len(clusters)),
        "laws": [
            {
                "law": str(one),
                "limit": _mean(limits[str(one)], clusters),
                "shares": [
                    {
                        "share": share,
                        "distance": _mean(distances[share], clusters),
                        **{kind: summary(values[str(one), share, kind], clusters) for kind in DRAFTS},
                    }
                    for share in SHARES
                ],
            }
            for one in LAWS
        ],
    }


def summary(found: list[dict[str, float]], clusters: list[int]) -> dict[str, Any]:
    """Means over positions; the KL over those where it is finite."""
    finite = [math.isfinite(one["kl"]) for one in found]
    kept = [one["kl"] for one, ok in zip(found, finite, strict=True) if ok]
    return {
        "kl": _mean(kept, [c for c, ok in zip(clusters, finite, strict=True) if ok]),
        "infinite": _mean([float(not ok) for ok in finite], clusters),
        **{name: _mean([one[name] for one in found], clusters) for name in ("kl_on_set", "outside", "tv")},
    }


def _mean(values: list[float], clusters: list[int]) -> dict[str, Any] | None:
    return clustered_mean(values, [1.0] * len(values), clusters) if values else None


# --- for people -------------------------------------------------------------------------------------------------------


def draw(figures: dict[str, Any]) -> Figure:
    """KL on A and TV over the distance of the draft, one column for each family of sets."""
    figure, axes = axes_grid(2, 2)
    for column, name in enumerate(("speccascade", "typical")):
        for colour, one in enumerate(x for x in figures["laws"] if x["law"].startswith(name)):
            xs = [row["distance"]["mean"] for row in one["shares"]]
            for ax, figure_ in ((axes[0][column], "kl_on_set"), (axes[1][column], "tv")):
                for kind, style in (("sampled", "-"), ("point_mass", ":")):
                    if kind == "point_mass" and "fallback" in one["law"]:
                        continue  # nothing falls back where the candidate is in A
                    rows = [row[kind][figure_] for row in one["shares"]]
                    label = f"{one['law']}, {kind.replace('_', ' ')}"
                    line(ax, xs, rows, label, color=f"C{colour}", linestyle=style)
        for ax, what in ((axes[0][column], "KL(emitted on A ‖ p_Θ), nats"), (axes[1][column], "TV(emitted, p_Θ)")):
            ax.set(xscale="log", yscale="log", title=name, xlabel="mean TV(p, q), the draft approaching p", ylabel=what)
            ax.legend(fontsize=6)
    return figure


def describe(figures: dict[str, Any]) -> str:
    """The text beside the figure."""
    some = figures["settings"]
    columns = (
        "law",
        "draft",
        "share of the way",
        "mean TV(p, q)",
        "KL(emitted ‖ p_Θ)",
        "infinite %",
        "KL on A",
        "emitted off A",
        "TV(emitted, p_Θ)",
        "limit of KL",
    )
    rows = []
    for one in figures["laws"]:
        for kind in DRAFTS:
            for row in (one["shares"][0], one["shares"][-1]):
                found = row[kind]
                rows.append(
                    [
                        one["law"],
                        kind.replace("_", " "),
                        f"{row['share']:.4g}",
                        shown(row["distance"], 2, "g"),
                        shown(found["kl"], 3, "g"),
                        f"{100 * found['infinite']['mean']:.1f}",
                        shown(found["kl_on_set"], 3, "g"),
                        shown(found["outside"], 3, "g"),
                        shown(found["tv"], 3, "g"),
                        shown(one["limit"], 4) if kind == "point_mass" else "0 on A",
                    ]
                )
    return f"""# KL of truncation-based verification from truncation sampling

At recorded prefixes the law's π is held against its matched baseline p_Θ = p·1_A / p(A), with drafts
q_t = (1 − t) p + t q that go from the real draft (t = 1) to the target (t → 0).

- Sampled draft, draft fallback (Lemma 2): π = q·1_A / q(A), and KL(π ‖ p_Θ) = Σ_A q/q(A) · log(q/p) + log(p(A)/q(A)), which
  vanishes with the square of t.
- Point mass on the draft's likeliest token c (Proposition 1): π is a point mass on c where c is in A, and
  KL = −log p_Θ(c) = log(p(A)/p(c)). As q → p it goes to −log p_Θ(argmax p), which is 0 only where A has one token.
- Target fallback: (1 − q(A))(1 − p(A)) is emitted outside A, so that the KL is infinite wherever both models leave A. What
  falls on A approaches p_Θ as with the other fallback; TV(π, p_Θ) goes to (1 − p(A))², and not to 0.

The statements are the specification's; they are derived and tested in `tests/test_analysis.py`.

![figure](figure.png)

{some["positions"]} positions in {some["texts"]} texts of {some["pair"]}, T = {some["temperature"]:g}; ± half of a 95 %
interval over texts. KL(emitted ‖ p_Θ) is the mean over the positions where it is finite.

{table(columns, rows)}"""
