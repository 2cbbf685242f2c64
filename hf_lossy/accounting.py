"""What a law did at the positions it emitted. Torch only."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from .numerics import tv


class Accounting(NamedTuple):
    """Five figures for each position, from the p, q and π that were used.

    Attributes:
        tv: TV(π, p) = ½ Σ|π − p|, the distortion, in [0, 1].
        kl: Σ π log(π/p) in nats; summed over a sequence an unbiased estimate of the sequence-level KL(Π‖P), since the
            emitted tokens follow π exactly.
        max_log_ratio: max over {π > 0} of log(π/p) in nats, the overshoot.
        acceptance: the expected acceptance: Σ min(π, q) where the candidate was sampled from q, π(candidates) where the
            candidates are a function of the prefix; NaN where there is neither.
        wasted_distortion: TV(p, π) + TV(π, q) − TV(p, q) ≥ 0, distortion that buys no acceptance; NaN where there is
            no q.

    Source: laws of 2607.26627; the exchange rate acceptance = 1 − TV(p, q) + TV(π, p) holds where the waste is zero.
    """

    tv: Tensor
    kl: Tensor
    max_log_ratio: Tensor
    acceptance: Tensor
    wasted_distortion: Tensor


def account(
    p: Float[Tensor, "*batch vocab"],
    q: Float[Tensor, "*batch vocab"] | None,
    pi: Float[Tensor, "*batch vocab"],
    acceptance: Float[Tensor, "*batch"] | None = None,
) -> Accounting:
    """The figures of :class:`Accounting`, one a row; ``acceptance`` is given where the candidates were not sampled."""
    distortion = tv(pi, p)
    # where π = 0 there is nothing to overshoot; where p = 0 < π the ratio is infinite
    log_ratio = torch.where(pi > 0, pi.log() - p.log(), -torch.inf)
    kl = torch.where(pi > 0, pi * log_ratio, 0.0).sum(-1)
    if q is None:
        unknown = torch.full_like(distortion, torch.nan)
        acceptance = unknown if acceptance is None else acceptance
        return Accounting(distortion, kl, log_ratio.amax(-1), acceptance, unknown)
    if acceptance is None:
        acceptance = torch.minimum(pi, q).sum(-1)
    waste = (distortion + tv(pi, q) - tv(p, q)).clamp_min_(0)
    return Accounting(distortion, kl, log_ratio.amax(-1), acceptance, waste)
