"""Keeping chosen hidden states of a target while it decodes: the features of an EAGLE-3 head."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from .errors import LossyError
from .ragged import move_up, window


class Taps:
    """Records hidden states of the forwards inside its ``with`` blocks, by hooks; no others are kept, and none of other
    threads, which may decode with the same model meanwhile.

    Args:
        model: the target.
        indices: as in transformers' ``hidden_states``: i is the input of layer i. The last one, N, is the last layer's
            output *before* the final norm (transformers gives it after the norm).
        start: the position of the first token that will be seen.
    """

    def __init__(self, model: PreTrainedModel, indices: Sequence[int], start: int = 0) -> None:
        self._modules = [_module(model, i) for i in indices]
        self._start = start
        self._joined: Tensor | None = None
        self._new: list[Tensor | None] = [None] * len(indices)
        self._hooks: list[Any] = []
        self._thread = 0

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        for slot, module in enumerate(self._modules):
            self._hooks.append(module.register_forward_pre_hook(self._keep(slot), with_kwargs=True))

    def __exit__(self, *error: object) -> None:
        while self._hooks:
            self._hooks.pop().remove()
        if error[0] is None:
            parts = [part for part in self._new if part is not None]
            joined = torch.cat([part.to(parts[0].device) for part in parts], -1)
            self._joined = joined if self._joined is None else torch.cat([self._joined, joined], 1)
        self._new = [None] * len(self._new)

    def _keep(self, slot: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if threading.get_ident() == self._thread:
                self._new[slot] = args[0] if args else kwargs["hidden_states"]

        return hook

    def take(self, starts: Sequence[int], count: int) -> Float[Tensor, "batch count joined"]:
        """The states of ``count`` tokens of each row from its own start on; those before the first of them are forgotten."""
        assert self._joined is not None
        first = min(starts)
        self._joined, self._start = self._joined[:, first - self._start :], first
        return window(self._joined, [start - first for start in starts], count)

    def close_gaps(self, starts: Sequence[int], edge: int, order: Sequence[Sequence[int]] | None = None) -> None:
        """Move the states from column ``edge`` on, of each row to its own start (:func:`hf_lossy.ragged.move_up`)."""
        assert self._joined is not None
        at = self._start
        move_up(self._joined, [start - at for start in starts], edge - at, order, at)

    def select(self, rows: Int[Tensor, "kept"]) -> None:
        """Keep some rows."""
        if self._joined is not None:
            self._joined = self._joined[rows.to(self._joined.device)]

    def crop(self, length: int) -> None:
        """Forget the states of all tokens but the first ``length``."""
        if self._joined is not None:
            self._joined = self._joined[:, : max(0, length - self._start)]


def _module(model: PreTrainedModel, index: int) -> nn.Module:
    """The module whose input is the hidden state of an index."""
    decoder = model.get_decoder()
    layers, norm = getattr(decoder, "layers", None), getattr(decoder, "norm", None)
    if layers is None or norm is None:
        raise LossyError(
            f"{type(decoder).__name__} has no .layers and .norm to read hidden states from: EAGLE-3 heads work with Llama-, "
            "Qwen-, Mistral- and Gemma-type targets"
        )
    if not 0 <= index <= len(layers):
        raise LossyError(f"the head taps hidden state {index}, and the target has {len(layers)} layers: wrong target?")
    module: nn.Module = norm if index == len(layers) else layers[index]
    return module
