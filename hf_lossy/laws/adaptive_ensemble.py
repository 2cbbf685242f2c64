from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..numerics import excess
from .base import Law, parameter, register


@register
@dataclass(frozen=True)
class AdaptiveEnsemble(Law):
    """Ablation of lenience: its adaptive interpolation everywhere, without its ceiling.

        Δ = Σ (q − p/ℓ)+ / Σ (p − q)+
        π = q + Δ (p − q)

    It has the acceptance and the TV from p of ``lenience(ℓ)`` at every position, and no bound on π/p: any difference in
    quality between the two is due to the ceiling.

    Source: ablation of 2607.26627.
    """

    name = "adaptive_ensemble"
    family = "collaborative"
    knob = "lenience"
    grid = (0.2, 0.4, 0.6, 0.8)
    strict_at = "lenience = 1"
    reference = "2607.26627"

    lenience: float = parameter(0.5, "the lenience whose interpolation weight Δ is used", 0, 1, open_low=True)

    def _induced(
        self, p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"]
    ) -> Float[Tensor, "*batch vocab"]:
        over = excess(q, p / self.lenience).sum(-1, keepdim=True)
        room = excess(p, q).sum(-1, keepdim=True).clamp_min_(torch.finfo(p.dtype).tiny)
        return torch.lerp(q, p, (over / room).clamp_max_(1.0))

    @property
    def is_strict(self) -> bool:
        return self.lenience == 1
