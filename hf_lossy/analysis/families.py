"""Pairs (p, q) set by hand or drawn at random, to see an effect without a model. Torch only."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

SHARPNESS = {"flatter draft": 0.7, "draft of the same sharpness": 1.0, "sharper draft": 1.4}
"""What the draft's scores are multiplied with in each random family."""
NOISE = 0.7
"""Standard deviation of the normal noise on the draft's scores."""


def random_family(
    sharpness: float, pairs: int, vocabulary: int = 1000, seed: int = 0
) -> tuple[Float[Tensor, "pairs vocab"], Float[Tensor, "pairs vocab"]]:
    """Pairs as language models have them: p ∝ rank^−α with α from 1.2 to 3, and a draft whose scores are off by normal noise
    and sharper or flatter than the target's.

        p = softmax(z),  q = softmax(sharpness · (z + noise))
    """
    generator = torch.Generator().manual_seed(seed)
    alpha = 1.2 + 1.8 * torch.rand(pairs, 1, generator=generator, dtype=torch.float64)
    scores = -alpha * torch.arange(1, vocabulary + 1, dtype=torch.float64).log()
    noise = NOISE * torch.randn(pairs, vocabulary, generator=generator, dtype=torch.float64)
    return scores.softmax(-1), (sharpness * (scores + noise)).softmax(-1)


def blended(
    p: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"], share: float
) -> Float[Tensor, "*batch vocab"]:
    """A draft on the way from the target to q: (1 − share) p + share q, at distance share · TV(p, q) from p."""
    return torch.lerp(p, q, share)


def two_tokens(
    p: float, distances: Float[Tensor, "points"]
) -> tuple[Float[Tensor, "points 2"], Float[Tensor, "points 2"]]:
    """p = (p, 1 − p) beside q = (p + d, 1 − p − d), which is at TV distance d and overshoots at the first token."""
    first = torch.full_like(distances, p)
    return torch.stack([first, 1 - first], -1), torch.stack(
        [first + distances, (1 - first - distances).clamp_min(0)], -1
    )
