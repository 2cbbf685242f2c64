from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from ..numerics import at, excess
from .base import Coupling, leading, register_coupling, row_at


@register_coupling
class TokenCoupling(Coupling):
    """The best coupling that looks at one position at a time.

    Accept drafted x iff u < π(x)/q(x), strictly, up to the first refusal; replace from (π − q)+. It accepts
    Σ min(π, q) = 1 − TV(π, q) of the time.

    Source: Leviathan et al. 2211.17192 with π in place of p.
    """

    name = "token"

    def acceptance(self) -> Float[Tensor, "batch drafted"]:
        """min(1, π(x)/q(x)) at each drafted position, given that it is reached."""
        return at(self.pi, self.drafted).div_(at(self.q, self.drafted)).clamp_max_(1)

    def accepted(self, coins: Float[Tensor, "batch drafted"]) -> Int[Tensor, "batch"]:
        return leading(coins < self.acceptance())

    def residual(self, accepted: Int[Tensor, "batch"]) -> Float[Tensor, "batch vocab"]:
        return excess(row_at(self.pi, accepted), row_at(self.q, accepted))
