"""Couplings of deterministic candidates: draw a token from π at a node, and descend if it is a candidate there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..numerics import sample
from .base import Coupling, leading, register_coupling


@dataclass(frozen=True)
class Tree:
    """Candidates as a tree below the last emitted token (the root, node 0).

    Args:
        tokens: the token of each node but the root, [B, N]; siblings carry different tokens.
        parents: the parent of each of these N nodes, 0 for the root, j for the j-th of them counted from 1; a parent
            comes before its children. A chain is ``range(N)``.
    """

    tokens: Int[Tensor, "batch nodes"]
    parents: Sequence[int]

    @staticmethod
    def chain(tokens: Int[Tensor, "batch nodes"]) -> Tree:
        """A tree of width one."""
        return Tree(tokens, range(tokens.shape[1]))


def descend(tree: Tree, drawn: Int[Tensor, "batch nodes_1"]) -> tuple[Int[Tensor, "batch"], Int[Tensor, "batch"]]:
    """Walk from the root along the tokens drawn at its nodes (root first, [B, N + 1]).

    Returns:
        The number of accepted candidates of each row, and the node where the walk ends: the token drawn there is emitted
        after the accepted ones. Accepts π(children) at each node, whatever the order of the children, and emits exactly π.
    """
    rows = torch.arange(drawn.shape[0], device=drawn.device)
    on_path = torch.ones_like(drawn, dtype=torch.bool)
    end = torch.zeros_like(rows)
    for node, parent in enumerate(tree.parents, start=1):
        on_path[:, node] = on_path[:, parent] & (tree.tokens[:, node - 1] == drawn[:, parent])
        end = torch.where(on_path[:, node], node, end)
    return on_path[:, 1:].sum(1), end


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


class GreedyCoupling(DescendCoupling):
    """Greedy decoding: every position emits argmax π, the lowest token id of equals; all couplings reduce to this."""

    name = "greedy"

    def draw(self, coins: Float[Tensor, "batch drafted"]) -> Int[Tensor, "batch drafted"]:
        return self.pi.argmax(-1)
