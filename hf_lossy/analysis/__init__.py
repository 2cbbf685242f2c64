"""What the laws do to p and q, position by position: the analyses of 2607.26627, on recorded rounds and hand-set families.

``truncation``: what truncating p does to block efficiency, gain against loss. ``divergence``: how far truncation-based
verification is from truncation sampling, for a sampled draft and for a point mass. ``tree``: acceptance by position of trees
and chains, 1[C ∩ A ≠ ∅] against p_Θ(C). ``lenience``: Δ and the ceiling as functions of TV(p, q). ``differences``: where the
same prompt and seed part ways under a law and its matched baseline.

No analysis has a formula of a law: π comes from :mod:`hf_lossy.laws`, acceptance from :mod:`hf_lossy.couplings`, distances
from :mod:`hf_lossy.accounting`. The closed forms stand in the tests.
"""

from __future__ import annotations

from .results import ANALYSES, Analysis, write
from .settings import Settings, defaults

__all__ = ["ANALYSES", "Analysis", "Settings", "defaults", "write"]
