"""Training-time test: the head is trained on its own drafts, several steps deep, with the target's tokens.

Row t of step 0 holds the target's taps at t and token t + 1. Step k > 0 holds, at the same row, the head's own output of
step k − 1 and token t + 1 + k, at position t + k; it sees the step-0 rows up to t and its own rows of the steps before.
That is what a chain drafted from row t goes through, with the text's tokens in place of the drafted ones.

Row t of step k predicts token t + 2 + k, as the target does at position t + 1 + k: one set of positions that count (where
an answer token follows) says which rows of every step do. What only the other rows would need is not computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    every = torch.ones_like(tokens, dtype=torch.bool)
    return [head.logits(y).unflatten(0, (len(tokens), -1)) for y in _outputs(head, taps, tokens, steps, every)]


def _outputs(
    head: Eagle3Head,
    taps: Float[Tensor, "batch length joined"],
    tokens: Int[Tensor, "batch length"],
    steps: int,
    kept: Bool[Tensor, "batch length"],
) -> list[Float[Tensor, "rows hidden"]]:
    """y of every step, before the final norm: entry k holds the rows t with ``kept[:, t + 1 + k]``, one dialogue after the
    other."""
    layer: Any = head.layers[0]
    attention = layer.self_attn
    length = tokens.shape[1]
    rows = torch.arange(length, device=tokens.device)
    so_far, last = kept.cumsum(1), (rows + steps).clamp_max(length - 1)
    feature = head.features(taps[:, :-1])
    first_keys = first_values = None
    own: list[tuple[Tensor, Tensor]] = []
    outputs = []
    for k in range(min(steps, length - 1)):
        count = length - 1 - k  # rows whose token t + 1 + k is in the text
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
        # the output of a row is needed by its own prediction and by its own later steps, and by nothing else
        live = so_far[:, last[:count]] > so_far[:, k : k + count]
        y = layer.outputs(attention.o_proj(out.transpose(1, 2).flatten(2)[live]), residual[live])
        outputs.append(y[kept[:, 1 + k :][live]])
        fed = head.feedback(y)
        feature = fed.new_zeros(*live.shape, fed.shape[-1])
        feature[live] = fed
    return outputs


def _attend(
    q: Float[Tensor, "batch heads rows dim"],
    keys: Float[Tensor, "batch heads rows dim"],
    values: Float[Tensor, "batch heads rows dim"],
    own: list[tuple[Tensor, Tensor]],
) -> Float[Tensor, "batch heads rows dim"]:
    """Causal attention over the step-0 rows, and over one row of each later step: the query's own."""
    if not own:
        return F.scaled_dot_product_attention(q, keys, values, is_causal=True)
    count, q = q.shape[2], q * q.shape[-1] ** -0.5
    scores = q @ keys.transpose(2, 3)
    scores += torch.full((count, count), -torch.inf, dtype=scores.dtype, device=q.device).triu(1)
    diagonals = [(q * key[:, :, :count]).sum(-1, keepdim=True) for key, _ in own]
    weights = torch.cat([scores, *diagonals], -1).softmax(-1)
    first, *rest = weights.split([count, *[1] * len(own)], -1)
    out = first @ values
    for weight, (_, value) in zip(rest, own, strict=True):
        out = out + weight * value[:, :, :count]
    return out


def losses(
    head: Eagle3Head,
    taps: Float[Tensor, "batch length joined"],
    tokens: Int[Tensor, "batch length"],
    target_logits: Float[Tensor, "kept draft_vocab"],
    kept: Bool[Tensor, "batch length"],
    steps: int,
) -> list[Tensor]:
    """Soft cross-entropy −Σ p log q of each step, its mean over the rows that count.

    Args:
        target_logits: the target's logits at the kept positions, one dialogue after the other, over the draft vocabulary.
        kept: positions whose prediction counts: an answer token follows, and the target's argmax is in the draft
            vocabulary.
    """
    goal, column = target_logits.float().softmax(-1), kept.nonzero()[:, 1]
    values = []
    for k, y in enumerate(_outputs(head, taps, tokens, steps, kept)):
        p = goal if len(y) == len(goal) else goal[column > k]
        values.append(_soft_cross_entropy(head.lm_head(head.norm(y)), p) / max(len(y), 1))
    return values


class _SoftCrossEntropy(torch.autograd.Function):
    """−Σ p log softmax(z), summed over rows. The gradient, softmax(z) − p, comes with the value: few passes over the largest
    tensors of a training step."""

    @staticmethod
    def forward(ctx: Any, z: Float[Tensor, "rows draft_vocab"], p: Float[Tensor, "rows draft_vocab"]) -> Tensor:
        log_q = z.log_softmax(-1, dtype=torch.float32)
        value = -torch.dot(p.flatten(), log_q.flatten())
        ctx.save_for_backward(log_q.exp_().sub_(p).to(z.dtype))
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return slope * grads[0], None


_soft_cross_entropy: Callable[[Tensor, Tensor], Tensor] = _SoftCrossEntropy.apply


@torch.no_grad()
def measured(
    head: Eagle3Head,
    taps: Float[Tensor, "batch length joined"],
    tokens: Int[Tensor, "batch length"],
    target_logits: Float[Tensor, "counted vocab"],
    counted: Bool[Tensor, "batch length"],
    steps: int,
    temperatures: Sequence[float],
) -> Float[Tensor, "steps sums"]:
    """How well each step drafts, over the whole vocabulary, as sums over its rows: how many there are; how often the head's
    argmax is the target's; how often it is the token in the text; Σ_v min(p(v), q(v)) at each temperature, the probability
    that a token drawn from the head is accepted.

    Args:
        target_logits: at the counted positions, one dialogue after the other, over the target's vocabulary.
        counted: positions after which a token follows that is worth predicting.
    """
    ids, column = head.draft_to_target, counted.nonzero()[:, 1]
    z_target = target_logits.float()
    best, follows = z_target.argmax(-1), tokens.roll(-1, 1)[counted]
    p = [(z_target[:, ids] / t - (z_target / t).logsumexp(-1, keepdim=True)).exp() for t in temperatures]
    sums = []
    for k, y in enumerate(_outputs(head, taps, tokens, steps, counted)):
        z, rows = head.logits(y), column > k
        mine = ids[z.argmax(-1)]
        accepted = [torch.minimum(p_t[rows], (z / t).softmax(-1)).sum() for p_t, t in zip(p, temperatures, strict=True)]
        hits = [(mine == best[rows]).sum(), (mine == follows[rows]).sum()]
        sums.append(torch.stack([torch.tensor(float(len(z)), device=z.device), *hits, *accepted]))
    return torch.stack(sums)
