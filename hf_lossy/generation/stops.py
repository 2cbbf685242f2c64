"""Where a sequence stops: checked at every accepted prefix, not only at the ends of blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList


class Stops:
    """The stopping criteria of a run. End-of-sequence ids and the length are read off; the others are called."""

    def __init__(self, criteria: StoppingCriteriaList, max_length: int) -> None:
        self.max_length, self.eos, self.others = max_length, set[int](), []
        for criterion in criteria:
            if type(criterion) is EosTokenCriteria:
                self.eos.update(criterion.eos_token_id.flatten().tolist())
            elif type(criterion) is MaxLengthCriteria:
                self.max_length = min(self.max_length, criterion.max_length)
            else:
                self.others.append(criterion)

    def room(self, length: int) -> int:
        """How many more tokens a sequence of ``length`` may get."""
        return self.max_length - length

    def first(
        self,
        tokens: Int[Tensor, "one capacity"],
        length: int,
        new: Sequence[int],
        scores: Callable[[int], tuple[Tensor, ...] | None],
    ) -> tuple[int, str | None]:
        """How many of the ``new`` tokens, written into ``tokens`` after ``length``, are emitted, and why it stops there.

        ``scores(j)`` gives what criteria may see: the recorded scores up to and with the j-th new token.
        """
        for j, token in enumerate(new, start=1):
            if token in self.eos:
                return j, "eos"
            if length + j >= self.max_length:
                return j, "length"
            for criterion in self.others:
                if torch.as_tensor(criterion(tokens[:, : length + j], scores(j))).all():
                    return j, type(criterion).__name__
        return len(new), None
