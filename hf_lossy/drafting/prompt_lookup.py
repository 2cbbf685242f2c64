from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor
from transformers.generation import PromptLookupCandidateGenerator

from ..scores import Scorer
from .base import Draft, Proposal
from .schedule import Schedule


class PromptLookupDraft(Draft):
    """Candidates looked up in the sequence itself: what followed the first occurrence of the same n-gram.

    Deterministic given the prefix and without a q, so it is verified by the tree coupling on a chain.

    Args:
        schedule: how many tokens to look up.
        max_matching_ngram_size: the longest n-gram to match.
        scorer: the target's. What its processors forbid is no candidate, and none of them is asked about a prefix that
            they would never have let arise.
    """

    has_probs = False
    samples = False

    def __init__(self, schedule: Schedule, max_matching_ngram_size: int = 2, scorer: Scorer | None = None) -> None:
        super().__init__(schedule)
        self.max_matching_ngram_size, self.scorer = max_matching_ngram_size, scorer
        # after an end no processor is asked about the prefix
        self._filler = min(scorer.ends, default=0) if scorer else 0

    def propose(self, tokens: Int[Tensor, "batch capacity"], lengths: Sequence[int], count: int) -> Proposal:
        if count < 1:
            return Proposal.chain(tokens[:, :0])
        found = [self._found(row, tokens[row : row + 1, :length], count) for row, length in enumerate(lengths)]
        longest = max(len(candidates) for candidates in found)
        # what a row found less than others is filled up; any candidate will do where the token is drawn from the law
        drafted = tokens.new_full((len(found), longest), self._filler)
        for row, candidates in enumerate(found):
            drafted[row, : len(candidates)] = candidates
        return Proposal.chain(drafted)

    def _found(self, row: int, settled: Int[Tensor, "one length"], count: int) -> Int[Tensor, "drafted"]:
        """One row's candidates."""
        length = settled.shape[1]
        if length < 2:
            return settled[0, :0]
        lookup = PromptLookupCandidateGenerator(
            num_output_tokens=count,
            max_matching_ngram_size=self.max_matching_ngram_size,
            max_length=length + count + 1,
        )
        found = lookup.get_candidates(settled)[0][:, length : length + count]
        return found[0, : self._allowed(row, settled, found)]

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
