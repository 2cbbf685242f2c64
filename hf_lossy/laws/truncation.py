"""What the truncation-based laws share: the two fallbacks, and their published acceptance rule. Torch only.

A is given as {x : tested(x) ≥ bar}.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..numerics import above, restrict


def emitted(
    p: Float[Tensor, "*batch vocab"],
    q: Float[Tensor, "*batch vocab"],
    tested: Float[Tensor, "*batch vocab"],
    bar: Float[Tensor, "*batch 1"],
    fallback: str,
) -> Float[Tensor, "*batch vocab"]:
    """π of a rule that keeps a drafted token iff it is in A, and otherwise draws from the fallback.

    ``"draft"``: π = q·1_A / q(A), or p·1_A / p(A) where q has no mass on A (p itself where A is empty).
    ``"target"``: π = q·1_A + (1 − q(A)) p.
    """
    kept = above(q, tested, bar)
    mass = kept.sum(-1, keepdim=True)
    if fallback == "target":
        return kept.addcmul_(p, (1 - mass).clamp_min_(0))
    tiny = torch.finfo(p.dtype).tiny
    kept.div_(mass.clamp_min(tiny))
    if mass.device.type == "cpu" and bool((mass > tiny).all()):
        return kept  # looking costs nothing on a CPU; elsewhere it would make the host wait
    allowed = (tested >= bar).any(-1, keepdim=True)
    return torch.where(mass > tiny, kept, torch.where(allowed, restrict(p, tested, bar), p))


def published(
    p: Float[Tensor, "*batch vocab"],
    q: Float[Tensor, "*batch vocab"],
    tested: Float[Tensor, "*batch vocab"],
    bar: Float[Tensor, "*batch 1"],
    fallback: str,
) -> tuple[Float[Tensor, "*batch vocab"], Float[Tensor, "*batch vocab"]]:
    """(h, r): accept iff x ∈ A, else draw from the fallback (the draft on A, or the whole target)."""
    return (tested >= bar).to(p.dtype), p if fallback == "target" else emitted(p, q, tested, bar, "draft")
