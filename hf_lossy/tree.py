"""Candidates as a tree; a chain is a tree of width one. Torch only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True)
class Tree:
    """Candidates below the last settled token of each row (the root, node 0). Rows have equally many, in trees of their own.

    Args:
        tokens: the token of each node but the root, [B, N]; siblings carry different tokens and come in the draft's order
            of preference.
        parents: the parent of each of these N nodes, [B, N]: 0 for the root, j for the j-th of them counted from 1; a parent
            comes before its children.
        is_chain: whether every row's candidates are known to follow one another.
    """

    tokens: Int[Tensor, "batch nodes"]
    parents: Int[Tensor, "batch nodes"]
    is_chain: bool = False

    @staticmethod
    def chain(tokens: Int[Tensor, "batch nodes"]) -> Tree:
        """A tree of width one for each row."""
        nodes = torch.arange(tokens.shape[1], device=tokens.device)
        return Tree(tokens, nodes.expand(len(tokens), -1), True)

    def repeat(self, rows: int) -> Tree:
        """The tree of a single row for several."""
        return Tree(self.tokens.expand(rows, -1), self.parents.expand(rows, -1), self.is_chain)

    @cached_property
    def seen(self) -> Bool[Tensor, "batch nodes_1 nodes_1"]:
        """Which nodes (last dimension) each node sees: itself and its ancestors."""
        rows, count = self.tokens.shape
        up = torch.cat([self.parents.new_zeros(rows, 1), self.parents], 1)[:, :, None].expand(-1, -1, count + 1)
        own = torch.eye(count + 1, dtype=torch.bool, device=up.device).expand(rows, -1, -1)
        seen = own
        while True:  # once a level
            more = own | seen.gather(1, up)
            if torch.equal(more, seen):
                return seen
            seen = more

    @cached_property
    def depths(self) -> Int[Tensor, "batch nodes_1"]:
        """How many candidates lead to each node, the root (0) first."""
        return self.seen.sum(2) - 1

    def below(self, nodes: Int[Tensor, "batch"]) -> Bool[Tensor, "batch nodes"]:
        """Which candidates are children of a node of each row."""
        return self.parents == nodes[:, None]

    def is_leaf(self, nodes: Int[Tensor, "batch"]) -> Bool[Tensor, "batch"]:
        """Whether a node of each row has no children."""
        return nodes == self.tokens.shape[1] if self.is_chain else ~self.below(nodes).any(1)

    def are_leaves(self, nodes: Sequence[int]) -> bool:
        """Whether a node of each row has no children, in every row; of a chain without asking the device."""
        if self.is_chain:
            return all(node == self.tokens.shape[1] for node in nodes)
        return bool(self.is_leaf(self.tokens.new_tensor(nodes)).all())

    def child(self, nodes: Int[Tensor, "batch"], tokens: Int[Tensor, "batch"]) -> Int[Tensor, "batch"]:
        """The child that carries a token, of a node of each row; 0 where there is none."""
        found = self.below(nodes) & (self.tokens == tokens[:, None])
        return (found * torch.arange(1, found.shape[1] + 1, device=found.device)).sum(1)

    def candidates(self, nodes: Int[Tensor, "batch"]) -> Int[Tensor, "batch candidates"]:
        """The tokens that the children of a node of each row carry, in their order; −1 fills up rows with fewer."""
        below = self.below(nodes)
        order = below.long().argsort(dim=1, descending=True, stable=True)[:, : int(below.sum(1).max())]
        return self.tokens.gather(1, order).masked_fill_(~below.gather(1, order), -1)

    def children(self, row: int = 0) -> list[list[int]]:
        """The child nodes of each node of a row, the root first."""
        children: list[list[int]] = [[] for _ in range(self.tokens.shape[1] + 1)]
        for node, parent in enumerate(self.parents[row].tolist(), start=1):
            children[parent].append(node)
        return children
