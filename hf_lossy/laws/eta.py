from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from ..numerics import at, restrict
from .allowed import eta_bar, eta_set
from .base import Law, parameter, register


@register
@dataclass(frozen=True)
class Eta(Law):
    """Eta sampling under lossless verification: the matched baseline of ``typical``.

        A = {p ≥ min(ε, δ exp(−H(p)))} ∪ argmax p;   π = p·1_A / p(A), whatever q is

    Source: 2210.15191; as a baseline 2607.26627, Section 5.
    """

    name = "eta"
    family = "baseline"
    uses_draft = False
    knob = "epsilon"
    grid = (0.05, 0.1, 0.15, 0.2, 0.25)
    peers = "eta_cutoff of transformers (there δ = √ε always)"
    reference = "2210.15191"

    epsilon: float = parameter(0.09, "absolute threshold ε", 0, 1, open_low=True, open_high=True)
    delta: float = parameter(
        None, "entropy factor δ, √epsilon unless given", 0, open_low=True, derive=lambda law: math.sqrt(law.epsilon)
    )
    truncate_draft: bool = parameter(False, "truncate the draft to its own eta set as well")

    def _truncate(self, p: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
        return restrict(p, p, eta_bar(p, self.epsilon, self.delta))

    def _induced(
        self, p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"]
    ) -> Float[Tensor, "*batch vocab"]:
        return self._truncate(p)

    def keeps(self, p: Float[Tensor, "*batch vocab"], token: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        return at(eta_set(p, self.epsilon, self.delta).to(p.dtype), token)

    def shape_draft(self, q: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
        return self._truncate(q) if self.truncate_draft else q

    def matched_baseline(self) -> Law:
        return self

    @classmethod
    def examples(cls) -> Iterator[Law]:
        yield from super().examples()
        yield cls(0.3, delta=0.8, truncate_draft=True)
