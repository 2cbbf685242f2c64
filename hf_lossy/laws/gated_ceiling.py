from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..numerics import capped, excess, spread
from .allowed import min_p_set
from .base import Law, parameter, register


@register
@dataclass(frozen=True)
class GatedCeiling(Law):
    """The draft is free on the min-p set and capped at p/ℓ outside it.

        A = {p ≥ p_base · max p}
        y = q on A, min(q, p/ℓ) off A
        π = y + (1 − Σ y) · (p − y)+ / Σ (p − y)+

    Never strict: on A, which always holds the argmax, q may exceed p.

    Source: the gated variant in the reference code of 2607.26627.
    """

    name = "gated_ceiling"
    family = "collaborative"
    knob = "lenience"
    grid = (0.2, 0.4, 0.6, 0.8)
    peers = "Fast-HSD (hard-coded, not reachable)"
    reference = "2607.26627"

    p_base: float = parameter(0.3, "tokens at or above this fraction of max p are not capped", 0, 1)
    lenience: float = parameter(0.5, "ceiling off the set: π ≤ p/lenience", 0, 1, open_low=True)

    def _induced(
        self, p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"]
    ) -> Float[Tensor, "*batch vocab"]:
        y = torch.where(min_p_set(p, self.p_base), q, capped(q, p, 1 / self.lenience))
        return spread(y, excess(p, y))
