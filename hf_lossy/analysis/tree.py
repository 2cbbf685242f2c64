"""Trees against chains: acceptance by position of candidates that a head proposes, 1[C ∩ A ≠ ∅] against p_Θ(C)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..bench.estimates import Track, clustered_mean, untracked
from ..bench.rounds import Recorded
from ..bench.trees import shape_name
from ..couplings import sibling_walk
from ..errors import LossyError
from ..laws import Law, law
from ..loading import Pair
from ..tree import Tree
from .drawing import Figure, axes_grid, line, shown, table
from .settings import Settings, recorded

LAWS = (
    law("speccascade", p_base=0.1),
    law("speccascade", p_base=0.3),
    law("typical", epsilon=0.09),
    law("typical", epsilon=0.2),
)
READINGS = ("point_mass", "head", "baseline", "lossless")
"""Truncation-based verification with candidates that count as q = 1 and with the head's q; truncation sampling; p itself."""
LABELS = {
    "point_mass": "verification, q = 1: 1[C ∩ A ≠ ∅]",
    "head": "verification, head's q: q(C ∩ A)/q(A)",
    "baseline": "truncation sampling: p_Θ(C)",
    "lossless": "lossless: p(C)",
}


class Walk(NamedTuple):
    """The walk from the root when each node emits a given distribution, in expectation; one entry a node, the root first.

    Attributes:
        reach: the probability of getting there.
        accepts: the probability that one of its candidates is drawn there; 0 without candidates.
        asks: whether something is drawn there that may be a candidate: it has candidates, and the text has not ended.
    """

    reach: Float[Tensor, "nodes_1"]
    accepts: Float[Tensor, "nodes_1"]
    asks: Bool[Tensor, "nodes_1"]

    @property
    def accepted(self) -> float:
        """E[accepted tokens]."""
        return float(self.reach[1:].sum())


def walk(tree: Tree, emitted: Float[Tensor, "nodes_1 vocab"], stops: Bool[Tensor, "nodes"]) -> Walk:
    """Descend a tree of one row along tokens drawn from ``emitted``; nothing follows a candidate that ends the text."""
    tokens, parents = tree.tokens[0].tolist(), tree.parents[0].tolist()
    reach, over = [1.0] + [0.0] * len(tokens), [False] * (len(tokens) + 1)
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True), start=1):
        over[node] = over[parent] or bool(stops[node - 1])
        if not over[parent]:
            reach[node] = reach[parent] * float(emitted[parent, token])
    asks = below(tree).any(1) & ~torch.tensor(over)
    accepts = (emitted[:, tree.tokens[0]] * below(tree)).sum(1) * asks
    return Walk(emitted.new_tensor(reach), accepts, asks)


def below(tree: Tree) -> Bool[Tensor, "nodes_1 nodes"]:
    """Which candidates are children of each node of a tree of one row."""
    nodes = torch.arange(tree.tokens.shape[1] + 1)
    return tree.repeat(len(nodes)).below(nodes)


