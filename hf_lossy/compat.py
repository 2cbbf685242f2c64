"""The differences between transformers 5.15 and the newest, in one place. Seen in 5.15.0 and 5.24.0.

Public names everywhere else; what had to be known about the versions, and the private ones, stand here:

- the forward argument and output field of the cache: ``past_key_values`` until 5.22, ``cache`` from 5.23;
- ``Cache.is_croppable``: from 5.16 or later; before, the layer classes tell;
- ``config._attn_implementation``: what everybody reads, though its name says private;
- ``GenerationConfig._from_model_config``: while it is true, fields that transformers does not know are dropped on loading;
- ``RepetitionPenaltyLogitsProcessor.prompt_ignore_length``: a number in 5.15.0, in 5.24.0 also the padding of each row;
- ``CompileConfig._compile_all_devices``: without it transformers does not compile on a CPU;
- the defaults that ``generate`` fills in for assisted decoding, which cannot be told from a user's values afterwards.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import CompileConfig, GenerationConfig, GenerationMixin, LogitsProcessorList, PreTrainedModel
from transformers.cache_utils import (
    Cache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from .ragged import move_up

CACHE_NAME = (
    "cache"
    if "cache" in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
    else "past_key_values"
)
"""What this version calls the cache, as forward argument and as output field."""

CACHE_ALIASES = ("cache", "past_key_values", "cache_params")

ASSISTED_DEFAULTS = {
    "num_assistant_tokens": 20,
    "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0.4,
}
"""What ``generate`` puts into the prepared generation config where nobody set these."""


def take_cache(kwargs: dict[str, Any]) -> Cache | None:
    """Remove and return the cache from prepared model kwargs, under either name."""
    found = [kwargs.pop(name, None) for name in CACHE_ALIASES]
    return next((cache for cache in found if cache is not None), None)


def is_croppable(cache: Cache) -> bool:
    """Whether ``crop`` can put the cache back as it was. Linear-attention layers, of which some can, only know once they
    hold something: until then they count as croppable."""
    if hasattr(cache, "is_croppable"):
        return all(layer.is_croppable or _holds_nothing_linear(layer) for layer in cache.layers)
    for layer in cache.layers:
        kinds = " ".join(kind.__name__ for kind in type(layer).__mro__)
        if "Quantized" in kinds or "LinearAttention" in kinds:
            return False
        if isinstance(layer, StaticSlidingWindowLayer):
            # a ring that was never longer than the window is not known to be croppable by this version
            return False
    return True


def _holds_nothing_linear(layer: Any) -> bool:
    kinds = ("is_conv_states_initialized", "is_recurrent_states_initialized")
    return all(hasattr(layer, kind) and not any(getattr(layer, kind).values()) for kind in kinds)


def keep_unknown_fields(config: GenerationConfig) -> None:
    """Let a generation config keep fields of ours through ``save_pretrained`` and ``from_pretrained``."""
    config._from_model_config = False


def stored(config: GenerationConfig | None, name: str) -> Any:
    """A field of a generation config, None where it is not set. For the assisted-decoding fields transformers' filled-in
    default counts as not set."""
    value = getattr(config, name, None)
    return None if name in ASSISTED_DEFAULTS and value == ASSISTED_DEFAULTS[name] else value


def default_cache(model: PreTrainedModel) -> Cache:
    """A dynamic cache with the layer types of a model (sliding-window, hybrid), as ``generate`` makes it.

    A draft runs several forwards before it rolls back. Sliding-window layers of versions without ``is_croppable`` can't do
    that: there every layer keeps all tokens, and the attention mask alone makes the window."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    if not hasattr(Cache, "is_croppable") and all(isinstance(layer, DynamicLayer) for layer in cache.layers):
        return DynamicCache()
    return cache


def on_every_device(config: CompileConfig) -> CompileConfig:
    """Have transformers compile on a CPU too, for a comparison with it."""
    config._compile_all_devices = True
    return config


def crop(cache: Cache, surplus: int) -> None:
    """Remove the last ``surplus`` tokens; removing none still trims a sliding window. Static layers of versions without
    ``is_croppable`` have no ``crop``: there, too, the next tokens overwrite those that are forgotten."""
    for layer in cache.layers:
        if hasattr(layer, "crop"):
            layer.crop(-surplus)
        else:
            layer.cumulative_length.sub_(surplus)


def is_movable(cache: Cache) -> bool:
    """Whether :func:`close_gaps` knows how the layers hold their tokens. Exact classes: others keep more than keys and
    values."""
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer, StaticLayer) for layer in cache.layers)


_OF_ROWS = ("prompt_ignore_length", "encoder_input_ids", "generated_ngrams")
"""What the penalties for repeating hold for each row (5.15 to 5.24)."""


def of_row(processors: LogitsProcessorList, row: int) -> LogitsProcessorList:
    """The processors to call with one row of the batch that they were made for, without what they hold for the others."""
    alone = LogitsProcessorList()
    for processor in processors:
        everything: dict[str, Any] = {name: getattr(processor, name, None) for name in _OF_ROWS}
        held = {name: x for name, x in everything.items() if isinstance(x, list) or (isinstance(x, Tensor) and x.dim())}
        if held:
            processor = copy.copy(processor)
            for name, values in held.items():
                setattr(processor, name, values[row : row + 1])
            if hasattr(processor, "batch_size"):
                processor.batch_size = 1
        alone.append(processor)
    return alone


def takes_batches(cache: Cache) -> bool:
    """Whether the rows of a batch can keep different numbers of tokens (:func:`close_gaps`). Exact classes, as above."""
    return all(type(layer) is DynamicLayer for layer in cache.layers)


def close_gaps(
    cache: Cache, held: int, starts: Sequence[int], edge: int, order: Sequence[Sequence[int]] | None = None
) -> None:
    """Move the tokens from column ``edge`` on, of each row to its own start.

    Args:
        cache: of layers that :func:`takes_batches` accepts, or for one row :func:`is_movable`.
        held: columns in the cache. Sliding-window layers hold the last of them only.
        starts: for each row the column for the first of them, ``edge`` at most.
        edge: the first column to move.
        order: for each row which columns are moved, where it isn't all of them in their order.
    """
    for layer in cache.layers:
        if layer.is_initialized:  # not layers that share the keys of another
            gone = 0 if isinstance(layer, StaticLayer) else held - layer.keys.shape[-2]
            for states in (layer.keys.transpose(1, 2), layer.values.transpose(1, 2)):
                move_up(states, [start - gone for start in starts], edge - gone, order, gone)


def free_slots(cache: Cache, held: int) -> int | None:
    """How many tokens fit besides the ``held`` ones; None where the cache grows."""
    sizes = [layer.max_cache_len for layer in cache.layers if isinstance(layer, StaticLayer)]
    return min(sizes) - held if sizes else None


def hub_commit(model: PreTrainedModel) -> str | None:
    """The commit of the Hub's repository that a model was loaded from; None for a local one."""
    return getattr(model.config, "_commit_hash", None)


def attention_of(model: PreTrainedModel) -> str:
    """The attention implementation a model runs with."""
    return str(model.config.get_text_config(decoder=True)._attn_implementation)
