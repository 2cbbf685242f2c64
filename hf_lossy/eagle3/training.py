"""Training-time test: the head is trained on its own drafts, several steps deep, with the target's tokens.

Row t of step 0 holds the target's taps at t and token t + 1. Step k > 0 holds, at the same row, the head's own output of
step k − 1 and token t + 1 + k, at position t + k; it sees the step-0 rows up to t and its own rows of the steps before.
That is what a chain drafted from row t goes through, with the text's tokens in place of the drafted ones.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from .head import Eagle3Head


def unrolled(
    head: Eagle3Head,
    taps: Float[Tensor, "batch length joined"],
    tokens: Int[Tensor, "batch length"],
    steps: int,
) -> list[Float[Tensor, "batch rows draft_vocab"]]:
    """Draft logits of every step: entry k is [B, L − 1 − k, Dv], where row t predicts token t + 2 + k.

    Args:
        head: with an embedding.
        taps: joined hidden states of the target at every position.
        tokens: the text.
        steps: K, how deep to draft.
    """
    layer: Any = head.layers[0]
    attention = layer.self_attn
    length = tokens.shape[1]
    rows = torch.arange(length, device=tokens.device)
    feature = head.features(taps[:, :-1])
    first_keys = first_values = None
    own: list[tuple[Tensor, Tensor]] = []
    logits = []
    for k in range(steps):
        count = length - 1 - k  # rows whose token t + 1 + k is in the text
        if count < 1:
            break
        feature = feature[:, :count]
        wide, residual = layer.inputs(head.embed(tokens[:, 1 + k : 1 + k + count]), feature)
        cos, sin = head.rotary(wide, (rows[:count] + k)[None])
        q, key, value = attention.project(wide, cos, sin)
        key, value = (x.repeat_interleave(attention.heads // attention.groups, 1) for x in (key, value))
        if k == 0:
            first_keys, first_values = key, value
        else:
            own.append((key, value))
        assert first_keys is not None
        assert first_values is not None
        out = _attend(q, first_keys[:, :, :count], first_values[:, :, :count], own)
        y = layer.outputs(attention.o_proj(out.transpose(1, 2).flatten(2)), residual)
        logits.append(head.logits(y))
        feature = head.feedback(y)
    return logits


def _attend(
    q: Float[Tensor, "batch heads rows dim"],
    keys: Float[Tensor, "batch heads rows dim"],
    values: Float[Tensor, "batch heads rows dim"],
    own: list[tuple[Tensor, Tensor]],
) -> Float[Tensor, "batch heads rows dim"]:
    """Causal attention over the step-0 rows, and over one row of each later step: the query's own."""
    count, scale = q.shape[2], q.shape[-1] ** -0.5
    if not own:
        return F.scaled_dot_product_attention(q, keys, values, is_causal=True)
    scores = (q @ keys.transpose(2, 3)) * scale
    future = torch.ones(count, count, dtype=torch.bool, device=q.device).triu(1)
    diagonals = [(q * key[:, :, :count]).sum(-1, keepdim=True) * scale for key, _ in own]
    weights = torch.cat([scores.masked_fill(future, -torch.inf), *diagonals], -1).softmax(-1)
    out = weights[..., :count] @ values
    for j, (_, value) in enumerate(own):
        out = out + weights[..., count + j : count + j + 1] * value[:, :, :count]
    return out


def losses(
    head: Eagle3Head,
    taps: Float[Tensor, "batch length joined"],
    tokens: Int[Tensor, "batch length"],
    target_logits: Float[Tensor, "batch length draft_vocab"],
    kept: Bool[Tensor, "batch length"],
    steps: int,
) -> tuple[list[Tensor], list[Tensor]]:
    """Soft cross-entropy and top-1 agreement of each step.

    Args:
        target_logits: the target's logits at each position, over the draft vocabulary only; position i predicts token
            i + 1, so that row t of step k learns from position t + 1 + k.
        kept: positions whose prediction counts (an answer token follows, and the target's argmax is in the draft
            vocabulary).

    Returns:
        Means over the kept rows: the loss −Σ p log q of each step, and the share of rows whose argmax is the target's.
    """
    values, hits = [], []
    for k, logits in enumerate(unrolled(head, taps, tokens, steps)):
        goal, mask = target_logits[:, 1 + k :], kept[:, 1 + k :]
        count = mask.sum().clamp_min(1)
        loss = -(goal.float().softmax(-1) * logits.log_softmax(-1)).sum(-1)
        values.append((loss * mask).sum() / count)
        hits.append(((logits.argmax(-1) == goal.argmax(-1)) & mask).sum() / count)
    return values, hits
