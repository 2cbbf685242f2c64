from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float, Int
from torch import Tensor

from ..cached_model import CachedModel
from ..ragged import window
from .schedule import Schedule
from .stepwise import Stepping, StepwiseDraft


class TwoModelDraft(StepwiseDraft):
    """A smaller language model with its own cache, kept from round to round; one forward a drafted token.

    Args:
        model: the draft model and its cache.
        how, schedule: of :class:`StepwiseDraft`.
    """

    def __init__(self, model: CachedModel, how: Stepping, schedule: Schedule) -> None:
        super().__init__(how, schedule, samples=True)
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
