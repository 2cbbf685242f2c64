"""Medians, quartiles and intervals of what was measured. Plain Python on lists of numbers."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Track(Protocol):
    """Goes through items and shows how far it has come: ``track(items, description)``."""

    def __call__(self, items: Sequence[T], description: str) -> Iterable[T]: ...


def untracked(items: Sequence[T], description: str) -> Iterable[T]:
    """Goes through items in silence."""
    return items


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """The items beginning with another one each turn, so that none always runs after the same one."""
    turn %= len(items)
    return [*items[turn:], *items[:turn]]


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, quartiles and number of some values."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": middle, "quartiles": [low, high], "repeats": len(values)}


def clustered_mean(
    values: Sequence[float], weights: Sequence[float], clusters: Sequence[Hashable]
) -> dict[str, float | int | None]:
    """Σ values / Σ weights with the half-width of its 95 % interval, where what shares a cluster is not independent.

    Linearised ratio estimator with residuals summed within clusters, and Student's t with one degree of freedom less than
    there are clusters. The half-width is None for fewer than three.
    """
    total = sum(weights)
    mean = sum(values) / total if total else math.nan
    residuals: dict[Hashable, float] = {}
    for value, weight, cluster in zip(values, weights, clusters, strict=True):
        residuals[cluster] = residuals.get(cluster, 0.0) + value - mean * weight
    count, half = len(residuals), None
    if count > 2:
        variance = count / (count - 1) * sum(r * r for r in residuals.values())
        half = student(count - 1) * math.sqrt(variance) / total
    return {"mean": mean, "half_width": half, "clusters": count}


def student(degrees: int) -> float:
    """The 97.5 % point of Student's t (Cornish–Fisher expansion, within 3 % for two degrees and 0.2 % from five on)."""
    z = statistics.NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / degrees ** (i + 1) for i, term in enumerate(terms))


def bootstrap(count: int, figure: Callable[[list[int]], float], draws: int = 1000, seed: int = 0) -> list[float] | None:
    """The 95 % interval of a figure computed from some of ``count`` units, by drawing units with replacement; None for
    fewer than three units."""
    if count < 3:
        return None
    rng = random.Random(seed)
    found = sorted(figure(rng.choices(range(count), k=count)) for _ in range(draws))
    return [found[int(0.025 * draws)], found[int(0.975 * draws)]]
