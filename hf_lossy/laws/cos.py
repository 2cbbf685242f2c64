from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .base import Law, parameter, register


@register
@dataclass(frozen=True)
class Cos(Law):
    """Collaborative decoding via speculation on a weighted ensemble of draft and target.

        π = λ q + (1 − λ) p

    λ weights the *draft*. Transformers' ``assistant_ensemble_weight`` w weights the target: λ = 1 − w. There is no bound
    on π/p however small λ is.

    Source: CoS, 2502.01662.
    """

    name = "cos"
    family = "collaborative"
    knob = "draft_weight"
    grid = (0.2, 0.4, 0.6, 0.8)
    strict_at = "draft_weight = 0"
    peers = "transformers assistant_ensemble_weight = 1 - draft_weight (DIVERSE, 2604.07622); Fast-HSD λ"
    reference = "2502.01662"

    draft_weight: float = parameter(0.2, "weight λ of the draft in the mixture", 0, 1)

    def _induced(
        self, p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"]
    ) -> Float[Tensor, "*batch vocab"]:
        return torch.lerp(p, q, self.draft_weight)

    @property
    def is_strict(self) -> bool:
        return self.draft_weight == 0
