"""What ``generate`` returns, and the per-token records that go into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
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

    def __init__(self, rows: int, scores: bool, logits: bool, hidden_states: bool, attentions: bool) -> None:
        self.scores: list[list[Tensor]] | None = [[] for _ in range(rows)] if scores else None
        self.logits: list[list[Tensor]] | None = [[] for _ in range(rows)] if logits else None
        self.hidden_states: list[tuple[Tensor, ...]] | None = [] if hidden_states else None
        self.attentions: list[tuple[Tensor, ...]] | None = [] if attentions else None

    def with_scores(self, row: int, scores: Tensor) -> Callable[[int], tuple[Tensor, ...] | None]:
        """What a stopping criterion sees of a row after j more tokens: the recorded scores and j of these ([1, n, V]), None
        if they are not recorded."""

        def up_to(j: int) -> tuple[Tensor, ...] | None:
            return None if self.scores is None else (*self.scores[row], *scores[:, :j].unbind(1))

        return up_to

    def add(self, row: int, outputs: Any, logits: Tensor, scores: Tensor, path: Sequence[int]) -> None:
        """Keep what a verification forward says about the emitted tokens of a row.

        Args:
            row: which sequence of the batch.
            outputs: of the forward, which has this one row where states are asked for; its states may hold the prompt before
                the nodes, which then goes to the first token.
            logits: at each node, [1, nodes, rows].
            scores: along the path, [1, n, V].
            path: the nodes that the emitted tokens were drawn at.
        """
        if self.scores is not None:
            self.scores[row].extend(x.to(torch.float32, copy=True) for x in scores[:, : len(path)].unbind(1))
        if self.logits is not None:
            self.logits[row].extend(x.to(torch.float32, copy=True) for x in logits[:, list(path)].unbind(1))
        nodes = logits.shape[1]
        if self.hidden_states is not None:
            width = outputs.hidden_states[0].shape[1]
            for rows, _ in _rows_of_tokens(width, nodes, path):
                self.hidden_states.append(tuple(h[:, rows] for h in outputs.hidden_states))
        if self.attentions is not None and not outputs.attentions:
            raise LossyError(
                "output_attentions=True needs attention that gives its weights: attn_implementation='eager'"
            )
        if self.attentions is not None:
            width = outputs.attentions[0].shape[-2]
            for rows, before in _rows_of_tokens(width, nodes, path):
                # of the columns, those of the tokens before the nodes and of the nodes up to the token's own
                self.attentions.append(
                    tuple(
                        a[..., rows, [*range(a.shape[-1] - nodes), *(a.shape[-1] - nodes + n for n in before)]]
                        for a in outputs.attentions
                    )
                )

    def output(self, sequences: Tensor, cache: Any, stats: VerificationStats) -> LossyDecoderOnlyOutput:
        """The output object, with None for what was not asked for. Steps at which a row was finished already hold NaN."""
        fields: dict[str, Any] = {
            name: None if kept is None else tuple(kept)
            for name, kept in (("hidden_states", self.hidden_states), ("attentions", self.attentions))
        }
        for name, rows in (("scores", self.scores), ("logits", self.logits)):
            fields[name] = None
            if rows is not None:
                empty = torch.full_like(rows[0][0], torch.nan)
                fields[name] = tuple(torch.cat(step) for step in zip_longest(*rows, fillvalue=empty))
        return LossyDecoderOnlyOutput(sequences=sequences, verification=stats, **{CACHE_NAME: cache}, **fields)


def _rows_of_tokens(width: int, nodes: int, path: Sequence[int]) -> Iterator[tuple[slice, Sequence[int]]]:
    """For each node of a path its rows of a forward over ``width`` tokens that ends in ``nodes`` nodes, with everything
    before the nodes counted to the root; and the path up to it."""
    before = width - nodes
    for j, node in enumerate(path):
        yield slice(before + node if j else 0, before + node + 1), path[: j + 1]
