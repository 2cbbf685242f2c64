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

    def offer(self, matched: Sequence[int], most: int) -> list[int]:
        """How many candidates a lookup drafts in each row, whose last ``matched[r]`` tokens occurred before: two for each of
        these tokens, ``most`` at most (in proportion to what matched: SuffixDecoding 2411.04975)."""
        return [min(most, 2 * n) for n in matched]

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
        draft: seconds of a draft's step over n candidates, by n: one, and those that a level of a tree expands.
        rounds: of a short text: how many tokens were accepted, of how many that were drafted.
    """

    target: dict[int, float]
    draft: dict[int, float]
    rounds: Sequence[tuple[int, int]] = ()

    def reads(self, most: int) -> list[float]:
        """Seconds of the target's forward over 1 to ``most`` tokens."""
        return np.interp(range(1, most + 1), list(self.target), list(self.target.values())).tolist()

    def describe(self) -> dict[str, Any]:
        """For the statistics."""
        return {
            "target_seconds": dict(self.target),
            "draft_seconds": dict(self.draft),
            "first_rounds": list(self.rounds),
        }


def expected_tokens(acceptance: float, gamma: int) -> float:
    """Tokens a round of the token coupling when every drafted token is accepted with the same probability α, each on its
    own: (1 − α^(γ+1)) / (1 − α), the bonus token included (2211.17192, Eq. 1)."""
    return gamma + 1.0 if acceptance >= 1 else (1 - acceptance ** (gamma + 1)) / (1 - acceptance)


