"""What a draft is to the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.generation import CandidateGenerator

from ..errors import LossyError
from ..tree import Tree
from .schedule import Schedule


class Proposal(NamedTuple):
    """Drafted tokens of one round, the same number for every row.

    Attributes:
        tree: the candidates of all rows; it may hold fewer than what was asked for, and none.
        q: the distributions the candidates of a chain come from, [B, G, V], on the target's device. None where there are
            none, or where the draft gives them node by node (:meth:`Draft.next_probs`).
    """

    tree: Tree
    q: Float[Tensor, "batch drafted vocab"] | None = None

    @classmethod
    def chain(
        cls, drafted: Int[Tensor, "batch drafted"], q: Float[Tensor, "batch drafted vocab"] | None = None
    ) -> Proposal:
        """A chain for every row."""
        return cls(Tree.chain(drafted), q)

    @property
    def tokens(self) -> Int[Tensor, "batch drafted"]:
        """All candidates, in the order of the nodes."""
        return self.tree.tokens


class Runs(Protocol):
    """A model at work, which counts its forwards and the seconds inside them."""

    forwards: int
    seconds: float

    def select(self, rows: Sequence[int]) -> None:
        """Go on with some rows only."""


class Draft(CandidateGenerator):
    """Proposes candidate tokens; a transformers ``CandidateGenerator`` with what exact verification needs besides.

    The loop owns a buffer of tokens [B, capacity] of whose row r the first ``lengths[r]`` are settled; a draft writes
    nothing into it and may read everything before the position it drafts for. It drafts the same number of tokens for every
    row.

    Args:
        schedule: how many tokens to draft in a round.
    """

    has_probs: ClassVar[bool]
    """Whether there is a distribution q at each node."""
    walked: ClassVar[bool] = False
    """Whether it drafts trees, whose q is asked for node by node; such a tree may well be a chain."""
    samples: bool
    """Whether the candidates are sampled from q; else they are a function of the prefix."""
    runs: Runs | None = None
    """What the draft runs on, None where nothing is run."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    @property
    def num_assistant_tokens(self) -> int:
        """How many tokens to draft in the next round, γ."""
        return self.schedule.length

    @property
    def forwards(self) -> int:
        """Forwards of the draft model so far."""
        return 0 if self.runs is None else self.runs.forwards

    @property
    def seconds(self) -> float:
        """Time inside them."""
        return 0.0 if self.runs is None else self.runs.seconds

    def describe(self) -> dict[str, Any]:
        """What it is and how far it drafts, for the statistics."""
        return {"draft": type(self).__name__.removesuffix("Draft"), **self.schedule.describe()}

    def propose(self, tokens: Int[Tensor, "batch capacity"], lengths: Sequence[int], count: int) -> Proposal:
        """Draft after each row's first ``lengths[r]`` tokens, up to ``count`` tokens deep."""
        raise NotImplementedError

    def next_probs(
        self, tokens: Int[Tensor, "batch capacity"], lengths: Sequence[int], nodes: Sequence[int]
    ) -> Float[Tensor, "batch vocab"] | None:
        """q at a node of each row's last proposal, None where there is none.

        Args:
            tokens: the sequences; the first ``lengths[r]`` of each are those up to the node.
            lengths: how many that are.
            nodes: the nodes; the last one of a chain is its bonus position.
        """
        return None

    def without_q(self) -> set[int]:
        """Rows that :meth:`next_probs` can't answer for yet; what it gives for them is not read."""
        return set()

    def settle(self, lengths: Sequence[int]) -> None:
        """The first ``lengths[r]`` tokens of each row are settled now: forget what was computed from others."""

    def select(self, rows: Sequence[int]) -> None:
        """Go on with some rows only; the others are finished. Called after :meth:`settle`."""
        if self.runs is not None:
            self.runs.select(rows)

    def complain(self, position: int) -> Exception:
        """The error for a position whose scores are not a distribution."""
        raise NotImplementedError

    # --- transformers' CandidateGenerator ------------------------------------------------------------------------

    def get_candidates(
        self, input_ids: Int[Tensor, "batch length"], **kwargs: object
    ) -> tuple[Int[Tensor, "batch longer"], Float[Tensor, "batch drafted vocab"] | None]:
        """The sequences with candidates appended, and log q, whose softmax is the q that they were sampled from."""
        proposal = self.propose(input_ids, [input_ids.shape[1]] * len(input_ids), self.num_assistant_tokens)
        if not proposal.tree.is_chain:
            raise LossyError("transformers' own assisted decoding takes chains, not trees: use draft_mode='chain'")
        candidates = torch.cat([input_ids, proposal.tokens.to(input_ids.device)], 1)
        return candidates, None if proposal.q is None else proposal.q.log()

    def update_candidate_strategy(
        self, input_ids: Int[Tensor, "batch length"], scores: Float[Tensor, "batch n vocab"] | None, num_matches: int
    ) -> None:
        """Adapt the draft length to how many candidates of the last round were accepted."""
        self.schedule.update([self.num_assistant_tokens], [num_matches])
