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
    """Candidates below the last settled token (the root, node 0).

    Args:
        tokens: the token of each node but the root, [B, N]; siblings carry different tokens and come in the draft's order
            of preference.
        parents: the parent of each of these N nodes, 0 for the root, j for the j-th of them counted from 1; a parent
            comes before its children. A chain is ``range(N)``.
    """

    tokens: Int[Tensor, "batch nodes"]
    parents: Sequence[int]

    @staticmethod
    def chain(tokens: Int[Tensor, "batch nodes"]) -> Tree:
        """A tree of width one."""
        return Tree(tokens, range(tokens.shape[1]))

    @property
    def is_chain(self) -> bool:
        """Whether every node has at most one child, each the next node."""
        return all(parent == i for i, parent in enumerate(self.parents))

    @cached_property
    def depths(self) -> list[int]:
        """How many candidates lead to each node, the root (0) first."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return depths

    @cached_property
    def children(self) -> list[list[int]]:
        """The child nodes of each node, the root first."""
        children: list[list[int]] = [[] for _ in range(len(self.parents) + 1)]
        for node, parent in enumerate(self.parents, start=1):
            children[parent].append(node)
        return children

    def candidates(self, node: int) -> Int[Tensor, "batch candidates"]:
        """The tokens that the children of a node carry."""
        return self.tokens[:, [child - 1 for child in self.children[node]]]

    def path(self, node: int) -> list[int]:
        """The nodes from the root to a node, both included."""
        path = [node]
        while path[-1]:
            path.append(self.parents[path[-1] - 1])
        return path[::-1]

    @cached_property
    def seen(self) -> Bool[Tensor, "nodes_1 nodes_1"]:
        """Which nodes (columns) each node (rows) sees: itself and its ancestors."""
        seen = torch.eye(len(self.parents) + 1, dtype=torch.bool)
        for node, parent in enumerate(self.parents, start=1):
            seen[node] |= seen[parent]
        return seen
