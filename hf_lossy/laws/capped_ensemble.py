from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..numerics import capped, excess, spread
from .base import Law, parameter, register


@register
@dataclass(frozen=True)
class CappedEnsemble(Law):
    """Ablation of CoS: a static mixture under lenience's ceiling.

        v = λ q + (1 − λ) p
        u = min(v, p/ℓ) where q > p/ℓ, v elsewhere
        π = u + (1 − Σ u) · (p − q)+ / Σ (p − q)+

    At λ = 1 it is lenience. π/p ≤ 1/ℓ at every token.

    Source: ablation of 2607.26627.
    """

    name = "capped_ensemble"
    family = "collaborative"
    knob = "draft_weight"
    grid = (0.2, 0.4, 0.6, 0.8)
    strict_at = "draft_weight = 0 or lenience = 1"
    reference = "2607.26627"

    draft_weight: float = parameter(0.5, "weight λ of the draft in the mixture", 0, 1)
    lenience: float = parameter(0.5, "ceiling on the overshoot: π ≤ p/lenience", 0, 1, open_low=True)

    def _induced(
        self, p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"]
    ) -> Float[Tensor, "*batch vocab"]:
        # v > p/ℓ only where q > p/ℓ, since v lies between p and q and p ≤ p/ℓ: the plain minimum is u
        return spread(capped(torch.lerp(p, q, self.draft_weight), p, 1 / self.lenience), excess(p, q))

    @property
    def is_strict(self) -> bool:
        return self.draft_weight == 0 or self.lenience == 1

    @property
    def overshoot_bound(self) -> float:
        return 0.0 if self.is_strict else -math.log(self.lenience)