class Expected(Schedule):
    """The γ with the most expected tokens a second, given how often drafted tokens were accepted so far:

        argmax over γ of  E(γ) / (t(γ + 1) + γ d + s_γ b),    E(γ) = 1 + s_1 + … + s_γ,    s_j = α_1 α_2 ⋯ α_j

    with t(n) the seconds of a target forward over n tokens, d those of a draft step, and b = d where the draft
    is asked once more after a block that was accepted whole. α_j is how often the j-th drafted token was accepted, of those
    rounds that looked at it; where all do alike E(γ) = (1 − α^(γ+1)) / (1 − α), but many texts refuse in patterns. A
    round counts for 3 % less with every round after it, and what is known of all places stands in where little is known
    of one. γ = 0, plain decoding, is among the choices; then one round in a while drafts, to see whether that pays by
    now. The times and the first rounds are measured before the run, so that γ depends on them and on the tokens alone;
    which γ is chosen does not touch the law of what is emitted, since a round's γ is fixed before its coins are thrown.

    Args:
        costs: t, d, and the rounds to begin with.
        asks_bonus: whether q is asked for at bonus positions.
    """

    name = "expected"
    MOST, READS = 20, 21
    """γ at most, and tokens that the target reads in a round at most."""
    FIRST, DECAY, ALIKE = 0.8, 0.97, 4.0
    """α where nothing is known, what remains of a round after the next, and how many looks at one place count as much as
    those at all others."""
    PROBE, PROBES, FIRST_WAIT, LONGEST_WAIT = 2, 4, 16, 128

    def __init__(self, costs: Costs, asks_bonus: bool) -> None:
        self.costs, self._bonus = costs, costs.draft[1] if asks_bonus else 0.0
        self._target = costs.reads(self.READS)
        self._accepted, self._tried = [0.0] * self.MOST, [0.0] * self.MOST
        for accepted, drafted in costs.rounds:
            self._count(accepted, drafted)
        self._plain, self._wait = 0, self.FIRST_WAIT
        super().__init__(self._best())

    @property
    def acceptance(self) -> float:
        """α over all places."""
        return (sum(self._accepted) + self.FIRST) / (sum(self._tried) + 1)

    def seconds(self, gamma: int, whole: float) -> float:
        """What a round costs on average, if its block is accepted whole with this probability."""
        return self._target[self._fed(gamma) - 1] + self._search(gamma) + whole * self._bonus

    def _fed(self, gamma: int) -> int:
        """How many tokens the target reads in a round."""
        return gamma + 1

    def _search(self, gamma: int) -> float:
        """Seconds of the draft in a round."""
        return gamma * self.costs.draft[1]

    def update(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        if any(drafted):
            self._accepted = [self.DECAY * x for x in self._accepted]
            self._tried = [self.DECAY * x for x in self._tried]
            for kept, tried in zip(accepted, drafted, strict=True):
                self._count(kept, tried)
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
        return {**super().describe(), **self.costs.describe()}

    def _count(self, accepted: int, drafted: int) -> None:
        """A round looks at the tokens that it keeps and at the first that it refuses."""
        for j in range(min(accepted + 1, drafted, self.MOST)):
            self._tried[j] += 1
            self._accepted[j] += j < accepted

    def _best(self) -> int:
        overall, tokens, whole = self.acceptance, 1.0, 1.0
        best, rate = 0, 1 / self.seconds(0, 1.0)
        for gamma in range(1, self.MOST + 1):
            seen = self._tried[gamma - 1] + self.ALIKE
            whole *= (self._accepted[gamma - 1] + self.ALIKE * overall) / seen
            tokens += whole
            if tokens / self.seconds(gamma, whole) > rate:
                best, rate = gamma, tokens / self.seconds(gamma, whole)
        return best


class ExpectedLookup(Schedule):
    """The γ with the most expected tokens a second of a lookup, which costs nothing but the target's time, round by round
    from how many of the last tokens of each row occurred before:

        argmax over γ of  Σ_r E_r(γ) / t(γ + 1),    E_r(γ) = 1 + s_1 + … + s_γ,    s_j = α_m α_{m+1} ⋯ α_{m+j−1}

    with m the length of row r's match, which each accepted candidate makes longer by one, and t as in :class:`Expected`. A
    row without a match has E_r = 1. α_k is how often the candidate after k matching tokens was accepted, of those that were
    looked at. Where little is known of it, k / (k + 3) stands in, which real texts come near (``scripts/lookup_lengths.py``
    counts it in some). A round counts for 1 % less with every round after it, so that an end that did not pay is believed
    again in a while. As with :class:`Expected` γ is fixed before the coins of the round are thrown.

    Args:
        costs: t.
    """

    name = "expected"
    MOST, LONGEST = 20, 16
    """γ at most, and the longest matches, which are not told apart."""
    DECAY, BELIEF = 0.99, 4.0
    """What remains of a round after the next, and how many looks the belief before the run counts as much as."""

    def __init__(self, costs: Costs) -> None:
        super().__init__(self.MOST)
        self.costs, self._target = costs, costs.reads(self.MOST + 1)
        self._accepted, self._tried = [0.0] * (self.LONGEST + 1), [0.0] * (self.LONGEST + 1)
        self._matched: Sequence[int] = []

    def acceptance(self, matched: int) -> float:
        """α after so many matching tokens."""
        k = min(matched, self.LONGEST)
        return (self._accepted[k] + self.BELIEF * k / (k + 3)) / (self._tried[k] + self.BELIEF)

    def offer(self, matched: Sequence[int], most: int) -> list[int]:
        """As :meth:`Schedule.offer`: γ in every row that has a match, which then costs what one of them does."""
        self._matched, going = matched, [(n, 1.0) for n in matched if n]
        tokens, best, rate = float(len(matched)), 0, len(matched) / self._target[0]
        for gamma in range(1, most + 1 if going else 1):
            going = [(n + 1, reached * self.acceptance(n)) for n, reached in going]
            tokens += sum(reached for _, reached in going)
            if tokens / self._target[gamma] > rate:
                best, rate = gamma, tokens / self._target[gamma]
        return [best if n else 0 for n in matched]

    def update(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        self._accepted = [self.DECAY * x for x in self._accepted]
        self._tried = [self.DECAY * x for x in self._tried]
        for matched, tried, kept in zip(self._matched, drafted, accepted, strict=True):
            for j in range(min(kept + 1, tried) if matched else 0):
                k = min(matched + j, self.LONGEST)
                self._tried[k] += 1
                self._accepted[k] += j < kept

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), **self.costs.describe()}


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

    The depth L is chosen as :class:`Expected` chooses γ, with α_j the acceptance of a level and t at the size that was
    chosen last, or with a node for each level where that has fewer. Of the candidates, with probabilities
    s_1 ≥ s_2 ≥ … by the draft's own word, the n − 1 likeliest are kept:

        argmax over n of  (1 + κ Σ_{i<n} s_i) / (t(n) + d_1 + (L − 1) d_k)

    with d_1 the seconds of the head's first level, and d_k those of each further one, which expands k candidates. κ is how
    many tokens were accepted so far for each that these sums promised, a running estimate. Both choices are made before
    the coins of the round are thrown, so that the emitted law stays.

    Args:
        costs: t over the nodes of a tree; d_1 and d_k.
        asks_bonus: whether q is asked for at nodes that were not searched.
    """

    MOST, READS = 8, 64
    WEIGHT = 16.0
    """How many levels' promises count as kept at the beginning."""

    def __init__(self, costs: Costs, asks_bonus: bool) -> None:
        self.size = 0
        self._promise, self._promised, self._kept = 0.0, self.WEIGHT, self.WEIGHT
        super().__init__(costs, asks_bonus)
        self.size = max(2, self.length + 1)

    @property
    def trust(self) -> float:
        """κ."""
        return self._kept / self._promised

    def _fed(self, gamma: int) -> int:
        return max(self.size, gamma + 1) if gamma else 1

    def _search(self, gamma: int) -> float:
        steps = self.costs.draft
        return steps[1] + (gamma - 1) * steps[max(steps)] if gamma else 0.0

    def choose(self, reach: Callable[[], Sequence[float]]) -> int:
        """As :meth:`TreeSchedule.choose`."""
        search = self._search(self.length)
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
        return {**super().describe(), "tree_size": self.size, "tree_depth": max(0, self.length - 1)}
