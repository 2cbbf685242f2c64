"""The laws and couplings that are measured."""

from __future__ import annotations

from collections.abc import Iterator

from ..couplings import BlockCoupling, ReferenceCoupling, TokenCoupling
from ..laws import Law, law

AnyCoupling = TokenCoupling | BlockCoupling | ReferenceCoupling
COUPLINGS: tuple[type[AnyCoupling], ...] = (TokenCoupling, BlockCoupling, ReferenceCoupling)
LAWS = (
    law("lossless"),
    law("lenience", lenience=0.4),
    law("cos", draft_weight=0.4),
    law("speccascade", p_base=0.3, fallback="target"),
    law("typical", epsilon=0.09, fallback="target"),
)


def cases() -> Iterator[tuple[Law, type[AnyCoupling]]]:
    """Every law with every coupling that it has."""
    for one in LAWS:
        for kind in COUPLINGS:
            if kind.supports(one):
                yield one, kind
