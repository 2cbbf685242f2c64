"""Couplings: how drafted tokens become tokens with exactly a law's distribution. Torch only."""

from __future__ import annotations

from .base import Coupling, coupling, couplings
from .block import BlockCoupling
from .descend import DescendCoupling, GreedyCoupling, Tree, descend
from .reference import ReferenceCoupling
from .token import TokenCoupling

__all__ = [
    "BlockCoupling",
    "Coupling",
    "DescendCoupling",
    "GreedyCoupling",
    "ReferenceCoupling",
    "TokenCoupling",
    "Tree",
    "coupling",
    "couplings",
    "descend",
]
