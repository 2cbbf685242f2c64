"""What a coupling is: drafted tokens in, tokens with exactly the law π out. Torch only.

Shapes: B rows ("batch"), G drafted tokens a row ("drafted"), V tokens in the vocabulary ("vocab").
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import LossyError, unknown
from ..laws.base import Law
from ..numerics import sample


class Coupling:
    """One round's verification of drafted tokens; an instance is made per round, before the coins are thrown.

    Args:
        law: what has to be emitted.
        p: target distributions at the drafted positions, [B, G, V].
        q: draft distributions there, the ones the tokens were sampled from, [B, G, V]. None only if the law does not
            use them and the candidates are deterministic.
        drafted: the drafted tokens, [B, G].

    A row's outcome is a number of accepted tokens a. Where a < G the token after them is drawn by :meth:`replace`; where
    a = G the round has a bonus position, which is the loop's business since it needs distributions after the last
    drafted token.
    """

    name: ClassVar[str]
    samples_draft: ClassVar[bool] = True
    """Whether the drafted tokens must have been sampled from q (else they are a function of the prefix)."""
    reads_draft: ClassVar[bool] = True
    """Whether q is read where the law uses it."""

    def __init__(
        self,
        law: Law,
        p: Float[Tensor, "batch drafted vocab"],
        q: Float[Tensor, "batch drafted vocab"] | None,
        drafted: Int[Tensor, "batch drafted"],
    ) -> None:
        if q is None and (self.samples_draft or (self.reads_draft and law.needs_draft)):
            raise LossyError(
                f"the {self.name} coupling of {law} needs the draft's distributions, got None: use a draft that gives them, "
                "or a law that does not use them with deterministic candidates"
            )
        self.law, self.p, self.drafted = law, p, drafted
        self.q = p if q is None else q  # not read where there is none

    @cached_property
    def pi(self) -> Float[Tensor, "batch drafted vocab"]:
        """What the law emits at each drafted position, computed when it is first read."""
        return self.law.induced(self.p, self.q)

    @classmethod
    def supports(cls, law: Law) -> bool:
        """Whether the coupling exists for a law."""
        return True

    def accepted(self, coins: Float[Tensor, "batch drafted"]) -> Int[Tensor, "batch"]:
        """How many drafted tokens each row keeps, given one coin, uniform on [0, 1), for each drafted position."""
        raise NotImplementedError

    def residual(self, accepted: Int[Tensor, "batch"]) -> Float[Tensor, "batch vocab"]:
        """The law (not normalised) of the token after the accepted ones, for rows with accepted < G."""
        raise NotImplementedError

    def replace(self, accepted: Int[Tensor, "batch"], coins: Float[Tensor, "batch"]) -> Int[Tensor, "batch"]:
        """Draw the token after the accepted ones. Where the residual has no mass (π = q up to rounding), draw from π."""
        residual = self.residual(accepted)
        empty = residual.sum(-1, keepdim=True) < torch.finfo(residual.dtype).tiny
        if empty.device.type != "cpu" or bool(empty.any()):  # looking makes the host wait, except on a CPU
            residual = residual.where(~empty, row_at(self.pi, accepted))
        return sample(residual, coins)


def row_at(x: Float[Tensor, "batch drafted vocab"], index: Int[Tensor, "batch"]) -> Float[Tensor, "batch vocab"]:
    """x[b, index[b]] for every row b; an index past the end takes the last position."""
    if len(index) == 1 and index.device.type == "cpu":  # a view instead of a gather, where reading the index is free
        return x[:, min(int(index), x.shape[1] - 1)]
    clamped = index.clamp_max(x.shape[1] - 1)
    return x.gather(1, clamped[:, None, None].expand(-1, 1, x.shape[2])).squeeze(1)


def leading(kept: Tensor) -> Int[Tensor, "batch"]:
    """How many positions from the first on are all true: the accepted mask is cumulative."""
    return kept.long().cumprod(1).sum(1)


_REGISTRY: dict[str, type[Coupling]] = {}


def register_coupling(cls: type[Coupling]) -> type[Coupling]:
    """Class decorator: make a coupling selectable by its name."""
    _REGISTRY[cls.name] = cls
    return cls


def coupling(name: str) -> type[Coupling]:
    """The coupling registered under a name.

    Raises:
        LossyError: unknown name.
    """
    if name not in _REGISTRY:
        raise unknown("coupling", name, _REGISTRY)
    return _REGISTRY[name]


def couplings() -> list[str]:
    """The registered names."""
    return list(_REGISTRY)
