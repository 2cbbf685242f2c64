"""``torch.compile`` for the forwards of a target and its draft, where a call asks for it."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import CompileConfig, GenerationConfig, PreTrainedModel
from transformers.cache_utils import Cache, StaticCache

from .compat import default_cache, free_slots
from .errors import LossyError


@dataclass(frozen=True)
class Compiling:
    """How forwards are compiled, and for caches of how many tokens. (Other shapes are compiled anew.)"""

    config: CompileConfig
    size: int


def compiling(config: GenerationConfig, cache: Cache, has_head: bool) -> Compiling | None:
    """What a call's ``compile_config`` asks for; None without one, or with ``disable_compile=True``.

    Args:
        config: of the call.
        cache: the target's, which has to be one of fixed size.
        has_head: whether the draft is an EAGLE-3 head.
    """
    if config.compile_config is None or config.disable_compile:
        return None
    if has_head:
        raise LossyError(
            "compile_config can't be combined with an EAGLE-3 head, which reads the target's hidden states through hooks: "
            "leave it out, or use a draft model"
        )
    if not isinstance(cache, StaticCache):
        raise LossyError(
            f"compile_config needs a cache of fixed size, got a {type(cache).__name__}: give cache_implementation='static' "
            "as well, or leave compile_config out"
        )
    return Compiling(config.compile_config, max(int(config.max_length), free_slots(cache, 0) or 0))


def cache_for(model: PreTrainedModel, compiled: Compiling | None) -> Cache:
    """A cache for a model: one that grows, or one of the size that forwards are compiled for."""
    if compiled is None:
        return default_cache(model)
    return StaticCache(config=model.config.get_text_config(decoder=True), max_cache_len=compiled.size)
