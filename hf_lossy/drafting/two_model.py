from __future__ import annotations

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from ..cached_model import CachedModel
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
        self, tokens: Int[Tensor, "batch capacity"], length: int, drafted: list[Int[Tensor, "batch"]]
    ) -> Float[Tensor, "batch 1 rows"]:
        new = drafted[-1][:, None] if drafted else tokens[:, self.model.length : length]
        logits: Tensor = self.model(new).logits[:, -1:]
        return logits

    def settle(self, length: int) -> None:
        self.model.crop(min(self.model.length, length - 1))
