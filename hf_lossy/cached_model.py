"""A causal language model together with its cache: what both the target and a draft are in the loop."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache

from .compat import CACHE_NAME, crop, free_slots, is_croppable, move
from .errors import LossyError
from .tapping import Taps
from .tree_mask import check_takes_trees, tree_masks


class CachedModel:
    """Feeds tokens to a model, keeps its cache, and rolls it back.

    Args:
        model: a causal language model.
        cache: its cache; what it already holds is the beginning of the sequence.
        role: ``"target"`` or ``"draft"``, for messages.
        attention_mask: [B, L] of the prompt where it has padding, else None.
        position_ids: [B, L] of the prompt where they are not just counted from 0, else None.
        taps: hidden states to keep of the cached tokens, as transformers' ``hidden_states`` indices; see :meth:`tapped`.
        forward_kwargs: passed to every forward.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        cache: Cache,
        role: str,
        *,
        attention_mask: Int[Tensor, "batch prompt"] | None = None,
        position_ids: Int[Tensor, "batch prompt"] | None = None,
        taps: Sequence[int] = (),
        **forward_kwargs: Any,
    ) -> None:
        self.model, self.cache, self.role = model, cache, role
        self.mask, self.positions, self.forward_kwargs = attention_mask, position_ids, forward_kwargs
        self.forwards, self.seconds = 0, 0.0
        # without attention there is no length to ask for, nor a way back
        self._recurrent = bool(cache.layers) and all(cache.is_linear)
        self.length = 0 if self._recurrent else int(cache.get_seq_length())
        """Tokens in the cache."""
        self._taps = Taps(model, taps, self.length) if taps else None
        self._root = 0
        self._first = True
        # offloaded weights are nowhere; their hooks move the inputs, and the outputs back
        self.device = model.device if model.device.type != "meta" else torch.device("cpu")
        # what transformers' own method adds to the arguments matters for prefills and multimodal inputs only, and costs
        # as much as a small model's layer; a model with a method of its own gets it called every time
        own = getattr(type(model), "prepare_inputs_for_generation", None)
        self._simple = own is GenerationMixin.prepare_inputs_for_generation
        self._trims = any(cache.is_sliding)
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        if hasattr(cache, "activate_past_recording"):
            cache.activate_past_recording()
        self._check_croppable()

    def __call__(
        self, tokens: Int[Tensor, "batch new"], logits: int = 1, seen: Bool[Tensor, "nodes nodes"] | None = None
    ) -> Any:
        """One forward over tokens that continue the cached ones; the model's output.

        Args:
            tokens: [B, n].
            logits: how many positions' logits are needed at least, the last ones.
            seen: where the last tokens are the nodes of a tree, which of them (columns) each of them (rows) sees.
        """
        tokens = tokens.to(self.device)
        end = self.length + tokens.shape[1]
        kwargs: dict[str, Any] = {**self.forward_kwargs, CACHE_NAME: self.cache, "use_cache": True}
        if self.mask is not None:
            kwargs["attention_mask"] = _extended(self.mask, end, count=False)
        if self.positions is not None:
            kwargs["position_ids"] = _extended(self.positions, end, count=True)[:, self.length :]
        if self._keeps_logits:
            kwargs["logits_to_keep"] = logits
        if seen is not None:
            kwargs |= self._tree(seen, tokens.shape[1])
            kwargs["input_ids"] = tokens
        elif self._first or not self._simple:
            kwargs = self.model.prepare_inputs_for_generation(tokens, is_first_iteration=self._first, **kwargs)
        else:
            kwargs["input_ids"] = tokens
        began = time.perf_counter()
        if self._taps is None:
            outputs = self.model(**kwargs, return_dict=True)
        else:
            with self._taps:
                outputs = self.model(**kwargs, return_dict=True)
        self.seconds += time.perf_counter() - began
        self.length, self.forwards = end, self.forwards + 1
        self._root = end - (1 if seen is None else len(seen))
        if self._first:
            self._first = False
            self._check_croppable()
        return outputs

    def crop(self, length: int, path: Sequence[int] = ()) -> None:
        """Roll the cache back to its first ``length`` tokens. (Removing none still trims a sliding window.)

        Args:
            length: how many tokens stay.
            path: where the last forward held a tree, the nodes whose tokens are settled, the root first; those that stay
                are moved up to follow one another.
        """
        path = path[: max(0, length - self._root)]
        if any(node != i for i, node in enumerate(path)):
            move(self.cache, self.length, [self._root + node for node in path], self._root)
            if self._taps is not None:
                self._taps.move([self._root + node for node in path], self._root)
        if self._taps is not None:
            self._taps.crop(length)
        surplus = self.length - length
        if surplus > 0 or (self._trims and self.length):
            crop(self.cache, surplus)
        self.length = length

    @property
    def room(self) -> int | None:
        """How many more tokens fit into the cache; None where it grows."""
        return free_slots(self.cache, self.length)

    def tapped(self, start: int, end: int) -> Float[Tensor, "batch rows joined"]:
        """The tapped hidden states of the tokens from ``start`` to ``end``, joined; those before ``start`` are forgotten."""
        assert self._taps is not None
        return self._taps.take(start, end)

    def _tree(self, seen: Bool[Tensor, "nodes nodes"], new: int) -> dict[str, Any]:
        """Masks and positions of a forward whose last tokens are the nodes of a tree."""
        check_takes_trees(self.model, self.cache, self.role)
        before = new - len(seen)
        places = torch.arange(self.length, self.length + new)
        places[before:] = self.length + before + seen.sum(1) - 1
        end = int(places.max()) + 1
        positions = torch.arange(end)[None] if self.positions is None else _extended(self.positions, end, count=True)
        padding = None if self.mask is None else _extended(self.mask, self.length + new, count=False)
        masks = tree_masks(self.model, self.cache, self.length, places, seen, padding)
        return {"attention_mask": masks, "position_ids": positions.to(self.device)[:, places.to(positions.device)]}

    def release(self) -> None:
        """Give the cache back to the caller: its layers need not record what a rollback would need any more."""
        for layer in self.cache.layers:
            if hasattr(layer, "record_past"):
                layer.record_past = False

    def _check_croppable(self) -> None:
        if self._recurrent or not is_croppable(self.cache):
            kinds = {type(self.cache).__name__, *(type(layer).__name__ for layer in self.cache.layers)}
            raise LossyError(
                f"the {self.role}'s cache can't be rolled back after a refused token ({', '.join(sorted(kinds))}): use a "
                "dynamic cache (leave cache_implementation unset), or generate without an assistant"
            )


def _extended(prompt: Tensor, length: int, count: bool) -> Tensor:
    """A prompt's mask or positions continued to a length: with ones, or counting on from the last."""
    extra = length - prompt.shape[1]
    if extra <= 0:
        return prompt[:, :length]
    tail = torch.ones_like(prompt[:, :1]).expand(-1, extra)
    return torch.cat([prompt, prompt[:, -1:] + tail.cumsum(1) if count else tail], 1)
