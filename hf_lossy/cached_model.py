"""A causal language model together with its cache: what both the target and a draft are in the loop.

The rows of a batch hold different numbers of tokens. Row r has its first ``base[r]`` tokens in the columns 0, 1, … of the
cache; what a forward adds goes behind the longest row, into columns from ``edge`` on, for all rows alike. A mask hides the
gap between. Rolling back moves each row's added tokens up to its own: only these few columns are ever copied.
"""

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

from .compat import CACHE_NAME, close_gaps, crop, free_slots, is_croppable, takes_batches
from .compiling import Compiling
from .errors import LossyError
from .ragged import columns
from .tapping import Taps
from .tree_mask import check_takes_trees, tree_masks


class CachedModel:
    """Feeds tokens to a model, keeps its cache, and rolls it back.

    Args:
        model: a causal language model.
        cache: its cache; what it already holds is the beginning of the sequence.
        role: ``"target"`` or ``"draft"``, for messages.
        rows: sequences in the batch, B.
        attention_mask: [B, L] of the prompt where it has padding, else None.
        position_ids: [B, L] of the prompt where they are not just counted from 0, else None.
        last_position: no position is counted beyond it: in a batch a row that is nearly full drafts on with the others, past
            its own end, and what comes of it is dropped.
        taps: hidden states to keep of the cached tokens, as transformers' ``hidden_states`` indices; see :meth:`tapped`.
        compiled: how forwards are compiled, all but the first, which reads the prompt; None: they aren't.
        forward_kwargs: passed to every forward.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        cache: Cache,
        role: str,
        *,
        rows: int = 1,
        attention_mask: Int[Tensor, "batch prompt"] | None = None,
        position_ids: Int[Tensor, "batch prompt"] | None = None,
        last_position: int | None = None,
        taps: Sequence[int] = (),
        compiled: Compiling | None = None,
        **forward_kwargs: Any,
    ) -> None:
        self.model, self.cache, self.role, self.compiled = model, cache, role, compiled
        self.mask, self.positions, self.forward_kwargs = attention_mask, position_ids, forward_kwargs
        self._forward = model if compiled is None else model.get_compiled_call(compiled.config)
        self.forwards, self.seconds = 0, 0.0
        # without attention there is no length to ask for, nor a way back
        self._recurrent = bool(cache.layers) and all(cache.is_linear)
        self._edge, self._tail = 0 if self._recurrent else int(cache.get_seq_length()), 0
        self._base = [self._edge] * rows
        self.last_position = last_position
        self._taps = Taps(model, taps, self._edge) if taps else None
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
        self._check_cache()

    @property
    def held(self) -> list[int]:
        """Tokens of each row in the cache."""
        return [base + self._tail for base in self._base]

    def missing(self, lengths: Sequence[int]) -> int:
        """How many tokens to feed for each row's cache to hold its first ``lengths[r]``. Rows that lack fewer than others
        are rolled back first, so that one forward serves all."""
        held = self.held
        count = max(length - have for length, have in zip(lengths, held, strict=True))
        if any(have > length - count for length, have in zip(lengths, held, strict=True)):
            self.crop([length - count for length in lengths])
        return count

    def __call__(
        self, tokens: Int[Tensor, "batch new"], logits: int = 1, seen: Bool[Tensor, "batch nodes nodes"] | None = None
    ) -> Any:
        """One forward over tokens that continue each row's cached ones; the model's output.

        Args:
            tokens: [B, n].
            logits: how many positions' logits are needed at least, the last ones.
            seen: where the last tokens are the nodes of a tree, which of them (last dimension) each of them sees.
        """
        tokens = tokens.to(self.device)
        new, before = tokens.shape[1], self._edge + self._tail
        ragged = self._ragged
        kwargs: dict[str, Any] = {**self.forward_kwargs, CACHE_NAME: self.cache, "use_cache": True}
        if self.mask is not None or ragged:
            kwargs["attention_mask"] = self._visible(before + new)
        if self.positions is not None or ragged:
            kwargs["position_ids"] = self._places(new)
        if self._keeps_logits:
            kwargs["logits_to_keep"] = logits
        if seen is not None:
            kwargs |= self._tree(seen, tokens.shape[1])
            kwargs["input_ids"] = tokens
        elif self._first or not self._simple:
            kwargs = self.model.prepare_inputs_for_generation(tokens, is_first_iteration=self._first, **kwargs)
        else:
            kwargs["input_ids"] = tokens
        forward = self.model if self._first else self._forward
        began = time.perf_counter()
        if self._taps is None:
            outputs = forward(**kwargs, return_dict=True)
        else:
            with self._taps:
                outputs = self.model(**kwargs, return_dict=True)
        self.seconds += time.perf_counter() - began
        if forward is not self.model:  # a CUDA graph writes its next outputs over these
            outputs.logits = outputs.logits.clone()
        self._tail, self.forwards = self._tail + new, self.forwards + 1
        self._root = before + new - (1 if seen is None else seen.shape[1])
        if self._first:
            self._first = False
            self._check_cache()
        return outputs

    def crop(self, lengths: Sequence[int], paths: Sequence[Sequence[int]] = ()) -> None:
        """Roll the cache back to the first ``lengths[r]`` tokens of each row. (Removing none still trims a sliding window.)

        Args:
            lengths: how many tokens stay.
            paths: where the last forward held trees, for each row the nodes whose tokens are settled, the root first; those
                that stay are moved up to follow one another.
        """
        held, width = self._edge + self._tail, max(lengths)
        if self._tail and (self._ragged or any(node != i for path in paths for i, node in enumerate(path))):
            # what was fed before the nodes moves along only where there is a gap to close
            starts, edge = (self._base, self._edge) if self._ragged else ([self._root] * len(self._base), self._root)
            order = [[*range(edge, self._root), *(self._root + node for node in path)] for path in paths] or None
            close_gaps(self.cache, held, starts, edge, order)
            if self._taps is not None:
                self._taps.close_gaps(starts, edge, order)
        if self._taps is not None:
            self._taps.crop(width)
        if held > width or (self._trims and held):
            crop(self.cache, held - width)
        self._base, self._edge, self._tail = list(lengths), width, 0

    def select(self, rows: Sequence[int]) -> None:
        """Go on with some rows only. Called after a roll-back."""
        index = torch.tensor(rows, device=self.device)
        self.cache.batch_select_indices(index)
        if self._taps is not None:
            self._taps.select(index)
        self.mask = None if self.mask is None else self.mask[rows]
        self.positions = None if self.positions is None or len(self.positions) == 1 else self.positions[rows]
        self._base = [self._base[row] for row in rows]
        self.crop(self._base)  # the longest row may have left

    @property
    def room(self) -> int | None:
        """How many more tokens fit into the cache; None where it grows."""
        return free_slots(self.cache, self._edge + self._tail)

    def tapped(self, starts: Sequence[int], count: int) -> Float[Tensor, "batch count joined"]:
        """The tapped hidden states of ``count`` tokens of each row from its own start on, joined; those that come before
        every row's are forgotten."""
        assert self._taps is not None
        return self._taps.take(starts, count)

    @property
    def _ragged(self) -> bool:
        return any(base != self._edge for base in self._base)

    def _visible(self, end: int) -> Int[Tensor, "batch columns"]:
        """1 where a column up to ``end`` holds a token of the row, 0 for padding and gaps."""
        mask = None if self.mask is None else _extended(self.mask, end, count=False).to(self.device)
        if not self._ragged:
            assert mask is not None
            return mask
        column = torch.arange(end, device=self.device)
        filled = (column < torch.tensor(self._base, device=self.device)[:, None]) | (column >= self._edge)
        return filled.long() if mask is None else filled * mask

    def _places(self, new: int) -> Int[Tensor, "batch new"]:
        """The positions of each row's next ``new`` tokens."""
        held = self.held
        if self.positions is None:
            places = columns(held, new, self.device)
        else:
            given = _extended(self.positions, max(held) + new, count=True).to(self.device)
            places = given.expand(len(held), -1).gather(1, columns(held, new, self.device))
        return places if self.last_position is None else places.clamp_max(self.last_position)

    def _tree(self, seen: Bool[Tensor, "batch nodes nodes"], new: int) -> dict[str, Any]:
        """Masks and positions of a forward whose last tokens are the nodes of trees."""
        check_takes_trees(self.model, self.cache, self.role)
        seen = seen.cpu()
        nodes, end = seen.shape[1], self._edge + self._tail + new
        depths = torch.cat([torch.arange(new - nodes).expand(len(seen), -1), new - nodes + seen.sum(2) - 1], 1)
        filled = self._visible(end).cpu() if self.mask is not None or self._ragged else None
        masks = tree_masks(self.model, self.cache, end - new, depths, seen, filled)
        return {"attention_mask": masks, "position_ids": self._places(new).gather(1, depths.to(self.device))}

    def release(self) -> None:
        """Give the cache back to the caller: its layers need not record what a rollback would need any more."""
        for layer in self.cache.layers:
            if hasattr(layer, "record_past"):
                layer.record_past = False

    def _check_cache(self) -> None:
        if len(self._base) > 1 and not takes_batches(self.cache):
            kinds = {type(self.cache).__name__, *(type(layer).__name__ for layer in self.cache.layers)}
            raise LossyError(
                f"a batch of {len(self._base)} needs a {self.role} cache whose rows can keep different numbers of tokens, a "
                f"dynamic cache without sliding windows, got {', '.join(sorted(kinds))}: generate one sequence at a time"
            )
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
