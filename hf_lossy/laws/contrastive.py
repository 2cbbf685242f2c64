from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .allowed import min_p_set
from .base import Law, parameter, register


@register
@dataclass(frozen=True)
class Contrastive(Law):
    """CoS on contrastive decoding: prefer what the target likes and the draft does not.

        π ∝ p · max(q, 1e-10)^(−mu)   on {p ≥ plausibility · max p}, zero elsewhere

    Source: CoS 2502.01662 on contrastive decoding 2210.15097 (plausibility α = 0.1 there).
    """

    name = "contrastive"
    family = "collaborative"
    knob = "mu"
    grid = (0.2, 0.4, 0.6, 0.8)
    strict_at = "mu = 0 and plausibility = 0"
    peers = "CoS (contrastive)"
    reference = "2502.01662, 2210.15097"

    mu: float = parameter(0.2, "strength of the contrast", 0)
    plausibility: float = parameter(0.1, "tokens below this fraction of max p are left out", 0, 1)

    def _induced(
        self, p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"]
    ) -> Float[Tensor, "*batch vocab"]:
        # in logarithms, since q^(−mu) overflows
        logs = p.log().sub_(q.clamp_min(1e-10).log_(), alpha=self.mu)
        return logs.masked_fill_(~min_p_set(p, self.plausibility), -torch.inf).softmax(-1)

    @property
    def is_strict(self) -> bool:
        return self.mu == 0 and self.plausibility == 0
