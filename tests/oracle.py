"""The mathematics once more, from the formulas alone: single vectors, loops, float64. No import of the package."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

Vector = np.ndarray
Prefix = tuple[int, ...]


def plus(a: float) -> float:
    return max(a, 0.0)


def tv(a: Vector, b: Vector) -> float:
    return 0.5 * sum(abs(a[x] - b[x]) for x in range(len(a)))


def entropy(p: Vector) -> float:
    return -sum(p[x] * math.log(p[x]) for x in range(len(p)) if p[x] > 0)


def with_missing_mass(y: Vector, shape: Vector) -> Vector:
    """y + (1 − Σy) · shape / Σ shape; y itself where the shape has no mass."""
    mass = sum(shape)
    if mass == 0:
        return y
    return np.array([y[x] + (1 - sum(y)) * shape[x] / mass for x in range(len(y))])


def residual(p: Vector, q: Vector) -> Vector:
    return np.array([plus(p[x] - q[x]) for x in range(len(p))])


# --- allowed sets ----------------------------------------------------------------------------------------------------


def min_p_set(p: Vector, p_base: float) -> list[bool]:
    return [p[x] >= p_base * max(p) for x in range(len(p))]


def eta_set(p: Vector, epsilon: float, delta: float) -> list[bool]:
    threshold = min(epsilon, delta * math.exp(-entropy(p)))
    return [p[x] >= threshold or p[x] == max(p) for x in range(len(p))]


def cascade_set(p: Vector, q: Vector, p_base: float, rule: str) -> list[bool]:
    alpha = 1 - p_base
    if rule == "token_v3":
        return min_p_set(p, p_base)
    if rule == "token_v2":
        return [p[x] >= max(p) - alpha for x in range(len(p))]
    if rule == "token_v1":
        return [q[x] >= max(p) - alpha for x in range(len(p))]
    raise ValueError(rule)


def on(a: Vector, allowed: Sequence[bool]) -> Vector:
    """a · 1_A / a(A)."""
    mass = sum(a[x] for x in range(len(a)) if allowed[x])
    return np.array([a[x] / mass if allowed[x] else 0.0 for x in range(len(a))])


def truncated(p: Vector, q: Vector, allowed: Sequence[bool], fallback: str) -> Vector:
    mass = sum(q[x] for x in range(len(q)) if allowed[x])
    if fallback == "target":
        return np.array([(q[x] if allowed[x] else 0.0) + (1 - mass) * p[x] for x in range(len(p))])
    if mass > 0:
        return on(q, allowed)
    return on(p, allowed) if any(allowed) else p  # the formula leaves an empty A open: the target is what is left


# --- laws ------------------------------------------------------------------------------------------------------------


def lossless(p: Vector, q: Vector) -> Vector:
    return p


def lenience(p: Vector, q: Vector, lenience: float) -> Vector:
    """Eq. 10 of 2607.26627, token by token."""
    over = sum(plus(q[x] - p[x] / lenience) for x in range(len(p)))
    room = sum(plus(p[x] - q[x]) for x in range(len(p)))
    delta = over / room if room > 0 else 0.0
    pi = []
    for x in range(len(p)):
        if q[x] <= p[x]:
            pi.append(q[x] + delta * (p[x] - q[x]))
        elif q[x] <= p[x] / lenience:
            pi.append(q[x])
        else:
            pi.append(p[x] / lenience)
    return np.array(pi)


def cos(p: Vector, q: Vector, draft_weight: float) -> Vector:
    return np.array([draft_weight * q[x] + (1 - draft_weight) * p[x] for x in range(len(p))])


def contrastive(p: Vector, q: Vector, mu: float, plausibility: float) -> Vector:
    weights = [p[x] * max(q[x], 1e-10) ** -mu for x in range(len(p))]
    return on(np.array(weights), min_p_set(p, plausibility))


def adaptive_ensemble(p: Vector, q: Vector, lenience: float) -> Vector:
    over = sum(plus(q[x] - p[x] / lenience) for x in range(len(p)))
    room = sum(plus(p[x] - q[x]) for x in range(len(p)))
    delta = over / room if room > 0 else 0.0
    return np.array([q[x] + delta * (p[x] - q[x]) for x in range(len(p))])


def capped_ensemble(p: Vector, q: Vector, draft_weight: float, lenience: float) -> Vector:
    v = cos(p, q, draft_weight)
    u = np.array([min(v[x], p[x] / lenience) if q[x] > p[x] / lenience else v[x] for x in range(len(p))])
    return with_missing_mass(u, residual(p, q))


def gated_ceiling(p: Vector, q: Vector, p_base: float, lenience: float) -> Vector:
    allowed = min_p_set(p, p_base)
    y = np.array([q[x] if allowed[x] else min(q[x], p[x] / lenience) for x in range(len(p))])
    return with_missing_mass(y, residual(p, y))


def speccascade(p: Vector, q: Vector, p_base: float, fallback: str, rule: str) -> Vector:
    alpha = 1 - p_base
    if rule == "chow":
        return q if max(q) >= 1 - alpha else p
    if rule == "diff":
        return q if max(q) >= max(p) - alpha else p
    if rule == "opt":
        return q if max(q) >= max(p) - alpha * tv(p, q) else p
    return truncated(p, q, cascade_set(p, q, p_base, rule), fallback)


def typical(p: Vector, q: Vector, epsilon: float, delta: float, fallback: str) -> Vector:
    return truncated(p, q, eta_set(p, epsilon, delta), fallback)


def min_p(p: Vector, q: Vector, p_base: float, truncate_draft: bool) -> Vector:
    return on(p, min_p_set(p, p_base))


def eta(p: Vector, q: Vector, epsilon: float, delta: float, truncate_draft: bool) -> Vector:
    return on(p, eta_set(p, epsilon, delta))


def keeps(method: str, p: Vector, c: int, **parameters: object) -> float:
    """With what probability a candidate c is kept that counts as q = 1 (laws.md, section 4.3)."""
    if method == "lossless" or (method == "min_p" and parameters["p_base"] == 0):
        return p[c]
    if method == "lenience":
        return min(1.0, p[c] / parameters["lenience"])
    if method == "min_p":
        return float(min_p_set(p, parameters["p_base"])[c])
    if method == "eta":
        return float(eta_set(p, parameters["epsilon"], parameters["delta"])[c])
    return induced(method, p, np.eye(len(p))[c], **parameters)[c]


def sibling_walk(method: str, p: Vector, candidates: Sequence[int], **parameters: object) -> Vector:
    """What is emitted when candidates are visited in order, refused ones zeroed and p renormalised."""
    emitted, left, reach = np.zeros_like(p), p, 1.0
    for c in candidates:
        kept = keeps(method, left, c, **parameters)
        emitted[c] += reach * kept
        reach *= 1 - kept
        left = np.where(np.arange(len(p)) == c, 0, left)
        if left.sum() == 0:
            assert reach < 1e-9
            return emitted
        left = left / left.sum()
    return emitted + reach * left


LAWS: dict[str, Callable[..., Vector]] = {
    law.__name__: law
    for law in (
        lossless,
        lenience,
        cos,
        contrastive,
        adaptive_ensemble,
        capped_ensemble,
        gated_ceiling,
        speccascade,
        typical,
        min_p,
        eta,
    )
}


def induced(method: str, p: Vector, q: Vector, **parameters: object) -> Vector:
    """π of a law, by its name and parameters."""
    return LAWS[method](p, q, **parameters)


def published(method: str, p: Vector, q: Vector, **parameters: object) -> tuple[Vector, Vector] | None:
    """The acceptance rule as first published, (h, r); None where it is the token coupling of π."""
    if method == "speccascade" and str(parameters["rule"]).startswith("token"):
        allowed = cascade_set(p, q, parameters["p_base"], parameters["rule"])
    elif method == "typical":
        allowed = eta_set(p, parameters["epsilon"], parameters["delta"])
    else:
        return None
    replacement = p if parameters["fallback"] == "target" else truncated(p, q, allowed, "draft")
    return np.array([1.0 if allowed[x] else 0.0 for x in range(len(p))]), replacement


# --- accounting ------------------------------------------------------------------------------------------------------


def acceptance(pi: Vector, q: Vector) -> float:
    return sum(min(pi[x], q[x]) for x in range(len(pi)))


def kl(a: Vector, b: Vector) -> float:
    return sum((math.inf if b[x] == 0 else a[x] * math.log(a[x] / b[x])) for x in range(len(a)) if a[x] > 0)


def max_log_ratio(pi: Vector, p: Vector) -> float:
    return max((math.inf if p[x] == 0 else math.log(pi[x] / p[x])) for x in range(len(pi)) if pi[x] > 0)


def waste(p: Vector, q: Vector, pi: Vector) -> float:
    return tv(p, pi) + tv(pi, q) - tv(p, q)


# --- what a round emits ----------------------------------------------------------------------------------------------

Table = Mapping[Prefix, Vector]
"""A next-token distribution for every prefix."""


def sequences(vocabulary: int, length: int) -> list[Prefix]:
    """All sequences in lexicographic order."""
    return list(itertools.product(range(vocabulary), repeat=length))


def product(table: Table, sequence: Prefix) -> float:
    """The probability of a sequence that is drawn token by token from a table."""
    return math.prod(table[sequence[:i]][x] for i, x in enumerate(sequence))


def all_accepted_token(pi: Table, q: Table, x: Prefix) -> float:
    """Token coupling: the probability that x is drafted and accepted as a whole."""
    return math.prod(min(pi[x[:i]][t], q[x[:i]][t]) for i, t in enumerate(x))


def all_accepted_block(pi: Table, q: Table, x: Prefix) -> float:
    """Block coupling: x is drafted, and then kept as a whole with probability P_γ."""
    drafted, kept = 1.0, 1.0
    for i, t in enumerate(x):
        drafted *= q[x[:i]][t]
        if drafted == 0:
            return 0.0
        kept = min(1.0, kept * pi[x[:i]][t] / q[x[:i]][t])
    return drafted * kept


def all_accepted_reference(h: Table, q: Table, x: Prefix) -> float:
    """As published: each token of x is drafted and accepted with h."""
    return product(q, x) * product(h, x)


def all_accepted_tree(pi: Table, candidates: Prefix, x: Prefix) -> float:
    """A chain of given candidates: x is accepted as a whole iff it is the chain and is drawn."""
    return product(pi, x) if x == candidates else 0.0


def emitted(block: Vector, whole: Vector, induced_after: Vector, bonus_after: Vector) -> Vector:
    """The law of the next γ + 1 tokens, [blocks, V], where every token but the bonus is drawn from π.

    Args:
        block: the probability of each sequence of γ tokens under π.
        whole: the probability that it comes out as a fully accepted block, which the bonus token then follows.
        induced_after: π after each, [blocks, V].
        bonus_after: the law of the bonus token after each.
    """
    return whole[:, None] * bonus_after + (block - whole)[:, None] * induced_after
