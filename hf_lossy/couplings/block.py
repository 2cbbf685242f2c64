from __future__ import annotations

from functools import cached_property
from itertools import accumulate

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from ..numerics import at, widened
from .base import Coupling, register_coupling, row_at

FEW, LARGE = 8, 4096
"""Rows up to which, and vocabularies from which on, a look at single positions costs less than all positions at once."""


@register_coupling
class BlockCoupling(Coupling):
    """Verify the block as a whole: the law of the token coupling, never fewer tokens.

        P_0 = 1,  P_i = min(1, P_{i−1} π_i(x_i)/q_i(x_i))
        S_i = Σ_v (P_i π_{i+1}(v) − q_{i+1}(v))+
        h_i = S_i / (S_i + 1 − P_i) for i < G,  h_G = P_G

    Accept up to the largest i with u_i < h_i (i = 0 always qualifies), then replace from (P_i π_{i+1} − q_{i+1})+.

    Source: block verification, Sun et al. 2403.10444, with π in place of p.
    """

    name = "block"

    @cached_property
    def _prefix(self) -> Float[Tensor, "batch drafted_1"]:
        """P_0 … P_G, [B, G + 1]."""
        drafted = self.drafted.unsqueeze(-1)
        ratio = widened(self.pi.gather(-1, drafted)).div_(self.q.gather(-1, drafted)).squeeze(-1)
        if self._looks:
            steps = [list(accumulate(row, lambda P, r: min(P * r, 1.0), initial=1.0)) for row in ratio.tolist()]
            return self.pi.new_tensor(steps)
        # the closed form C_i / max_{j ≤ i} C_j with C_i the product of the first i ratios (in double, for a product of G
        # ratios of single-precision probabilities to stay in range)
        products = ratio.cumprod(1)
        P = products.div_(products.cummax(1).values.clamp_min_(1))
        return F.pad(P, (1, 0), value=1.0).to(self.pi.dtype)

    @property
    def _looks(self) -> bool:
        """Whether numbers are looked at one by one. That makes the host wait for the device, except on a CPU."""
        return self.pi.device.type == "cpu" and (len(self.pi) <= FEW or self.pi.shape[-1] >= LARGE)

    def acceptance(self) -> Float[Tensor, "batch drafted"]:
        """h_1 … h_G, [B, G]."""
        P = self._prefix
        return torch.cat([self._inner(P[:, 1:-1], self.pi[:, 1:], self.q[:, 1:]), P[:, -1:]], 1)

    @staticmethod
    def _inner(
        P: Float[Tensor, "*batch"], pi: Float[Tensor, "*batch vocab"], q: Float[Tensor, "*batch vocab"]
    ) -> Float[Tensor, "*batch"]:
        """h_i for i < G, from P_i and the distributions at i + 1."""
        spare = (P[..., None] * pi).sub_(q).relu_().sum(-1)  # S_i
        # 0/0, where P_i = 1 and π_{i+1} = q_{i+1}: nothing can be refused, so the prefix is as good as accepted
        return (spare / (spare + (1 - P))).nan_to_num_(1.0)

    def accepted(self, coins: Float[Tensor, "batch drafted"]) -> Int[Tensor, "batch"]:
        return self._by_looking(coins) if self._looks else self._at_once(coins)

    def _at_once(self, coins: Float[Tensor, "batch drafted"]) -> Int[Tensor, "batch"]:
        positions = torch.arange(1, coins.shape[1] + 1, device=coins.device)
        return ((coins < self.acceptance()) * positions).amax(1)

    def _by_looking(self, coins: Float[Tensor, "batch drafted"]) -> Int[Tensor, "batch"]:
        """π sums to one, so that S_i ≤ P_i and h_i ≤ P_i: what fails against P_i fails, and of the rest S is computed for
        the longest prefix, then for the next where that fails."""

        def passes(row: int, i: int, coin: float) -> bool:
            last = i == coins.shape[1]
            return last or coin < float(self._inner(self._prefix[row, i], self.pi[row, i], self.q[row, i]))

        longest_first = range(coins.shape[1], 0, -1)
        thrown = enumerate(zip(self._prefix.tolist(), coins.tolist(), strict=True))
        return coins.new_tensor(
            [
                next((i for i in longest_first if u[i - 1] < P[i] and passes(row, i, u[i - 1])), 0)
                for row, (P, u) in thrown
            ],
            dtype=torch.long,
        )

    def residual(self, accepted: Int[Tensor, "batch"]) -> Float[Tensor, "batch vocab"]:
        scale = at(self._prefix, accepted)
        return (scale[:, None] * row_at(self.pi, accepted)).sub_(row_at(self.q, accepted)).relu_()
