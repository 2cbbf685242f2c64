from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import LogitsProcessorList, SuppressTokensLogitsProcessor
from transformers.generation import PromptLookupCandidateGenerator

from ..scores import PREFIX_FREE, Scorer
from ..tree import Tree
from .base import Draft, Proposal


class PromptLookupDraft(Draft):
    """Candidates looked up in the sequence itself: what followed the first occurrence of the same n-gram.

    Deterministic given the prefix and without a q, so it is verified by the tree coupling on a chain.

    Args:
        num_assistant_tokens: how many tokens to look up.
        max_matching_ngram_size: the longest n-gram to match.
        scorer: the target's. What its processors forbid is no candidate, and none of them is asked about a prefix that
            they would never have let arise.
        schedule: how γ adapts, see :class:`Draft`.
    """

    has_probs = False
    samples = False

    def __init__(
        self,
        num_assistant_tokens: int,
        max_matching_ngram_size: int = 2,
        scorer: Scorer | None = None,
        schedule: str = "constant",
    ) -> None:
        super().__init__(num_assistant_tokens, schedule)
        self.max_matching_ngram_size, self.scorer = max_matching_ngram_size, scorer
        # warpers forbid by the scores, which a lookup has none of
        self.forbidding = LogitsProcessorList(
            p
            for p in (scorer.processors if scorer else ())
            if type(p) not in PREFIX_FREE or type(p) is SuppressTokensLogitsProcessor
        )

    def propose(self, tokens: Int[Tensor, "batch capacity"], length: int, count: int) -> Proposal:
        settled = tokens[:, :length]
        if count == 0 or length < 2:
            return Proposal.nothing(tokens)
        lookup = PromptLookupCandidateGenerator(
            num_output_tokens=count,
            max_matching_ngram_size=self.max_matching_ngram_size,
            max_length=length + count + 1,
        )
        found = lookup.get_candidates(settled)[0][:, length : length + count]
        return Proposal(Tree.chain(found[:, : self._allowed(settled, found)]))

    def _allowed(self, prefix: Int[Tensor, "one length"], found: Int[Tensor, "one drafted"]) -> int:
        """How many of the candidates the processors let pass; one that ends the sequence is the last."""
        if not self.forbidding or self.scorer is None:
            return found.shape[1]
        for i, token in enumerate(found[0].tolist()):
            scores = self.forbidding(prefix, torch.zeros(1, self.scorer.vocabulary, device=prefix.device))
            if scores[0, token] == -torch.inf:
                return i
            if token in self.scorer.ends:
                return i + 1
            prefix = torch.cat([prefix, found[:, i : i + 1]], 1)
        return found.shape[1]

    def complain(self, position: int) -> Exception:
        raise AssertionError(f"prompt lookup has no scores at position {position}")
