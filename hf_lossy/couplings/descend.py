"""Couplings of deterministic candidates: draw a token from π at a node, and descend if it is a candidate there."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..laws.base import Law
from ..numerics import sample, widened
from ..tree import Tree
from .base import Coupling, leading, register_coupling


def descend(
    tree: Tree,
    draw: Callable[[list[list[int]]], Int[Tensor, "batch"]],
    ends: Collection[int] = (),
) -> tuple[list[list[int]], list[int], list[bool]]:
    """Walk from the root of each row's tree along the tokens that are drawn, all rows one node at a time.

    Args:
        tree: the candidates.
        draw: the token drawn for each row from π at the last node of its path (nodes from the root on, the root included).
            Rows that have arrived are asked again, and what they get is not used.
        ends: tokens that end a walk at once, for nothing will be emitted after them.

    Returns:
        For each row the nodes that were reached, the root included; the token drawn at the last of them, which is emitted
        after their tokens; and whether no candidates were left there. Accepts π(children) at each node, whatever the order
        of the children, and emits exactly π.
    """
    rows = len(tree.tokens)
    paths, last, leaves = [[0] for _ in range(rows)], [0] * rows, [0] * rows
    walking = set(range(rows))
    while walking:
        drawn, nodes = draw(paths), tree.tokens.new_tensor([path[-1] for path in paths])
        child, leaf = tree.child(nodes, drawn), tree.is_leaf(nodes)
        # the host waits for the device once at each level
        found = torch.stack([drawn, child, leaf.long()], 1).tolist()
        for row in list(walking):
            last[row], node, leaves[row] = found[row]
            if node:
                paths[row].append(node)
            if not node or last[row] in ends:
                walking.discard(row)
    return paths, last, list(map(bool, leaves))


def sibling_walk(
    law: Law, p: Float[Tensor, "*batch vocab"], candidates: Int[Tensor, "*batch candidates"]
) -> Float[Tensor, "*batch vocab"]:
    """What a law emits at a node whose candidates count as q = 1 each (``draft_probs="point_mass"``), as in EAGLE's code.

    The candidates are visited in order: c is kept with probability ``law.keeps(p, c)``; a refused one is zeroed and p
    renormalised; where none is kept, a token is drawn from what is left of p. Without candidates that is p itself.

    Args:
        law: asked what it does with each candidate.
        p: the target's distribution.
        candidates: different tokens, in the draft's order of preference; −1: none.
    """
    if law.is_strict:  # p(c) each, and p renormalised: that is p
        return p
    # in double, since what is left may be a tiny part of p, and its size comes out as a difference
    left = widened(p)
    left = left / left.sum(-1, keepdim=True)
    emitted, reach = torch.zeros_like(left), torch.ones_like(left[..., :1])
    for k in range(candidates.shape[-1]):
        none, c = candidates[..., k : k + 1] < 0, candidates[..., k : k + 1].clamp_min(0)
        keeps = law.keeps(left, c.squeeze(-1)).unsqueeze(-1).masked_fill(none, 0.0)
        emitted.scatter_add_(-1, c, reach * keeps)
        reach = reach * (1 - keeps)
        left = left.scatter(-1, c, left.gather(-1, c).where(none, 0.0))
        left = left / left.sum(-1, keepdim=True).clamp_min(torch.finfo(left.dtype).tiny)
    return emitted.add_(reach * left).to(p.dtype)


@register_coupling
class DescendCoupling(Coupling):
    """A chain of deterministic candidates (prompt lookup): draw y ~ π at each position, go on while y is the candidate.

    Exact for any candidates that are a function of the prefix. (``min(1, p/q)`` on such candidates is *not*: they were
    never sampled from q.)
    """

    name = "tree"
    samples_draft = False

    def draw(self, coins: Float[Tensor, "batch drafted"]) -> Int[Tensor, "batch drafted"]:
        """The token drawn at each position."""
        return sample(self.pi, coins)

    def accepted(self, coins: Float[Tensor, "batch drafted"]) -> Int[Tensor, "batch"]:
        self._drawn = self.draw(coins)
        return leading(self._drawn == self.drafted)

    def replace(self, accepted: Int[Tensor, "batch"], coins: Float[Tensor, "batch"]) -> Int[Tensor, "batch"]:
        return self._drawn.gather(1, accepted.clamp_max(self.drafted.shape[1] - 1)[:, None]).squeeze(1)


class PointMassCoupling(DescendCoupling):
    """As above, where each candidate counts as q = 1 (:func:`sibling_walk`)."""

    reads_draft = False

    @cached_property
    def pi(self) -> Float[Tensor, "batch drafted vocab"]:
        return sibling_walk(self.law, self.p, self.drafted.unsqueeze(-1))


class GreedyCoupling(DescendCoupling):
    """Greedy decoding: every position emits argmax π, the lowest token id of equals; all couplings reduce to this."""

    name = "greedy"

    def draw(self, coins: Float[Tensor, "batch drafted"]) -> Int[Tensor, "batch drafted"]:
        return self.pi.argmax(-1)


class GreedyPointMassCoupling(GreedyCoupling, PointMassCoupling):
    """Greedy, where each candidate counts as q = 1."""
