"""From logits to the distributions p and q: precision, vocabulary, logits processors, softmax."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    LogitsProcessorList,
    MinPLogitsWarper,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from .compat import of_row
from .errors import LossyError

PREFIX_FREE = frozenset(
    {
        EpsilonLogitsWarper,
        EtaLogitsWarper,
        InfNanRemoveLogitsProcessor,
        LogitNormalization,
        MinPLogitsWarper,
        SuppressTokensLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
        TypicalLogitsWarper,
    }
)
"""Processors that read only the scores, so that all positions of a round can be processed in one call. Exact classes: a
subclass may look at the prefix."""


class Scorer:
    """Makes processed scores and distributions from one model's logits.

    Args:
        processors: the logits processors and warpers, in order.
        vocabulary: width V of the distributions, the target's.
        limit: token ids from here on get no probability (rows that are padding); V or less.
        role: ``"target"`` or ``"draft"``, for messages.
        ends: tokens that end a sequence. No processor that looks at the prefix is asked what follows one that was drafted.
        rows: sequences in the batch; processors that look at the prefix are called with one at a time.
    """

    def __init__(
        self,
        processors: LogitsProcessorList,
        vocabulary: int,
        limit: int,
        role: str,
        ends: Collection[int] = (),
        rows: int = 1,
    ) -> None:
        self.processors, self.vocabulary, self.limit, self.role = processors, vocabulary, limit, role
        self.ends = ends
        self.prefix_free = all(type(p) in PREFIX_FREE for p in processors)
        self._of_row = [processors] if rows == 1 else [of_row(processors, row) for row in range(rows)]

    def scores(
        self, logits: Float[Tensor, "batch n rows"], tokens: Int[Tensor, "batch capacity"], lengths: Sequence[int]
    ) -> Float[Tensor, "batch n vocab"]:
        """Processed scores, in float32 at least.

        Args:
            logits: raw logits of n consecutive positions.
            tokens: the sequences; position j of row r sees the first ``lengths[r] + j`` tokens.
            lengths: of each row's prefix at the first position.
        """
        scores = logits.float() if logits.dtype != torch.float64 else logits
        rows = scores.shape[-1]
        if rows == self.limit == self.vocabulary and not self.processors:
            return scores
        if rows > self.vocabulary:
            scores = scores[..., : self.vocabulary]
        if self.limit < min(rows, self.vocabulary):
            scores = scores.index_fill(-1, torch.arange(self.limit, scores.shape[-1], device=scores.device), -torch.inf)
        if rows < self.vocabulary:
            scores = torch.nn.functional.pad(scores, (0, self.vocabulary - rows), value=-torch.inf)
        if not self.processors:
            return scores
        tokens = tokens.to(scores.device)
        if self.prefix_free:
            prefix, flat = tokens[:, : min(lengths)], scores.reshape(-1, self.vocabulary)
            for processor in self.processors:  # the list's own call looks at each one's signature every time
                flat = processor(prefix, flat)
            return flat.view(scores.shape)
        each = zip(self._of_row, scores.split(1), tokens.split(1), lengths, strict=True)
        return torch.cat([self._asked(*row) for row in each])

    def select(self, rows: Sequence[int]) -> None:
        """Go on with some rows only."""
        self._of_row = [self._of_row[row] for row in rows]

    def _asked(
        self,
        processors: LogitsProcessorList,
        scores: Float[Tensor, "1 n vocab"],
        tokens: Int[Tensor, "1 capacity"],
        first: int,
    ) -> Float[Tensor, "1 n vocab"]:
        """One row's scores through processors that look at the prefix, position by position."""
        asked = scores.shape[1]
        if self.ends:
            drafted = tokens[0, first : first + asked - 1].tolist()
            asked = next((j for j, token in enumerate(drafted, start=1) if token in self.ends), asked)
        # a processor may write into what it is given: each position gets a tensor of its own
        each = [processors(tokens[:, : first + j], scores[:, j].clone()) for j in range(asked)]
        return torch.stack(each + each[-1:] * (scores.shape[1] - asked), 1)

    def forbidding(self, row: int) -> LogitsProcessorList:
        """Of a row's processors those that can forbid a token without seeing scores, which warpers can't."""
        return LogitsProcessorList(
            p for p in self._of_row[row] if type(p) not in PREFIX_FREE or type(p) is SuppressTokensLogitsProcessor
        )

    def complain(self, position: int) -> LossyError:
        """The error for a position whose scores are not a distribution."""
        names = ", ".join(type(p).__name__ for p in self.processors) or "none"
        return LossyError(
            f"the {self.role}'s scores at position {position} are NaN, or all -inf, so that no token can be chosen "
            f"(processors in use: {names}): check the model's weights and dtype, and processors that forbid every token"
        )


def without_temperature(processors: LogitsProcessorList, temperature: float) -> LogitsProcessorList:
    """The same processors with another temperature (0 and 1: none)."""
    others = [p for p in processors if type(p) is not TemperatureLogitsWarper]
    if temperature in (0, 1):
        return LogitsProcessorList(others)
    at = next((i for i, p in enumerate(processors) if type(p) is TemperatureLogitsWarper), len(others))
    return LogitsProcessorList([*others[:at], TemperatureLogitsWarper(float(temperature)), *others[at:]])


class Coins:
    """Uniform numbers on [0, 1) for one call of ``generate``.

    Args:
        generator: draws from it and leaves the global generator alone; None draws from torch's global generator. With a
            list, each row of a batch has its own, so that no row's coins depend on its neighbours.
        device: where the numbers are needed; a generator on another device works too.
    """

    def __init__(self, generator: torch.Generator | Sequence[torch.Generator] | None, device: torch.device) -> None:
        self.generator, self.device = generator, device

    def __call__(self, rows: int, *shape: int) -> Float[Tensor, "rows *shape"]:
        if self.generator is None or isinstance(self.generator, torch.Generator):
            return self._drawn(self.generator, rows, *shape)
        return torch.stack([self._drawn(generator, *shape) for generator in self.generator])

    def _drawn(self, generator: torch.Generator | None, *shape: int) -> Tensor:
        made_on = self.device if generator is None else generator.device
        # whatever the default dtype is: in half precision there are too few different coins
        return torch.rand(shape, generator=generator, device=made_on, dtype=torch.float32).to(self.device)

    def select(self, rows: Sequence[int]) -> None:
        """Go on with some rows only."""
        if isinstance(self.generator, Sequence):
            self.generator = [self.generator[row] for row in rows]
