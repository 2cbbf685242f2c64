from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from . import truncation
from .allowed import eta_bar
from .base import Law, law, parameter, register


@register
@dataclass(frozen=True)
class Typical(Law):
    """Medusa's typical acceptance: keep a drafted token that is likely enough for the target's entropy.

        A = {p ≥ min(ε, δ exp(−H(p)))} ∪ argmax p
        fallback "draft":   π = q·1_A / q(A), or p·1_A / p(A) where q(A) = 0
        fallback "target":  π = q·1_A + (1 − q(A)) p

    Source: Medusa 2401.10774 (ε = 0.09, δ = √ε); eta sampling 2210.15191.
    """

    name = "typical"
    family = "truncation"
    knob = "epsilon"
    grid = (0.05, 0.1, 0.15, 0.2, 0.25)
    peers = "Medusa posterior_threshold, posterior_alpha; vLLM V0 typical_acceptance_sampler_posterior_*"
    reference = "2401.10774"

    epsilon: float = parameter(0.09, "absolute threshold ε", 0, 1, open_low=True, open_high=True)
    delta: float = parameter(
        None, "entropy factor δ, √epsilon unless given", 0, open_low=True, derive=lambda law: math.sqrt(law.epsilon)
    )
    fallback: str = parameter("draft", "where a refused token is replaced from", choices=("draft", "target"))

    def _induced(
        self, p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"]
    ) -> Float[Tensor, "*batch vocab"]:
        return truncation.emitted(p, q, p, eta_bar(p, self.epsilon, self.delta), self.fallback)

    def published_rule(
        self, p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"]
    ) -> tuple[Float[Tensor, "*batch vocab"], Float[Tensor, "*batch vocab"]]:
        return truncation.published(p, q, p, eta_bar(p, self.epsilon, self.delta), self.fallback)

    def matched_baseline(self) -> Law:
        return law("eta", epsilon=self.epsilon, delta=self.delta)

    @classmethod
    def examples(cls) -> Iterator[Law]:
        yield from super().examples()
        yield cls(0.2, fallback="target")
        yield cls(0.3, delta=0.8)
