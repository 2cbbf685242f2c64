from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from ..cached_model import CachedModel
from ..ragged import window
from .stepwise import StepwiseDraft


class TwoModelDraft(StepwiseDraft):
    """A smaller language model with its own cache, kept from round to round; one forward a drafted token.

    Args:
        model: the draft model and its cache.
        **settings: of :class:`StepwiseDraft`.
    """

    def __init__(self, model: CachedModel, **settings: Any) -> None:
        super().__init__(samples=True, **settings)
        self.model = self.runs = model

    def logits(
        self, tokens: Int[Tensor, "batch capacity"], lengths: Sequence[int], drafted: list[Int[Tensor, "batch"]]
    ) -> Float[Tensor, "batch 1 rows"]:
        if drafted:
            new = drafted[-1][:, None]
        else:
            count = self.model.missing(lengths)
            new = window(tokens, [length - count for length in lengths], count)
        logits: Tensor = self.model(new).logits[:, -1:]
        return logits

    def settle(self, lengths: Sequence[int]) -> None:
        self.model.crop([min(held, length - 1) for held, length in zip(self.model.held, lengths, strict=True)])
