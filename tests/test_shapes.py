"""Shapes in signatures are checked while testing (conftest.py installs the check)."""

from __future__ import annotations

import jaxtyping
import pytest
import torch

from hf_lossy import accounting, laws, numerics
from hf_lossy.couplings import BlockCoupling, coupling, sibling_walk
from hf_lossy.laws.base import Law, law, law_class

P = torch.tensor([[[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]])  # [1, 2, 3]
Q = P.flip(-1)
DRAFTED = torch.tensor([[0, 1]])
COINS = torch.tensor([[0.4, 0.9]])


class Narrow(Law):
    """A law that loses a token."""

    def _induced(
        self, p: jaxtyping.Float[torch.Tensor, "*batch vocab"], q: jaxtyping.Float[torch.Tensor, "*batch vocab"]
    ) -> jaxtyping.Float[torch.Tensor, "*batch vocab"]:
        return p[..., 1:]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: law("lenience").induced(P, Q[0]),
        lambda: law("lenience").induced(P, Q[..., :2]),
        lambda: law("lenience").induced(P, DRAFTED),
        lambda: law("speccascade").published_rule(P, Q[..., :2]),
        lambda: Narrow().induced(P, Q),
        lambda: accounting.account(P, Q, P[0]),
        lambda: accounting.account(P, Q[..., :2], P),
        lambda: numerics.sample(P, COINS[:, :1]),
        lambda: numerics.sample(P, DRAFTED),
        lambda: numerics.at(P, DRAFTED[0]),
        lambda: numerics.at(P, COINS),
        lambda: numerics.one_hot(DRAFTED, P[0]),
        lambda: numerics.tv(P, Q[0]),
        lambda: numerics.restrict(P, P, P),
        lambda: numerics.restrict(P, P[..., :2], COINS[..., None]),
        lambda: BlockCoupling(law("lossless"), P, Q, DRAFTED[:, :1]),
        lambda: BlockCoupling(law("lossless"), P, Q[:, :1], DRAFTED),
        lambda: BlockCoupling(law("lossless"), P[0], Q[0], DRAFTED[0]),
        lambda: BlockCoupling(law("lossless"), P, Q, DRAFTED).accepted(COINS[0]),
        lambda: BlockCoupling(law("lossless"), P, Q, DRAFTED).accepted(DRAFTED),
        lambda: BlockCoupling(law("lossless"), P, Q, DRAFTED).replace(DRAFTED, COINS[0, :1]),
        lambda: sibling_walk(law("lossless"), P, DRAFTED),
    ],
)
def test_a_wrong_shape_or_dtype_raises(wrong):
    with pytest.raises(jaxtyping.TypeCheckError):
        wrong()


def test_right_shapes_do_not():
    for name in laws.names():
        law_ = law_class(name)()
        accounting.account(P, Q, law_.induced(P, Q))
        for kind in ("token", "block", "tree"):
            round_ = coupling(kind)(law_, P, Q, DRAFTED)
            assert round_.replace(round_.accepted(COINS), COINS[:, 0]).shape == (1,)
