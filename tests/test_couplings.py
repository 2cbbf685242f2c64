"""Couplings: the joint law of what a round emits, enumerated exactly, and the decisions that coins make.

One round is enumerated over every drafted block, every outcome of every coin and every replacement, with p and q
different at every prefix, and continued with π to γ + 1 tokens. It is compared with the closed form of tests/oracle.py.

False alarms: every seed is fixed. Taken over seeds, the one statistical test here has a rate of 1e-5.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import scipy.stats
import torch

from hf_lossy import laws
from hf_lossy.couplings import (
    BlockCoupling,
    Coupling,
    DescendCoupling,
    GreedyCoupling,
    ReferenceCoupling,
    TokenCoupling,
    Tree,
    coupling,
    couplings,
    descend,
)
from hf_lossy.errors import LossyError
from hf_lossy.laws.base import Law, law, law_class
from hf_lossy.numerics import sample

from . import oracle
from .pairs import one_hot, random_pairs, structured_pairs

EXAMPLES = [e for name in laws.names() for e in law_class(name).examples() if name in oracle.LAWS]
SIZES = [(v, gamma) for v in (3, 4) for gamma in (1, 2, 3)]
KINDS = ("random", "structured")
TOLERANCE = 1e-12

every_law = pytest.mark.parametrize("law_", EXAMPLES, ids=str)


# --- distributions at every prefix -----------------------------------------------------------------------------------


@functools.cache
def tables(kind: str, vocabulary: int):
    """p and q at every prefix of up to three tokens, no two alike."""
    prefixes = [x for n in range(4) for x in oracle.sequences(vocabulary, n)]
    pairs = random_pairs(vocabulary, len(prefixes), seed=vocabulary)
    if kind == "structured":
        corners = [c for seed in range(6) for c in structured_pairs(vocabulary, seed).values()]
        order = np.random.default_rng(vocabulary).permutation(len(corners))
        pairs = [corners[i] for i in order]
    return tuple({x: pair[side] for x, pair in zip(prefixes, pairs, strict=False)} for side in (0, 1))


@functools.cache
def induced_table(law_: Law, kind: str, vocabulary: int):
    """π at every prefix, by the oracle."""
    p, q = tables(kind, vocabulary)
    return {x: oracle.induced(law_.name, p[x], q[x], **law_.parameters()) for x in p}


def at_depth(table, vocabulary: int, depth: int) -> torch.Tensor:
    """The rows of a table after ``depth`` tokens, [V^depth, V], prefixes in lexicographic order."""
    return torch.tensor(np.array([table[x] for x in oracle.sequences(vocabulary, depth)]))


def along(table, vocabulary: int, drafted: torch.Tensor) -> torch.Tensor:
    """The distributions that blocks meet, [B, γ, V]."""
    gamma = drafted.shape[1]
    rows = [at_depth(table, vocabulary, i)[index(drafted[:, :i], vocabulary)] for i in range(gamma)]
    return torch.stack(rows, 1)


def index(tokens: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Where sequences [B, n] stand in lexicographic order."""
    place = torch.zeros(len(tokens), dtype=torch.long)
    for i in range(tokens.shape[1]):
        place = place * vocabulary + tokens[:, i]
    return place


def every(vocabulary: int, length: int) -> torch.Tensor:
    return torch.tensor(oracle.sequences(vocabulary, length)).view(-1, length)


def coins_for_tokens(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For every token: a coin amid its share of [0, 1), and the share; both shaped like ``weights``."""
    share = weights / weights.sum(-1, keepdim=True)
    return share.cumsum(-1) - share / 2, share


# --- enumerating a round ---------------------------------------------------------------------------------------------


class Round:
    """What a round emits: the mass of every sequence by its length, and of every fully accepted block."""

    def __init__(self, vocabulary: int, gamma: int):
        self.vocabulary, self.gamma = vocabulary, gamma
        self.stopped = [torch.zeros(vocabulary ** (n + 1), dtype=torch.float64) for n in range(gamma)]
        self.whole = torch.zeros(vocabulary**gamma, dtype=torch.float64)

    def add(self, drafted, accepted, replacement, weight) -> None:
        for n in range(self.gamma):
            rows = accepted == n
            sequence = torch.cat([drafted[rows, :n], replacement[rows, None]], 1)
            self.stopped[n].index_add_(0, index(sequence, self.vocabulary), weight[rows])
        rows = accepted == self.gamma
        self.whole.index_add_(0, index(drafted[rows], self.vocabulary), weight[rows])

    def tokens(self) -> float:
        """Expected number of emitted tokens, with the bonus."""
        mass = [x.sum().item() for x in [*self.stopped, self.whole]]
        assert sum(mass) == pytest.approx(1, abs=1e-12)
        return sum((n + 1) * m for n, m in enumerate(mass))

    def law(self, pi, bonus) -> np.ndarray:
        """The first γ + 1 tokens: shorter rounds continued with π, fully accepted ones with ``bonus``."""
        law_ = self.stopped[0]
        for n in range(1, self.gamma + 1):
            law_ = (law_[:, None] * at_depth(pi, self.vocabulary, n)).flatten()
            if n < self.gamma:
                law_ = law_ + self.stopped[n]
        return (law_ + (self.whole[:, None] * at_depth(bonus, self.vocabulary, self.gamma)).flatten()).numpy()


def sampled_round(cls: type[Coupling], law_: Law, p, q, vocabulary: int, gamma: int) -> Round:
    """All blocks, each with its probability under q, and all outcomes of the coins that verify it.

    A coin is put at 0, which accepts unless h = 0, or at h itself, which must refuse: u < h, strictly.
    """
    blocks, outcomes = every(vocabulary, gamma), torch.tensor(oracle.sequences(2, gamma)).bool()
    drafted = blocks.repeat_interleave(len(outcomes), 0)
    keeps = outcomes.repeat(len(blocks), 1)
    p_, q_ = along(p, vocabulary, drafted), along(q, vocabulary, drafted)
    made = cls(law_, p_, q_, drafted)
    h = made.acceptance()
    weight = q_.gather(2, drafted[:, :, None]).prod(1).squeeze(1) * torch.where(keeps, h, 1 - h).prod(1)
    possible = q_.gather(2, drafted[:, :, None]).squeeze(2).prod(1) > 0  # h means nothing where q(x) = 0
    assert ((h >= 0) & (h <= 1))[possible].all()
    accepted = made.accepted(torch.where(keeps, 0.0, h))

    residual = made.residual(accepted)
    residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, row(made.pi, accepted))
    coins, share = coins_for_tokens(residual)
    result = Round(vocabulary, gamma)
    for token in range(vocabulary):
        use = possible & (weight * share[:, token] > 0)
        replacement = made.replace(accepted, coins[:, token].where(use, 0.0))
        result.add(drafted[use], accepted[use], replacement[use], (weight * share[:, token] ** (accepted < gamma))[use])
        if token == 0:
            whole = possible & (accepted == gamma)
    # every token of a whole block was counted once a replacement token: count it once
    result.whole = torch.zeros_like(result.whole).index_add_(0, index(drafted[whole], vocabulary), weight[whole])
    return result


def row(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return x[torch.arange(len(x)), positions.clamp_max(x.shape[1] - 1)]
