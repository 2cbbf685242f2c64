"""Pairs (p, q) of next-token distributions to test with: random ones, and those where formulas have corners."""

from __future__ import annotations

import numpy as np

Pair = tuple[np.ndarray, np.ndarray]


def normalised(weights) -> np.ndarray:
    weights = np.asarray(weights, dtype=np.float64)
    return weights / weights.sum()


def one_hot(token: int, vocabulary: int) -> np.ndarray:
    return np.eye(vocabulary)[token]


def random_pairs(vocabulary: int, count: int, seed: int) -> list[Pair]:
    """Dirichlet pairs from nearly one-hot to nearly uniform."""
    rng = np.random.default_rng(seed)
    sharpness = rng.choice([0.1, 0.3, 1.0, 5.0], size=(count, 2))
    return [(rng.dirichlet(np.full(vocabulary, a)), rng.dirichlet(np.full(vocabulary, b))) for a, b in sharpness]


def structured_pairs(vocabulary: int, seed: int = 0) -> dict[str, Pair]:
    """One pair for every corner, by name; the vocabulary has at least 3 tokens."""
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.ones(vocabulary)), rng.dirichlet(np.ones(vocabulary))
    uniform = np.full(vocabulary, 1 / vocabulary)
    first = np.arange(vocabulary) < vocabulary // 2 + vocabulary % 2
    without_top = np.where(p == p.max(), 0, q)
    ties = normalised([2, 2] + [1] * (vocabulary - 2))
    return {
        "zeros in p": (normalised(p * first), q),
        "zeros in q": (p, normalised(q * first)),
        "zeros in both": (normalised(p * (np.arange(vocabulary) != 0)), normalised(q * (np.arange(vocabulary) != 1))),
        "one-hot p": (one_hot(1, vocabulary), q),
        "one-hot q": (p, one_hot(1, vocabulary)),
        "one-hot q off the top of p": (p, one_hot(int(p.argmin()), vocabulary)),
        "same one-hot": (one_hot(1, vocabulary), one_hot(1, vocabulary)),
        "different one-hots": (one_hot(0, vocabulary), one_hot(2, vocabulary)),
        "disjoint": (normalised(p * first), normalised(q * ~first)),
        "q misses the top of p": (p, normalised(without_top)),
        "equal": (p, p.copy()),
        "equal with zeros": (normalised(p * first), normalised(p * first)),
        "ties in p": (ties, q),
        "ties in both": (ties, ties[::-1].copy()),
        "uniform": (uniform, uniform),
        "near-uniform": (normalised(uniform + 1e-9 * p), normalised(uniform + 1e-9 * q)),
        "nearly equal": (p, normalised(p * (1 + 1e-9 * q))),
        "far below": (normalised(np.where(first, p, 1e-12 * p)), normalised(np.where(first, 1e-12 * q, q))),
    }
