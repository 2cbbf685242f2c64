"""Attention masks for verifying a tree in one forward: each node sees the settled tokens, its ancestors and itself."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from .compat import attention_of, is_movable
from .errors import LossyError

_CHAIN = "use draft_mode='chain', whose verification needs no tree mask"


def layer_types(model: PreTrainedModel) -> list[str]:
    """``"full_attention"`` or ``"sliding_attention"`` for each layer."""
    config = model.config.get_text_config(decoder=True)
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return list(kinds)
    sliding = getattr(config, "sliding_window", None) is not None
    return ["sliding_attention" if sliding else "full_attention"] * config.num_hidden_layers


def check_takes_trees(model: PreTrainedModel, cache: Cache, role: str) -> None:
    """Raise where the attention can't take a tree's mask, or the cache can't drop the branches that were not taken."""
    attention = attention_of(model)
    if attention not in ("sdpa", "eager"):
        raise LossyError(
            f"the {role}'s attention ({attention!r}) takes no tree mask: load it with attn_implementation='sdpa' or 'eager' "
            f"or {_CHAIN}"
        )
    other = sorted(set(layer_types(model)) - {"full_attention", "sliding_attention"})
    if other:
        raise LossyError(f"the {role} has layers of type {other[0]!r}, which can't verify a tree: {_CHAIN}")
    if not is_movable(cache):
        kinds = sorted({type(layer).__name__ for layer in cache.layers})
        raise LossyError(f"the {role}'s cache ({', '.join(kinds)}) can't drop the branches of a tree: {_CHAIN}")


def tree_masks(
    model: PreTrainedModel,
    cache: Cache,
    length: int,
    depths: Int[Tensor, "batch new"],
    seen: Bool[Tensor, "batch nodes nodes"],
    filled: Int[Tensor, "batch total"] | None,
) -> Tensor | dict[str, Tensor]:
    """Additive masks [B, 1, new, columns], one tensor, or one a layer type where a model has several.

    Args:
        model: whose layers and dtype count.
        cache: which columns its layers will hold.
        length: columns in the cache.
        depths: how far each new token stands after the cached ones: settled ones one after another, nodes by their depth.
        seen: which nodes (last dimension) each node sees; the last of the new tokens.
        filled: 0 where a column, cached or new, holds nothing of a row: padding and gaps.
    """
    new, nodes = depths.shape[1], seen.shape[1]
    total = length + new
    visible = torch.ones(new, total, dtype=torch.bool).tril(length).repeat(len(seen), 1, 1)
    visible[:, new - nodes :, total - nodes :] = seen
    if filled is not None:
        visible &= filled.bool()[:, None]
    config, kinds = model.config.get_text_config(decoder=True), layer_types(model)
    # rows have gaps in caches without sliding windows only
    stands = torch.cat([torch.arange(length).expand(len(depths), -1), length + depths], 1)
    masks = {}
    for kind in dict.fromkeys(kinds):
        index = kinds.index(kind)
        # a cache without layers makes them at its first forward
        columns, offset = cache.layers[index].get_mask_sizes(new) if cache.layers else (total, 0)
        near = visible
        if kind == "sliding_attention":
            near = visible & ((length + depths)[:, :, None] - stands[:, None] < config.sliding_window)
        kept = near[:, :, offset : offset + columns]
        kept = F.pad(kept, (0, columns - kept.shape[2]))
        mask = torch.zeros(kept.shape, dtype=model.dtype).masked_fill_(~kept, torch.finfo(model.dtype).min)
        masks[kind] = mask[:, None].to(model.device if model.device.type != "meta" else "cpu")
    return masks if len(masks) > 1 else next(iter(masks.values()))
