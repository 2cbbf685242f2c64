from __future__ import annotations

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

    An end of n tokens speaks for 2 n candidates, up to γ (the longest that is looked for: for γ): one token occurs again
    by chance, and to verify what is refused anyway costs time, on a CPU above all.

    Deterministic given the prefix and without a q, so it is verified by the tree coupling on a chain.

    Args:
        schedule: how many tokens to look up at most, γ.
        max_matching_ngram_size: the longest end to look for.
        scorer: the target's. What its processors forbid is no candidate, and none of them is asked about a prefix that
            they would never have let arise.

    Source: prompt lookup decoding (A. Saxena, 2023); candidates in proportion to what matched: SuffixDecoding 2411.04975.
    """

    has_probs = False
    samples = False
    LONGEST, FACTOR = 16, 2

    def __init__(
        self, schedule: Schedule, max_matching_ngram_size: int | None = None, scorer: Scorer | None = None
    ) -> None:
        super().__init__(schedule)
        self.longest, self.scorer = max_matching_ngram_size or self.LONGEST, scorer
        # after an end no processor is asked about the prefix; −1 may be how a caller says that no token is one
        ends = [end for end in scorer.ends if 0 <= end < scorer.limit] if scorer else []
        self._filler = min(ends, default=0)

    def propose(self, tokens: Int[Tensor, "batch capacity"], lengths: Sequence[int], count: int) -> Proposal:
        if count < 1:
            return Proposal.chain(tokens[:, :0])
        found = [self._found(row, tokens[row, :length], count) for row, length in enumerate(lengths)]
        longest = max(len(candidates) for candidates in found)
        # what a row found less than others is filled up; any candidate will do where the token is drawn from the law
        drafted = tokens.new_full((len(found), longest), self._filler)
        for row, candidates in enumerate(found):
            drafted[row, : len(candidates)] = candidates
        return Proposal.chain(drafted)

    def _found(self, row: int, settled: Int[Tensor, "length"], count: int) -> Int[Tensor, "drafted"]:
        """One row's candidates."""
        place, matched = self._last(settled)
        if not matched:
            return settled[:0]
        if matched < self.longest:
            count = min(count, self.FACTOR * matched)
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
