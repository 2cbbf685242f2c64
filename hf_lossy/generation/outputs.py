"""What ``generate`` returns, and the per-token records that go into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput

from ..compat import CACHE_NAME
from ..errors import LossyError
from .statistics import VerificationStats


@dataclass
class LossyDecoderOnlyOutput(GenerateDecoderOnlyOutput):
    """Transformers' output of ``generate`` with one field more.

    Attributes:
        verification: what verification did (:class:`VerificationStats`).
    """

    verification: VerificationStats | None = None


class Recorder:
    """Collects, for each emitted token, what the caller asked to see: processed target scores, raw logits, hidden states
    and attentions, each as transformers' plain ``generate`` gives them (the first token's states hold the prompt)."""

    def __init__(self, scores: bool, logits: bool, hidden_states: bool, attentions: bool) -> None:
        self.scores: list[Tensor] | None = [] if scores else None
        self.logits: list[Tensor] | None = [] if logits else None
        self.hidden_states: list[tuple[Tensor, ...]] | None = [] if hidden_states else None
        self.attentions: list[tuple[Tensor, ...]] | None = [] if attentions else None

    def with_scores(self, scores: Tensor) -> Callable[[int], tuple[Tensor, ...] | None]:
        """What a stopping criterion sees after j more tokens: the recorded scores and j of these, None if not recorded."""

        def up_to(j: int) -> tuple[Tensor, ...] | None:
            return None if self.scores is None else (*self.scores, *scores[:, :j].unbind(1))

        return up_to

    def add(self, outputs: Any, logits: Tensor, scores: Tensor, count: int) -> None:
        """Keep the first ``count`` positions of a verification forward; logits and scores are [B, G + 1, V], the states
        may hold the prompt before them, which then goes to the first token."""
        for kept, given in ((self.scores, scores), (self.logits, logits)):
            if kept is not None:
                kept.extend(given[:, j].to(torch.float32, copy=True) for j in range(count))
        if self.hidden_states is not None:
            width = outputs.hidden_states[0].shape[1]
            for rows in _rows_of_tokens(width, scores.shape[1], count):
                self.hidden_states.append(tuple(h[:, rows] for h in outputs.hidden_states))
        if self.attentions is not None and not outputs.attentions:
            raise LossyError(
                "output_attentions=True needs attention that gives its weights: attn_implementation='eager'"
            )
        if self.attentions is not None:
            width = outputs.attentions[0].shape[-2]
            for rows in _rows_of_tokens(width, scores.shape[1], count):
                # the row of the token sees nothing after itself
                self.attentions.append(
                    tuple(a[..., rows, : a.shape[-1] - (width - rows.stop)] for a in outputs.attentions)
                )

    def output(self, sequences: Tensor, cache: Any, stats: VerificationStats) -> LossyDecoderOnlyOutput:
        """The output object, with None for what was not asked for."""
        fields = {name: getattr(self, name) for name in ("scores", "logits", "hidden_states", "attentions")}
        fields = {name: None if value is None else tuple(value) for name, value in fields.items()}
        return LossyDecoderOnlyOutput(sequences=sequences, verification=stats, **{CACHE_NAME: cache}, **fields)


def _rows_of_tokens(width: int, positions: int, count: int) -> Iterator[slice]:
    """The rows of a forward over ``width`` tokens that belong to each of the first ``count`` of its last ``positions``
    positions; everything before them belongs to the first."""
    before = width - positions
    for j in range(count):
        yield slice(0 if j == 0 else before + j, before + j + 1)
