from __future__ import annotations

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ..numerics import capped, excess, spread
from .base import Law, parameter, register


@register
@dataclass(frozen=True)
class Lenience(Law):
    """Accept a drafted token with min(1, p / (ℓ q)): the draft may overshoot the target by at most 1/ℓ.

        y = min(q, p/ℓ)
        π = y + (1 − Σ y) · (p − q)+ / Σ (p − q)+

    Written out: q + Δ(p − q) where q ≤ p; q where p < q ≤ p/ℓ; p/ℓ where q ≥ p/ℓ. Since (p − y)+ = (p − q)+ point by
    point, "accept y/q, replace from (p − y)+" is the same law. π/p ≤ 1/ℓ at every token, so T tokens have a likelihood
    ratio of at most ℓ^(−T).

    Source: Leviathan et al. 2211.17192 (A.5), analysed as Eq. 10 of 2607.26627.
    """

    name = "lenience"
    family = "collaborative"
    knob = "lenience"
    grid = (0.2, 0.4, 0.6, 0.8)
    strict_at = "lenience = 1"
    peers = "Fast-HSD lenience; SGLang --speculative-accept-threshold-acc (for a point-mass draft)"
    reference = "2211.17192, 2607.26627"

    lenience: float = parameter(0.5, "ceiling on the overshoot: π ≤ p/lenience", 0, 1, open_low=True)

    def _induced(
        self, p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"]
    ) -> Float[Tensor, "*batch vocab"]:
        return spread(capped(q, p, 1 / self.lenience), excess(p, q))

    @property
    def is_strict(self) -> bool:
        return self.lenience == 1

    @property
    def overshoot_bound(self) -> float:
        return -math.log(self.lenience)
