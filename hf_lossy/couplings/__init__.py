"""Couplings: how drafted tokens become tokens with exactly a law's distribution. Torch only."""

from __future__ import annotations

from .base import Coupling, coupling, couplings
from .block import BlockCoupling
from .descend import (
    DescendCoupling,
    GreedyCoupling,
    GreedyPointMassCoupling,
    PointMassCoupling,
    descend,
    sibling_walk,
)
from .reference import ReferenceCoupling
from .token import TokenCoupling

__all__ = [
    "BlockCoupling",
    "Coupling",
    "DescendCoupling",
    "GreedyCoupling",
    "GreedyPointMassCoupling",
    "PointMassCoupling",
    "ReferenceCoupling",
    "TokenCoupling",
    "coupling",
    "couplings",
    "descend",
    "sibling_walk",
]
