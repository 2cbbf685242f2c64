from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from ..numerics import at, restrict
from .allowed import min_p_bar, min_p_set
from .base import Law, parameter, register


@register
@dataclass(frozen=True)
class MinP(Law):
    """Min-p sampling under lossless verification: the matched baseline of ``speccascade``.

        A = {p ≥ p_base · max p};   π = p·1_A / p(A), whatever q is

    Source: 2407.01082; as a baseline 2607.26627, Section 5.
    """

    name = "min_p"
    family = "baseline"
    uses_draft = False
    knob = "p_base"
    grid = (0.1, 0.3, 0.5, 0.7, 0.9)
    strict_at = "p_base = 0"
    peers = "min_p of transformers, vLLM, llama.cpp"
    reference = "2407.01082"

    p_base: float = parameter(0.5, "how close to max p a token must be", 0, 1)
    truncate_draft: bool = parameter(False, "truncate the draft to its own min-p set as well")

    def _induced(
        self, p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"]
    ) -> Float[Tensor, "*batch vocab"]:
        return restrict(p, p, min_p_bar(p, self.p_base))

    def shape_draft(self, q: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
        return restrict(q, q, min_p_bar(q, self.p_base)) if self.truncate_draft else q

    def keeps(self, p: Float[Tensor, "*batch vocab"], token: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        return at(p if self.is_strict else min_p_set(p, self.p_base).to(p.dtype), token)

    @property
    def is_strict(self) -> bool:
        return self.p_base == 0

    def matched_baseline(self) -> Law:
        return self

    @classmethod
    def examples(cls) -> Iterator[Law]:
        yield from super().examples()
        yield cls(0.4, truncate_draft=True)
