"""What truncating p does to block efficiency: gain on the retained support against loss of the discarded tail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..accounting import account
from ..bench.efficiency import expected_tokens
from ..bench.estimates import Track, clustered_mean, untracked
from ..couplings import BlockCoupling, TokenCoupling
from ..laws import Law, law
from ..loading import Pair
from ..numerics import excess
from . import families
from .drawing import Figure, axes_grid, line, shown, table
from .settings import Settings, recorded, sampled, together

STRENGTHS = {
    "min_p": (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9),
    "eta": (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.4),
}
LABELS = {"min_p": "min-p", "eta": "eta"}
KNOBS = {"min_p": "p_base", "eta": "ε (δ = √ε)"}
FAMILY_GAMMA, FAMILY_PAIRS = 7, 400
STRICT = law("lossless")


class Change(NamedTuple):
    """E[tokens a round] after minus before, as gain minus loss, both at least 0."""

    gain: Float[Tensor, "batch"]
    loss: Float[Tensor, "batch"]


def split(
    before: Float[Tensor, "batch drafted"],
    after: Float[Tensor, "batch drafted"],
    gained: Float[Tensor, "batch drafted"],
    lost: Float[Tensor, "batch drafted"],
    stops: Bool[Tensor, "batch drafted"] | None = None,
) -> Change:
    """The change of 1 + Σ_j Π_{i≤j} h_i when acceptances h change position by position, told apart exactly.

        Π_{i≤j} h'_i − Π_{i≤j} h_i = Σ_{i≤j} Π_{k<i} h'_k · (h'_i − h_i) · Π_{i<k≤j} h_k,   h'_i − h_i = gained_i − lost_i

    Args:
        before, after: h and h'.
        gained, lost: what makes their difference.
        stops: drafted tokens that end the text; nothing after the first of them is emitted.
    """
    ones = torch.ones_like(before[:, :1])
    reached = torch.cat([ones, after[:, :-1]], 1).cumprod(1)
    alive = torch.ones_like(before) if stops is None else (~stops).to(before.dtype).cumprod(1)
    behind = torch.zeros_like(before)  # Σ_{j≥i} alive_j Π_{i<k≤j} h_k
    tail = torch.zeros_like(before[:, 0])
    for i in reversed(range(before.shape[1])):
        behind[:, i] = tail = alive[:, i] + (tail * before[:, i + 1] if i + 1 < before.shape[1] else 0)
    weights = reached * behind
    return Change((weights * gained).sum(1), (weights * lost).sum(1))


def of_round(truncated: TokenCoupling, lossless: TokenCoupling, stops: Bool[Tensor, "batch drafted"]) -> Change:
    """The change of a round's expected tokens under the token coupling, given the drafted block: a drafted token in A is
    accepted more often, one outside never."""
    before, after = lossless.acceptance(), truncated.acceptance()
    return split(before, after, excess(after, before), excess(before, after), stops)


def of_positions(one: Law, p: Float[Tensor, "batch vocab"], q: Float[Tensor, "batch vocab"], gamma: int) -> Change:
    """The change where each pair (p, q) stands at all γ positions, so that E = Σ_{k≤γ} α^k with α = Σ min(π, q)."""
    pi = one.induced(p, q)
    before, after = (account(p, q, x).acceptance for x in (p, pi))
    kept = torch.minimum(p, q), torch.minimum(pi, q)
    gained, lost = excess(kept[1], kept[0]).sum(-1), excess(kept[0], kept[1]).sum(-1)
    return split(*(x[:, None].expand(-1, gamma) for x in (before, after, gained, lost)))


def laws() -> Iterator[tuple[str, float, Law]]:
    """Name, strength and law of everything that is compared."""
    for name, strengths in STRENGTHS.items():
        for strength in strengths:
            yield name, strength, law(name, **{"p_base" if name == "min_p" else "epsilon": strength})


def measure(pair: Pair, settings: Settings, track: Track = untracked) -> dict[str, Any]:
    """ΔBE of min-p and eta on recorded rounds, and on random families.

    Returns:
        ``lossless``: tokens a round, token and block coupling. ``laws``: for each law the change under the token coupling
        (``net`` = ``gain`` − ``loss``), under block verification (``block_net``), and the ``discarded`` mass 1 − p(A) at the
        prefixes. ``families``: the same without block verification. Means with half-widths of 95 % intervals, over texts
        and over pairs.
    """
    clusters: list[int] = []
    plain: dict[str, list[float]] = {"token": [], "block": []}
    found: dict[str, dict[str, list[float]]] = {}
    longest = 0
    for texts, seen in together(recorded(pair, settings, track, **sampled(pair))):
        clusters += texts
        longest = max(longest, seen.q.shape[1])
        lossless = seen.verified(TokenCoupling, STRICT)
        block = expected_tokens(seen.verified(BlockCoupling, STRICT), seen.stops)
        plain["token"] += expected_tokens(lossless, seen.stops).tolist()
        plain["block"] += block.tolist()
        for _, _, one in laws():
            change = of_round(seen.verified(TokenCoupling, one), lossless, seen.stops)
            p, q = seen.p[:, 0], seen.q[:, 0]
            figures = {
                "gain": change.gain,
                "loss": change.loss,
                "net": change.gain - change.loss,
                "block_net": expected_tokens(seen.verified(BlockCoupling, one), seen.stops) - block,
                "discarded": account(p, q, one.induced(p, q)).tv,
            }
            for name, values in figures.items():
                found.setdefault(str(one), {}).setdefault(name, []).extend(values.tolist())
    ones = [1.0] * len(clusters)
    return {
        "settings": settings.described(pair, gamma=longest, rounds_recorded=len(clusters)),
        "lossless": {name: clustered_mean(values, ones, clusters) for name, values in plain.items()},
        "laws": [
            {
                "law": name,
                "strength": strength,
                **{k: clustered_mean(v, ones, clusters) for k, v in found[str(one)].items()},
            }
            for name, strength, one in laws()
        ],
        "families": [on_family(name, sharpness, settings.seed) for name, sharpness in families.SHARPNESS.items()],
    }


def on_family(name: str, sharpness: float, seed: int) -> dict[str, Any]:
    """The change on a random family, its pairs at all positions of a round."""
    p, q = families.random_family(sharpness, FAMILY_PAIRS, seed=seed)
    ones, pairs = [1.0] * len(p), range(len(p))
    found = []
    for which, strength, one in laws():
        change = of_positions(one, p, q, FAMILY_GAMMA)
        figures = {"gain": change.gain, "loss": change.loss, "net": change.gain - change.loss}
        figures["discarded"] = account(p, q, one.induced(p, q)).tv
        means = {k: clustered_mean(v.tolist(), ones, pairs) for k, v in figures.items()}
        found.append({"law": which, "strength": strength, **means})
    acceptance = clustered_mean(account(p, q, p).acceptance.tolist(), ones, pairs)
    return {"name": name, "pairs": len(p), "gamma": FAMILY_GAMMA, "acceptance": acceptance, "laws": found}


# --- for people -------------------------------------------------------------------------------------------------------


def draw(figures: dict[str, Any]) -> Figure:
    """Gain, loss and net over the strength; net over the discarded mass, recorded and for the families."""
    figure, axes = axes_grid(2, 3)
    of = {name: [one for one in figures["laws"] if one["law"] == name] for name in STRENGTHS}
    for ax, (name, rows) in zip(axes[0], of.items(), strict=False):
        xs = [row["strength"] for row in rows]
        line(ax, xs, [row["gain"] for row in rows], "gain on A")
        line(ax, xs, [row["loss"] for row in rows], "− loss off A", sign=-1)
        line(ax, xs, [row["net"] for row in rows], "net, token", color="black")
        line(ax, xs, [row["block_net"] for row in rows], "net, block", color="gray", linestyle="--")
        ax.set(title=f"{LABELS[name]}, recorded rounds", xlabel=KNOBS[name], ylabel="Δ tokens a round")
    panels = [("recorded rounds", figures["laws"]), *((f["name"], f["laws"]) for f in figures["families"])]
    for ax, (title, rows) in zip([axes[0][2], *axes[1]], panels, strict=True):
        for name in STRENGTHS:
            own = [row for row in rows if row["law"] == name]
            line(ax, [row["discarded"]["mean"] for row in own], [row["net"] for row in own], LABELS[name])
        ax.set(title=title, xlabel="discarded mass 1 − p(A)", ylabel="Δ tokens a round")
    for ax in axes.flat:
        ax.axhline(0, color="black", linewidth=0.6)
        ax.legend(fontsize="small")
    return figure


def describe(figures: dict[str, Any]) -> str:
    """The text beside the figure."""
    some, plain = figures["settings"], figures["lossless"]
    columns = ("law", "discarded 1 − p(A)", "gain on A", "loss off A", "net, token", "net, block")

    def rows(found: list[dict[str, Any]]) -> list[list[str]]:
        keys = ("discarded", "gain", "loss", "net", "block_net")
        return [[f"{one['law']}({one['strength']:g})", *(shown(one[k], 4) for k in keys if k in one)] for one in found]

    parts = [
        f"""# What truncating p does to block efficiency

Tokens a round of truncation sampling under lossless verification (min-p, eta) minus those of lossless sampling, at the same
recorded rounds: the same prefixes, the same drafted tokens, exact expectations over the coins. The change is told apart into
what is gained because tokens of A have more probability after truncation, and what is lost because a drafted token outside
A is always refused (paper Section 5): h' − h is positive on A and −min(1, p/q) off it, and the change of
1 + Σ_j Π_{{i≤j}} h_i is the sum of these differences with the weights of a telescoping product. The draft is not truncated.

![figure](figure.png)

{some["rounds_recorded"]} rounds of up to γ = {some["gamma"]} tokens in {some["texts"]} texts of {some["pair"]},
T = {some["temperature"]:g}; ± half of a 95 % interval over texts. Lossless: {shown(plain["token"], 3)} tokens a round
token by token, {shown(plain["block"], 3)} blockwise.
""",
        table(columns, rows(figures["laws"])),
        f"""
## Random families

p ∝ rank^−α, α from 1.2 to 3, 1,000 tokens; the draft's scores are off by normal noise of {families.NOISE:g} and multiplied
with {", ".join(f"{v:g} ({k})" for k, v in families.SHARPNESS.items())}. Each pair stands at all {FAMILY_GAMMA} positions of
a round: E = Σ_{{k≤γ}} α^k. ± half of a 95 % interval over pairs.
""",
    ]
    for one in figures["families"]:
        parts.append(f"\n{one['name']}, {one['pairs']} pairs, lossless acceptance {shown(one['acceptance'], 3)}:\n\n")
        parts.append(table(columns[:-1], rows(one["laws"])))
    return "".join(parts)
