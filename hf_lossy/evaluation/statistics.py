"""Intervals and tests for scores: a share, and the difference of two methods on the same items."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Sequence

import numpy as np

from ..errors import LossyError


def wilson(right: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share, which is honest at 0 and 1 as well; (0, 1) where nothing was counted.

    Source: E. B. Wilson 1927, doi:10.1080/01621459.1927.10502953.
    """
    if not 0 <= right <= n:
        raise LossyError(f"right = {right} of n = {n}: it must be in 0..n; give the count, not the share")
    if n == 0:
        return 0.0, 1.0
    z = statistics.NormalDist().inv_cdf((1 + level) / 2)
    share = right / n
    middle, spread = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    return max(0.0, (middle - spread) / (1 + z * z / n)), min(1.0, (middle + spread) / (1 + z * z / n))


def paired_bootstrap(
    a: Sequence[float],
    b: Sequence[float],
    items: Sequence[Hashable] | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """The 95 % interval of mean(a) − mean(b), by drawing items with replacement (percentiles).

    The pairs stay together, so that what makes an item hard for both methods cancels. Where no pair differs the interval
    has no width, which says nothing about other items. (−∞, ∞) for fewer than three items.

    Args:
        a, b: the two methods' scores, pair by pair.
        items: what each pair belongs to, where one item has several (seeds): these are drawn together.
        draws, seed: of the bootstrap.

    Source: B. Efron 1979, doi:10.1214/aos/1176344552.
    """
    _same_length(a, b)
    if items is not None and len(items) != len(a):
        raise LossyError(f"{len(items)} items for {len(a)} pairs: give one for each pair")
    sums: dict[Hashable, list[float]] = {}
    for index, (x, y) in enumerate(zip(a, b, strict=True)):
        unit = sums.setdefault(index if items is None else items[index], [0.0, 0.0])
        unit[0] += x - y
        unit[1] += 1
    units = np.array(list(sums.values()))
    if len(units) < 3:
        return -math.inf, math.inf
    drawn = units[np.random.default_rng(seed).integers(len(units), size=(draws, len(units)))].sum(1)
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], [0.025, 0.975])
    return float(low), float(high)


def mcnemar(a: Sequence[bool | float], b: Sequence[bool | float]) -> float:
    """McNemar's exact two-sided p-value: could the pairs on which two methods differ have fallen either way?

    Only pairs with one right answer count: with n of them, p = min(1, 2 P(Binomial(n, ½) ≤ the rarer kind)). The pairs
    must be independent: with several seeds an item, p comes out too small.

    Source: Q. McNemar 1947, doi:10.1007/BF02295996.
    """
    _same_length(a, b)
    for value in (*a, *b):
        if value not in (0, 1):
            raise LossyError(
                f"McNemar's test got the score {value}: it must be 0 or 1; use paired_bootstrap for others"
            )
    gained = sum(x > y for x, y in zip(a, b, strict=True))
    lost = sum(x < y for x, y in zip(a, b, strict=True))
    n, rarer = gained + lost, min(gained, lost)
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(rarer + 1)) / 2**n)


def _same_length(a: Sequence[float], b: Sequence[float]) -> None:
    if len(a) != len(b):
        raise LossyError(f"{len(a)} and {len(b)} scores: the two methods must have the same items, in the same order")