def at_nodes(seen: Recorded, emit: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Float[Tensor, "nodes_1 vocab"]:
    """``emit(p, q, candidates)`` at every node that has candidates, zero at the others."""
    found, nodes = torch.zeros_like(seen.p[0]), below(seen.tree).any(1).nonzero().flatten()
    candidates = seen.tree.repeat(len(nodes)).candidates(nodes)
    found[nodes] = emit(seen.p[0, nodes], seen.q[0, nodes], candidates)
    return found


def emission(one: Law, reading: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """What is emitted at a node under a law and a reading."""
    if reading == "point_mass":
        return lambda p, q, candidates: sibling_walk(one, p, candidates)
    if reading == "head":
        return lambda p, q, candidates: one.induced(p, q)
    baseline = one.matched_baseline() if reading == "baseline" else law("lossless")
    return lambda p, q, candidates: baseline.induced(p, p)


def shapes(pair: Pair) -> Iterator[tuple[str, dict[str, Any]]]:
    """A chain as deep as the pair's tree, and the tree."""
    tree = {name: value for name, value in pair.generate.items() if name != "max_new_tokens"}
    if tree.get("draft_mode", "tree") != "tree" or "tree_depth" not in tree:
        tree = {"draft_mode": "tree", "tree_size": 32, "tree_depth": 5, "tree_top_k": 4}
    yield "chain", {"draft_mode": "chain", "num_assistant_tokens": tree["tree_depth"] + 1}
    yield "tree", {"draft_mode": "tree", **tree}


def measure(pair: Pair, settings: Settings, track: Track = untracked) -> dict[str, Any]:
    """Acceptance by position of the pair's head.

    Returns:
        For each shape ``laws``: for each law and reading ``accepted``, the expected accepted tokens a round on its own walk,
        and ``positions``: for each level the probability that one of the candidates is drawn, at the nodes that lossless
        decoding reaches, each weighted with the probability of that; so that all readings are seen at the same nodes.
        ``agreement``: the share of the point-mass nodes whose acceptance is 1[C ∩ A ≠ ∅] to 1e-9.

    Raises:
        LossyError: a pair without a head.
    """
    if pair.head is None:
        raise LossyError(
            f"{pair.name} has no EAGLE-3 head, whose trees this is about: use --pair arithmetic-eagle3 or another head"
        )
    return {
        "settings": settings.described(pair),
        "shapes": [
            {"name": shape_name(s), "kind": kind, **of_shape(pair, settings, s, track)} for kind, s in shapes(pair)
        ],
    }


def of_shape(pair: Pair, settings: Settings, shape: dict[str, Any], track: Track) -> dict[str, Any]:
    """The figures of one shape."""
    clusters: list[int] = []
    accepted: dict[tuple[str, str], list[float]] = {}
    levels: dict[tuple[str, str], list[list[float]]] = {}
    weights: list[list[float]] = []
    agreeing = nodes = 0
    lossless = emission(LAWS[0], "lossless")
    for i, seen in recorded(pair, settings, track, **shape):
        clusters.append(i)
        stops, depths = seen.stops[0], seen.tree.depths[0]
        own = walk(seen.tree, at_nodes(seen, lossless), stops)
        weight = own.reach * own.asks
        weights.append(by_depth(weight, depths))
        for one in LAWS:
            for reading in READINGS:
                found = own
                if reading != "lossless":
                    found = walk(seen.tree, at_nodes(seen, emission(one, reading)), stops)
                accepted.setdefault((str(one), reading), []).append(found.accepted)
                levels.setdefault((str(one), reading), []).append(by_depth(weight * found.accepts, depths))
                if reading == "point_mass":
                    hit = hits(one, seen)
                    agreeing += int(((found.accepts - hit).abs() < 1e-9)[found.asks].sum())
                    nodes += int(found.asks.sum())
    weighed = columns(weights)
    levels_of = {key: columns(rows) for key, rows in levels.items()}
    ones = [1.0] * len(clusters)
    return {
        "rounds": len(clusters),
        "agreement": agreeing / nodes,
        "laws": [
            {
                "law": str(one),
                "reading": reading,
                "accepted": clustered_mean(accepted[str(one), reading], ones, clusters),
                "positions": [
                    clustered_mean(values, of, clusters)
                    for values, of in zip(levels_of[str(one), reading], weighed, strict=True)
                    if sum(of) > 0
                ],
            }
            for one in LAWS
            for reading in READINGS
        ],
    }


def hits(one: Law, seen: Recorded) -> Float[Tensor, "nodes_1"]:
    """1[C ∩ A ≠ ∅] at each node, with A the support of the law's matched baseline."""
    allowed = one.matched_baseline().induced(seen.p[0], seen.p[0]) > 0
    return (allowed[:, seen.tree.tokens[0]] & below(seen.tree)).any(1).to(seen.p.dtype)


def by_depth(values: Float[Tensor, "nodes_1"], depths: Tensor) -> list[float]:
    """Sums over the nodes of each depth, the root's first."""
    return torch.zeros(int(depths.max()) + 1, dtype=values.dtype).index_add_(0, depths, values.cpu()).tolist()


def columns(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """The levels of rounds of different depth, each over all rounds; 0 where a round was not that deep."""
    return [list(level) for level in itertools.zip_longest(*rows, fillvalue=0.0)]


# --- for people -------------------------------------------------------------------------------------------------------


def draw(figures: dict[str, Any]) -> Figure:
    """Acceptance over the position, chain above tree, a column a law."""
    figure, axes = axes_grid(2, len(LAWS))
    for row, shape in zip(axes, figures["shapes"], strict=True):
        for ax, one in zip(row, LAWS, strict=True):
            for found in shape["laws"]:
                if found["law"] == str(one):
                    places = found["positions"]
                    line(ax, range(1, len(places) + 1), places, LABELS[found["reading"]])
            ax.set(title=f"{one}, {shape['name']}", xlabel="position", ylabel="acceptance", ylim=(0, 1.03))
            ax.xaxis.get_major_locator().set_params(integer=True)
    axes[0][0].legend(fontsize=7, loc="lower left")
    return figure


def describe(figures: dict[str, Any]) -> str:
    """The text beside the figure."""
    some = figures["settings"]
    parts = [
        f"""# Trees against chains: acceptance by position

C: the candidates at a node; A: the allowed set of p there. Where each candidate counts as q = 1, as in EAGLE's code,
truncation-based verification keeps one of them with probability 1[C ∩ A ≠ ∅], whatever p says about the tokens of A;
truncation sampling under lossless verification keeps one with probability p_Θ(C) (paper H.2). A chain has one candidate at a
node. With the head's own q the law keeps q(C ∩ A)/q(A). All of them are taken at the same nodes: those that lossless
decoding reaches, weighted with the probability of that. "accepted a round" is the expectation on each method's own walk.

![figure](figure.png)

{some["texts"]} texts of {some["pair"]}, T = {some["temperature"]:g}; ± half of a 95 % interval over texts. Typical
acceptance asks for A anew on what is left of p after a refused candidate, so that it may differ from 1[C ∩ A ≠ ∅].
"""
    ]
    for shape in figures["shapes"]:
        parts.append(
            f"\n## {shape['name']}\n\n{shape['rounds']} rounds; at {100 * shape['agreement']:.2f} % of the nodes "
        )
        parts.append("the acceptance with q = 1 is 1[C ∩ A ≠ ∅] exactly.\n\n")
        deepest = max(len(one["positions"]) for one in shape["laws"])
        heads = ("law", "reading", "accepted a round", *(f"position {i + 1}" for i in range(deepest)))
        parts.append(table(heads, [_row(one, deepest) for one in shape["laws"]]))
    return "".join(parts)


def _row(one: dict[str, Any], deepest: int) -> Sequence[str]:
    places = [shown(place, 3) for place in one["positions"]]
    return [one["law"], LABELS[one["reading"]], shown(one["accepted"], 3), *places, *[""] * (deepest - len(places))]
