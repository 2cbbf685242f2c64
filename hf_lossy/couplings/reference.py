from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..laws.base import Law
from ..numerics import at
from .base import Coupling, leading, register_coupling, row_at


@register_coupling
class ReferenceCoupling(Coupling):
    """The acceptance rule exactly as published, to reproduce published block efficiencies.

    The law of the token coupling, fewer accepted tokens. Only for laws whose published rule is not the best tokenwise
    one already (cascades, typical acceptance: accept iff x ∈ A, else sample the fallback).
    """

    name = "reference"

    def __init__(
        self,
        law: Law,
        p: Float[Tensor, "batch drafted vocab"],
        q: Float[Tensor, "batch drafted vocab"] | None,
        drafted: Int[Tensor, "batch drafted"],
    ) -> None:
        super().__init__(law, p, q, drafted)
        rule = law.published_rule(p, self.q)
        assert rule is not None, law
        self._accept, self._replacement = rule

    @classmethod
    def supports(cls, law: Law) -> bool:
        half = torch.full((1, 2), 0.5)
        return law.published_rule(half, half) is not None

    def acceptance(self) -> Float[Tensor, "batch drafted"]:
        """h(x) at each drafted position, given that it is reached."""
        return at(self._accept, self.drafted)

    def accepted(self, coins: Float[Tensor, "batch drafted"]) -> Int[Tensor, "batch"]:
        return leading(coins < self.acceptance())

    def residual(self, accepted: Int[Tensor, "batch"]) -> Float[Tensor, "batch vocab"]:
        return row_at(self._replacement, accepted)
