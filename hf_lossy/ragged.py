"""Rows of different lengths in one tensor: row r reads and writes at its own column. Torch only."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int, Shaped
from torch import Tensor


def window(x: Shaped[Tensor, "batch columns *rest"], starts: Sequence[int], count: int) -> Tensor:
    """``count`` columns of each row from its own start on, [B, count, ...]; past the end the last column is repeated. A view
    where all rows start at the same column."""
    if _same(starts) and starts[0] + count <= x.shape[1]:
        return x[:, starts[0] : starts[0] + count]
    index = columns(starts, count, x.device).clamp_max_(x.shape[1] - 1)
    return take(x, index)


def take(x: Shaped[Tensor, "batch columns *rest"], index: Int[Tensor, "batch count"]) -> Tensor:
    """Columns of each row by their numbers, [B, count, ...]."""
    return x.gather(1, _across(index, x.shape[2:]))


def put(
    x: Shaped[Tensor, "batch columns *rest"], starts: Sequence[int], new: Shaped[Tensor, "batch new *rest"]
) -> None:
    """Write the columns ``new`` into each row from its own start on."""
    if _same(starts):
        x[:, starts[0] : starts[0] + new.shape[1]] = new
    else:
        x.scatter_(1, _across(columns(starts, new.shape[1], x.device), x.shape[2:]), new)


def move_up(
    x: Shaped[Tensor, "batch columns *rest"],
    starts: Sequence[int],
    edge: int,
    order: Sequence[Sequence[int]] | None = None,
    offset: int = 0,
) -> None:
    """Move the columns from ``edge`` on, of each row to its own start.

    Args:
        order: for each row which columns are moved, where it isn't all of them in their order.
        offset: what the columns' numbers in ``order`` are too large by.
    """
    if order is None:
        moved = x[:, edge:].clone()
    else:  # rows with fewer columns repeat their last, which lands behind what they keep
        count = max(map(len, order))
        index = torch.tensor([[*row, *[row[-1]] * (count - len(row))] for row in order], device=x.device) - offset
        moved = take(x, index)
    put(x, starts, moved)


def columns(starts: Sequence[int], count: int, device: torch.device) -> Int[Tensor, "batch count"]:
    """The numbers of ``count`` columns of each row, from its own start on."""
    return torch.tensor(starts, device=device)[:, None] + torch.arange(count, device=device)


def _same(starts: Sequence[int]) -> bool:
    return all(start == starts[0] for start in starts)


def _across(index: Int[Tensor, "batch count"], rest: Sequence[int]) -> Tensor:
    return index.view(*index.shape, *(1 for _ in rest)).expand(*index.shape, *rest)
