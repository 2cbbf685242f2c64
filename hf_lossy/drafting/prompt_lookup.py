from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from ..scores import Scorer
from .base import Draft, Proposal
from .schedule import Schedule


class PromptLookupDraft(Draft):
    """Candidates looked up in the sequence itself: what followed the last earlier occurrence of the longest end of it that
    has one.

    How many they are the schedule says, from the length of that end: one token occurs again by chance, and to verify what
    is refused anyway costs time, on a CPU above all. An end that is as long as any that is looked for counts as endless.

    Deterministic given the prefix and without a q, so it is verified by the tree coupling on a chain.

    Args:
        schedule: how many tokens to look up, γ at most (:meth:`Schedule.offer`).
        max_matching_ngram_size: the longest end to look for.
        scorer: the target's. What its processors forbid is no candidate, and none of them is asked about a prefix that
            they would never have let arise.

    Source: prompt lookup decoding (A. Saxena, 2023).
    """

    has_probs = False
    samples = False
    LONGEST = 16

    def __init__(
        self, schedule: Schedule, max_matching_ngram_size: int | None = None, scorer: Scorer | None = None
    ) -> None:
        super().__init__(schedule)
        self.longest, self.scorer = max_matching_ngram_size or self.LONGEST, scorer
        # after an end no processor is asked about the prefix; −1 may be how a caller says that no token is one
        ends = [end for end in scorer.ends if 0 <= end < scorer.limit] if scorer else []
        self._filler = min(ends, default=None if scorer and not scorer.prefix_free else 0)

    def propose(self, tokens: Int[Tensor, "batch capacity"], lengths: Sequence[int], count: int) -> Proposal:
        rows = [tokens[row, :length] for row, length in enumerate(lengths)]
        places, matched = zip(*map(self._last, rows), strict=True)
        asked = self.schedule.offer([n if n < self.longest else sys.maxsize for n in matched], max(0, count))
        found = [self._found(row, *where) for row, where in enumerate(zip(rows, places, asked, strict=True))]
        # what a row found less than others is filled up; any candidate will do where the token is drawn from the law, if
        # there is one that no processor is asked about
        drafted = (min if self._filler is None else max)(map(len, found))
        candidates = tokens.new_full((len(found), drafted), self._filler or 0)
        for row, some in enumerate(found):
            candidates[row, : len(some)] = some[:drafted]
        return Proposal.chain(candidates)

    def _found(self, row: int, settled: Int[Tensor, "length"], place: int, count: int) -> Int[Tensor, "drafted"]:
        """One row's candidates: what stands at the place."""
        if not count:
            return settled[:0]
        # what follows the last occurrence may be few tokens: then the text repeats itself, and goes on to
        found = settled[place:][torch.arange(count, device=settled.device) % (len(settled) - place)]
        return found[: self._allowed(row, settled[None], found[None])]

    def _last(self, settled: Int[Tensor, "length"]) -> tuple[int, int]:
        """What follows the last occurrence of the longest end that occurred before: its place, and the end's length."""
        ends, place, matched = (settled[:-1] == settled[-1]).nonzero()[:, 0], len(settled), 0
        while len(ends) and matched < self.longest:
            place, matched = int(ends[-1]) + 1, matched + 1
            before = ends - matched
            ends = ends[(before >= 0) & (settled[before] == settled[-1 - matched])]
        return place, matched

    def _allowed(self, row: int, prefix: Int[Tensor, "one length"], found: Int[Tensor, "one drafted"]) -> int:
        """How many of the candidates the processors let pass; one that ends the sequence is the last."""
        forbidding = None if self.scorer is None else self.scorer.forbidding(row)
        if not forbidding or self.scorer is None:
            return found.shape[1]
        for i, token in enumerate(found[0].tolist()):
            scores = forbidding(prefix, torch.zeros(1, self.scorer.vocabulary, device=prefix.device))
            if scores[0, token] == -torch.inf:
                return i
            if token in self.scorer.ends:
                return i + 1
            prefix = torch.cat([prefix, found[:, i : i + 1]], 1)
        return found.shape[1]

    def complain(self, position: int) -> Exception:
        raise AssertionError(f"prompt lookup has no scores at position {position}")
