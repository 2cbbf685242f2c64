from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..numerics import tv
from . import truncation
from .allowed import min_p_bar
from .base import Law, law, parameter, register

TOKEN_RULES = ("token_v3", "token_v2", "token_v1")
POSITION_RULES = ("chow", "diff", "opt")


@register
@dataclass(frozen=True)
class SpecCascade(Law):
    """Speculative cascades: keep a drafted token that the target finds plausible, defer to the target otherwise.

    With α = 1 − p_base, ``rule`` is one of

        token_v3 (default)   A = {p ≥ p_base · max p}
        token_v2             A = {p ≥ max p − α}
        token_v1             A = {q ≥ max p − α}
        chow, diff, opt      π = q at the whole position if max q ≥ 1 − α, max q ≥ max p − α, max q ≥ max p − α·TV(p, q),
                             else π = p

    and for a token rule, with ``fallback``

        draft     π = q·1_A / q(A), or p·1_A / p(A) where q(A) = 0   (the analysis of 2607.26627)
        target    π = q·1_A + (1 − q(A)) p                           (as published)

    Source: SpecCascade 2405.19261.
    """

    name = "speccascade"
    family = "truncation"
    knob = "p_base"
    grid = (0.1, 0.3, 0.5, 0.7, 0.9)
    peers = "SpecCascade α = 1 - p_base; MTPLX TokenV3"
    reference = "2405.19261"

    p_base: float = parameter(0.5, "1 − α of the paper: how close to max p a token must be", 0, 1)
    fallback: str = parameter("draft", "where a refused token is replaced from", choices=("draft", "target"))
    rule: str = parameter("token_v3", "deferral rule", choices=TOKEN_RULES + POSITION_RULES)

    def _allowed(
        self, p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"]
    ) -> tuple[Float[Tensor, "*batch vocab"], Float[Tensor, "*batch 1"]]:
        """What is tested for A, and the bar."""
        if self.rule == "token_v3":
            return p, min_p_bar(p, self.p_base)
        return q if self.rule == "token_v1" else p, p.amax(-1, keepdim=True) - (1 - self.p_base)

    def _induced(
        self, p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"]
    ) -> Float[Tensor, "*batch vocab"]:
        if self.rule in TOKEN_RULES:
            return truncation.emitted(p, q, *self._allowed(p, q), self.fallback)
        alpha, top_p, top_q = 1 - self.p_base, p.amax(-1, keepdim=True), q.amax(-1, keepdim=True)
        threshold: Tensor | float = self.p_base
        if self.rule != "chow":
            threshold = top_p - (alpha * tv(p, q).unsqueeze(-1) if self.rule == "opt" else alpha)
        return torch.where(top_q >= threshold, q, p)

    def published_rule(
        self, p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"]
    ) -> tuple[Float[Tensor, "*batch vocab"], Float[Tensor, "*batch vocab"]] | None:
        if self.rule not in TOKEN_RULES:
            return None  # the token coupling is the published rule: keep the draft, or verify it losslessly
        return truncation.published(p, q, *self._allowed(p, q), self.fallback)

    def matched_baseline(self) -> Law:
        return law("min_p", p_base=self.p_base)

    @classmethod
    def examples(cls) -> Iterator[Law]:
        yield from super().examples()
        for rule in TOKEN_RULES:
            for fallback in ("draft", "target"):
                yield cls(0.3, fallback, rule)
        for rule in POSITION_RULES:
            yield cls(0.6, rule=rule)
