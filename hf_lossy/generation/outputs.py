"""What ``generate`` returns, and the per-token records that go into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput

from ..compat import CACHE_NAME
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
        self._prompt: Any = None

    def prefill(self, outputs: Any) -> None:
        """Keep the states of the prompt."""
        if self.hidden_states is not None or self.attentions is not None:
            self._prompt = outputs

    def with_scores(self, scores: Tensor) -> Callable[[int], tuple[Tensor, ...] | None]:
        """What a stopping criterion sees after j more tokens: the recorded scores and j of these, None if not recorded."""

        def up_to(j: int) -> tuple[Tensor, ...] | None:
            return None if self.scores is None else (*self.scores, *scores[:, :j].unbind(1))

        return up_to

    def add(self, outputs: Any, logits: Tensor, scores: Tensor, count: int) -> None:
        """Keep the first ``count`` positions of a verification forward; logits and scores are [B, G + 1, V]."""
        for kept, given in ((self.scores, scores), (self.logits, logits)):
            if kept is not None:
                kept.extend(given[:, j].to(torch.float32, copy=True) for j in range(count))
        for j in range(count):
            if self.hidden_states is not None:
                states = tuple(h[:, j : j + 1] for h in outputs.hidden_states)
                if self._prompt is not None:
                    states = tuple(
                        torch.cat([a, b], 1) for a, b in zip(self._prompt.hidden_states, states, strict=True)
                    )
                self.hidden_states.append(states)
            if self.attentions is not None:
                states = tuple(a[..., j : j + 1, : a.shape[-1] - (a.shape[-2] - 1 - j)] for a in outputs.attentions)
                if self._prompt is not None:
                    states = tuple(_stack_rows(a, b) for a, b in zip(self._prompt.attentions, states, strict=True))
                self.attentions.append(states)
            self._prompt = None

    def output(self, sequences: Tensor, cache: Any, stats: VerificationStats) -> LossyDecoderOnlyOutput:
        """The output object, with None for what was not asked for."""
        fields = {name: getattr(self, name) for name in ("scores", "logits", "hidden_states", "attentions")}
        fields = {name: None if value is None else tuple(value) for name, value in fields.items()}
        return LossyDecoderOnlyOutput(sequences=sequences, verification=stats, **{CACHE_NAME: cache}, **fields)


def _stack_rows(above: Tensor, below: Tensor) -> Tensor:
    """Attention rows of the prompt above the row of its last token, which sees one key more."""
    return torch.cat([torch.nn.functional.pad(above, (0, below.shape[-1] - above.shape[-1])), below], -2)
