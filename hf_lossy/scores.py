"""From logits to the distributions p and q: precision, vocabulary, logits processors, softmax."""

from __future__ import annotations

from collections.abc import Collection

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
    """

    def __init__(
        self, processors: LogitsProcessorList, vocabulary: int, limit: int, role: str, ends: Collection[int] = ()
    ) -> None:
        self.processors, self.vocabulary, self.limit, self.role = processors, vocabulary, limit, role
        self.ends = ends
        self.prefix_free = all(type(p) in PREFIX_FREE for p in processors)

    def scores(
        self, logits: Float[Tensor, "batch n rows"], tokens: Int[Tensor, "batch capacity"], first: int
    ) -> Float[Tensor, "batch n vocab"]:
        """Processed scores, in float32 at least.

        Args:
            logits: raw logits of n consecutive positions.
            tokens: the sequences, of which position j sees the first ``first + j`` tokens.
            first: length of the prefix of the first position.
        """
        scores = logits.float() if logits.dtype != torch.float64 else logits
        rows = scores.shape[-1]
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
            return self.processors(tokens[:, :first], scores.reshape(-1, self.vocabulary)).view(scores.shape)
        each: list[Tensor] = []
        asked = scores.shape[1]
        if self.ends:
            drafted = zip(*tokens[:, first : first + asked - 1].tolist(), strict=True)
            ended = (j for j, new in enumerate(drafted, start=1) if all(token in self.ends for token in new))
            asked = next(ended, asked)
        for j in range(asked):
            # a processor may write into what it is given: each position gets a tensor of its own
            each.append(self.processors(tokens[:, : first + j], scores[:, j].clone()))
        return torch.stack(each + each[-1:] * (scores.shape[1] - asked), 1)

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
        generator: draws from it and leaves the global generator alone; None draws from torch's global generator.
        device: where the numbers are needed; a generator on another device works too.
    """

    def __init__(self, generator: torch.Generator | None, device: torch.device) -> None:
        self.generator, self.device = generator, device
        self._made_on = device if generator is None else generator.device

    def __call__(self, *shape: int) -> Float[Tensor, "*shape"]:
        return torch.rand(shape, generator=self.generator, device=self._made_on).to(self.device)
