"""What a draft is to the loop."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.generation import CandidateGenerator

from ..errors import LossyError
from ..tree import Tree


class Proposal(NamedTuple):
    """Drafted tokens of one round.

    Attributes:
        tree: the candidates; it may hold fewer than what was asked for, and none.
        q: the distributions the candidates of a chain come from, [B, G, V], on the target's device. None where there are
            none, or where the draft gives them node by node (:meth:`Draft.next_probs`).
    """

    tree: Tree
    q: Float[Tensor, "batch drafted vocab"] | None = None

    @classmethod
    def nothing(cls, tokens: Int[Tensor, "batch capacity"]) -> Proposal:
        """No candidates for these sequences."""
        return cls(Tree.chain(tokens[:, :0]))


class Runs(Protocol):
    """A model at work, which counts its forwards and the seconds inside them."""

    forwards: int
    seconds: float


class Draft(CandidateGenerator):
    """Proposes candidate tokens; a transformers ``CandidateGenerator`` with what exact verification needs besides.

    The loop owns a buffer of tokens [B, capacity] whose first ``length`` columns are settled; a draft writes nothing into
    it and may read everything before the position it drafts for.

    Args:
        num_assistant_tokens: how many tokens to draft in a round, γ.
        schedule: ``"constant"``, or ``"heuristic"``: two more after a round that was accepted whole, else one less.
    """

    has_probs: ClassVar[bool]
    """Whether there is a distribution q at each node."""
    walked: ClassVar[bool] = False
    """Whether it drafts trees, whose q is asked for node by node; such a tree may well be a chain."""
    samples: bool
    """Whether the candidates are sampled from q; else they are a function of the prefix."""
    runs: Runs | None = None
    """What the draft runs on, None where nothing is run."""

    def __init__(self, num_assistant_tokens: int, schedule: str = "constant") -> None:
        self.num_assistant_tokens, self.schedule = num_assistant_tokens, schedule

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
        return {"draft": type(self).__name__.removesuffix("Draft"), "num_assistant_tokens": self.num_assistant_tokens}

    def propose(self, tokens: Int[Tensor, "batch capacity"], length: int, count: int) -> Proposal:
        """Draft after the first ``length`` tokens, up to ``count`` tokens deep."""
        raise NotImplementedError

    def next_probs(
        self, tokens: Int[Tensor, "batch capacity"], length: int, node: int
    ) -> Float[Tensor, "batch vocab"] | None:
        """q at a node of the last proposal, None where there is none.

        Args:
            tokens: the sequences; the first ``length`` are those up to the node.
            length: how many that are.
            node: the node; the last one of a chain is its bonus position.
        """
        return None

    def settle(self, length: int) -> None:
        """The first ``length`` tokens are settled now: forget what was computed from others."""

    def complain(self, position: int) -> Exception:
        """The error for a position whose scores are not a distribution."""
        raise NotImplementedError

    # --- transformers' CandidateGenerator ------------------------------------------------------------------------

    def get_candidates(
        self, input_ids: Int[Tensor, "batch length"], **kwargs: object
    ) -> tuple[Int[Tensor, "batch longer"], Float[Tensor, "batch drafted vocab"] | None]:
        """The sequences with candidates appended, and log q, whose softmax is the q that they were sampled from."""
        proposal = self.propose(input_ids, input_ids.shape[1], self.num_assistant_tokens)
        if not proposal.tree.is_chain:
            raise LossyError("transformers' own assisted decoding takes chains, not trees: use draft_mode='chain'")
        candidates = torch.cat([input_ids, proposal.tree.tokens.to(input_ids.device)], 1)
        return candidates, None if proposal.q is None else proposal.q.log()

    def update_candidate_strategy(
        self, input_ids: Int[Tensor, "batch length"], scores: Float[Tensor, "batch n vocab"] | None, num_matches: int
    ) -> None:
        """Adapt the draft length to how many candidates of the last round were accepted."""
        if self.schedule == "heuristic":
            whole = num_matches >= self.num_assistant_tokens
            self.num_assistant_tokens = (
                self.num_assistant_tokens + 2 if whole else max(1, self.num_assistant_tokens - 1)
            )
