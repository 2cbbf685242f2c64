"""Allowed sets of truncation-based rules, from p alone: everything that p puts at a bar or above.

One function computes each bar. The verifier, the matched truncation-sampling baseline and the logits processors all call
it, so that they can never differ. Like transformers' warpers these keep ``>=`` and the exact entropy. (Medusa's code is a
strict ``>`` and takes log(p + 1e-5) in the entropy; 2 in 500 random rows differ.)
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def min_p_bar(p: Float[Tensor, "*batch vocab"], p_base: float) -> Float[Tensor, "*batch 1"]:
    """p_base · max p, p_base ∈ [0, 1]."""
    return p_base * p.amax(-1, keepdim=True)


def min_p_set(p: Float[Tensor, "*batch vocab"], p_base: float) -> Bool[Tensor, "*batch vocab"]:
    """A = {x : p(x) ≥ p_base · max p} (min-p sampling, 2407.01082)."""
    return p >= min_p_bar(p, p_base)


def eta_bar(p: Float[Tensor, "*batch vocab"], epsilon: float, delta: float) -> Float[Tensor, "*batch 1"]:
    """min(ε, δ · exp(−H(p)), max p), H in nats."""
    logs = p.log().clamp_min_(math.log(torch.finfo(p.dtype).tiny))  # 0 · log 0 = 0
    entropy = -logs.mul_(p).sum(-1, keepdim=True)
    threshold = (delta * torch.exp(-entropy)).clamp_max_(epsilon)
    return torch.minimum(threshold, p.amax(-1, keepdim=True))


def eta_set(p: Float[Tensor, "*batch vocab"], epsilon: float, delta: float) -> Bool[Tensor, "*batch vocab"]:
    """A = {x : p(x) ≥ min(ε, δ · exp(−H(p)))} ∪ argmax p (eta sampling, 2210.15191)."""
    return p >= eta_bar(p, epsilon, delta)
