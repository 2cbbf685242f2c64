from __future__ import annotations

from jaxtyping import Int
from torch import Tensor
from transformers.generation import PromptLookupCandidateGenerator

from .base import Draft, Proposal


class PromptLookupDraft(Draft):
    """Candidates looked up in the sequence itself: what followed the last occurrence of the same n-gram.

    Deterministic given the prefix and without a q, so it is verified by the tree coupling on a chain.

    Args:
        num_assistant_tokens: how many tokens to look up.
        max_matching_ngram_size: the longest n-gram to match.
    """

    has_probs = False

    def __init__(self, num_assistant_tokens: int, max_matching_ngram_size: int = 2) -> None:
        super().__init__(num_assistant_tokens)
        self.max_matching_ngram_size = max_matching_ngram_size

    def propose(self, tokens: Int[Tensor, "batch capacity"], length: int, count: int) -> Proposal:
        settled = tokens[:, :length]
        if count == 0 or length < 2:
            return Proposal(settled[:, :0], None)
        lookup = PromptLookupCandidateGenerator(
            num_output_tokens=count,
            max_matching_ngram_size=self.max_matching_ngram_size,
            max_length=length + count + 1,
        )
        return Proposal(lookup.get_candidates(settled)[0][:, length : length + count], None)

    def complain(self, position: int) -> Exception:
        raise AssertionError(f"prompt lookup has no scores at position {position}")
