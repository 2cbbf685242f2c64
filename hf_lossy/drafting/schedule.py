"""How many tokens to draft in a round."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np


class Schedule:
    """Draft the same number of tokens in every round.

    Args:
        length: γ.
    """

    name: ClassVar[str] = "constant"

    def __init__(self, length: int) -> None:
        self.length = length

    def update(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Look at what became of a round: how many tokens could be accepted in each row, and how many were."""

    def describe(self) -> dict[str, Any]:
        """What it goes by, for the statistics."""
        return {"num_assistant_tokens": self.length, "num_assistant_tokens_schedule": self.name}


class Heuristic(Schedule):
    """Two more after a round that was accepted whole (on average over a batch), else one less, as in transformers."""

    name = "heuristic"

    def update(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        whole = sum(accepted) // len(accepted) >= self.length
        self.length = self.length + 2 if whole else max(1, self.length - 1)


class Costs(NamedTuple):
    """What was measured of a target and a draft.

    Attributes:
        target: seconds of the target's forward over n tokens, by n; between these it is interpolated.
        draft: seconds of a draft's step.
        acceptance: how often a drafted token was kept, of those that were looked at.
    """

    target: dict[int, float]
    draft: float
    acceptance: float = 0.8


def looked_at(accepted: int, drafted: int) -> int:
    """How many tokens of a chain, or levels of a tree, a round looked at: those that were kept and the first refused one."""
    return min(accepted + 1, drafted)


def expected_tokens(acceptance: float, gamma: int) -> float:
    """Tokens a round of the token coupling when every drafted token is accepted with the same probability α, each on its
    own: (1 − α^(γ+1)) / (1 − α), the bonus token included (2211.17192, Eq. 1)."""
    return gamma + 1.0 if acceptance >= 1 else (1 - acceptance ** (gamma + 1)) / (1 - acceptance)


class Expected(Schedule):
    """The γ with the most expected tokens a second, given how often drafted tokens were accepted so far:

        argmax over γ of  E(γ) / (t(γ + 1) + γ d + α^γ b),    E(γ) = (1 − α^(γ+1)) / (1 − α)

    with t(n) the seconds of a target forward over n tokens, d those of a draft step, and b = d where the law asks the draft
    once more after a block that was accepted whole. α is a running estimate, in which a round counts for 3 % less with
    every round after it. γ = 0, plain decoding, is among the choices; then one round in a while drafts, to see whether that
    pays by now. The times and the first α are measured before the run, so that γ depends on them and on the tokens alone;
    which γ is chosen does not touch the law of what is emitted, since a round's γ is fixed before its coins are thrown.

    Args:
        costs: t, d, and the α to begin with.
        asks_bonus: whether the law needs q at bonus positions.
    """

    name = "expected"
    MOST, READS = 20, 21
    """γ at most, and tokens that the target reads in a round at most."""
    WEIGHT, DECAY = 16.0, 0.97
    PROBE, PROBES, FIRST_WAIT, LONGEST_WAIT = 2, 4, 16, 128

    def __init__(self, costs: Costs, asks_bonus: bool) -> None:
        self.costs, self._bonus = costs, costs.draft if asks_bonus else 0.0
        reads = range(1, self.READS + 1)
        self._target: list[float] = np.interp(reads, list(costs.target), list(costs.target.values())).tolist()
        self._accepted, self._tried = costs.acceptance * self.WEIGHT, self.WEIGHT
        self._plain, self._wait = 0, self.FIRST_WAIT
        super().__init__(self._best())

    @property
    def acceptance(self) -> float:
        """α."""
        return self._accepted / self._tried

    def seconds(self, gamma: int) -> float:
        """What a round costs on average."""
        return self._target[self._fed(gamma) - 1] + gamma * self.costs.draft + self.acceptance**gamma * self._bonus

    def _fed(self, gamma: int) -> int:
        """How many tokens the target reads in a round."""
        return gamma + 1

    def update(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        if any(drafted):
            tried = sum(map(looked_at, accepted, drafted))
            self._accepted = self.DECAY * self._accepted + sum(accepted)
            self._tried = self.DECAY * self._tried + tried
        self.length = self._best()
        if self.length:
            self._plain, self._wait = 0, self.FIRST_WAIT
            return
        self._plain += 1
        if self._plain > self._wait:
            self.length = self.PROBE
            if self._plain == self._wait + self.PROBES:
                self._plain, self._wait = 0, min(2 * self._wait, self.LONGEST_WAIT)

    def describe(self) -> dict[str, Any]:
        times = {"target_seconds": dict(self.costs.target), "draft_seconds": self.costs.draft}
        return {**super().describe(), **times, "first_acceptance": self.costs.acceptance}

    def _best(self) -> int:
        return max(range(self.MOST + 1), key=lambda g: expected_tokens(self.acceptance, g) / self.seconds(g))


class TreeSchedule(Schedule):
    """The same tree in every round: so many levels, and so many nodes.

    Args:
        size: nodes, the root included.
        length: levels of candidates.
    """

    def __init__(self, size: int, length: int) -> None:
        super().__init__(length)
        self.size = size

    def choose(self, reach: Callable[[], Sequence[float]]) -> int:
        """How many nodes the tree of this round gets, the root included.

        Args:
            reach: gives the draft's own probability of the path to each candidate that was searched, in descending order,
                averaged over rows.
        """
        return self.size

    def describe(self) -> dict[str, Any]:
        return {"tree_size": self.size, "tree_depth": self.length - 1}


class ExpectedTree(Expected):
    """The tree with the most expected tokens a second: first its depth, then, when its candidates are known, its size.

    The depth L is chosen as :class:`Expected` chooses γ, with α the acceptance of a level and t at the size that was chosen
    last. Of the candidates, with probabilities s_1 ≥ s_2 ≥ … by the draft's own word, the n − 1 likeliest are kept:

        argmax over n of  (1 + κ Σ_{i<n} s_i) / (t(n) + L d)

    κ is how many tokens were accepted so far for each that these sums promised, a running estimate. Both choices are made
    before the coins of the round are thrown, so that the emitted law stays.

    Args:
        costs: t over the nodes of a tree, and d of a level of the search.
        asks_bonus: whether the law needs q at nodes that were not searched.
    """

    MOST, READS = 8, 64

    def __init__(self, costs: Costs, asks_bonus: bool) -> None:
        self.size = 8
        self._promise, self._promised, self._kept = 0.0, self.WEIGHT, self.WEIGHT
        super().__init__(costs, asks_bonus)

    @property
    def trust(self) -> float:
        """κ."""
        return self._kept / self._promised

    def _fed(self, gamma: int) -> int:
        return self.size if gamma else 1

    def choose(self, reach: Callable[[], Sequence[float]]) -> int:
        """As :meth:`TreeSchedule.choose`."""
        search = self.length * self.costs.draft
        sums = list(itertools.accumulate(reach()[: self.READS - 1]))
        # the i-th sum is that of a tree of i + 2 nodes
        best = max(range(len(sums)), key=lambda i: (1 + self.trust * sums[i]) / (self._target[i + 1] + search))
        self.size, self._promise = best + 2, sums[best]
        return self.size

    def update(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        if any(drafted):
            self._promised = self.DECAY * self._promised + self._promise * len(accepted)
            self._kept = self.DECAY * self._kept + sum(accepted)
        super().update(drafted, accepted)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "tree_size": self.size, "tree_depth": self.length - 1}
