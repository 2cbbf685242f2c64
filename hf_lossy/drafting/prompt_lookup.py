from __future__ import annotations

from jaxtyping import Int
from torch import Tensor
from transformers import LogitsProcessorList, SuppressTokensLogitsProcessor
from transformers.generation import PromptLookupCandidateGenerator

from ..scores import PREFIX_FREE
from .base import Draft, Proposal


class PromptLookupDraft(Draft):
    """Candidates looked up in the sequence itself: what followed the last occurrence of the same n-gram.

    Deterministic given the prefix and without a q, so it is verified by the tree coupling on a chain.

    Args:
        num_assistant_tokens: how many tokens to look up.
        max_matching_ngram_size: the longest n-gram to match.
        processors: those of the run; what they forbid is no candidate, and none of them is asked about a prefix that they
            would never have let arise.
        vocabulary: width of the scores that they expect.
        schedule: how γ adapts, see :class:`Draft`.
    """

    has_probs = False

    def __init__(
        self,
        num_assistant_tokens: int,
        max_matching_ngram_size: int = 2,
        processors: LogitsProcessorList | None = None,
        vocabulary: int | None = None,
        schedule: str = "constant",
    ) -> None:
        super().__init__(num_assistant_tokens, schedule)
        self.max_matching_ngram_size, self.vocabulary = max_matching_ngram_size, vocabulary
        # warpers forbid by the scores, which a lookup has none of
        forbidding = [
            p for p in processors or () if type(p) not in PREFIX_FREE or type(p) is SuppressTokensLogitsProcessor
        ]
        self.forbidding = LogitsProcessorList(forbidding) if forbidding else None

    def propose(self, tokens: Int[Tensor, "batch capacity"], length: int, count: int) -> Proposal:
        settled = tokens[:, :length]
        if count == 0 or length < 2:
            return Proposal(settled[:, :0], None)
        lookup = PromptLookupCandidateGenerator(
            num_output_tokens=count,
            max_matching_ngram_size=self.max_matching_ngram_size,
            max_length=length + count + 1,
            logits_processor=self.forbidding,
            vocab_size=self.vocabulary,
        )
        return Proposal(lookup.get_candidates(settled)[0][:, length : length + count], None)

    def complain(self, position: int) -> Exception:
        raise AssertionError(f"prompt lookup has no scores at position {position}")
