from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..laws.base import Law
from ..numerics import at, one_hot, sample
from ..ragged import put
from ..scores import Coins, Scorer
from .base import Draft, Proposal
from .schedule import Schedule


@dataclass(frozen=True)
class Stepping:
    """How a chain is drafted token by token.

    Attributes:
        scorer: the draft's processors, over the target's vocabulary.
        law: asked for the distribution the draft samples from (``law.shape_draft``).
        coins: where randomness comes from.
        device: the target's device, where tokens and q are needed.
        greedy: draft the likeliest token.
        point_mass: q is a point mass on the drafted token (a greedy draft that is verified as if sampled).
        needs_probs: leave q out where nothing will read it.
        confidence: stop drafting after a token with q below this, in every row; 0 never stops.
        ends: stop drafting when every row has drafted one of these tokens. Only looked at on a CPU, or for processors that
            look at the prefix; elsewhere the host would have to wait for the device after every token, and drafting on is
            cheaper.
    """

    scorer: Scorer
    law: Law
    coins: Coins
    device: torch.device
    greedy: bool
    point_mass: bool
    needs_probs: bool
    confidence: float
    ends: Collection[int]


class StepwiseDraft(Draft):
    """Drafts a chain token by token, each drawn from the distribution after those before it.

    Args:
        how: what a step does.
        schedule: how many tokens to draft in a round.
        samples: whether the candidates count as sampled from q.
    """

    has_probs = True

    def __init__(self, how: Stepping, schedule: Schedule, samples: bool) -> None:
        super().__init__(schedule)
        self.how, self.scorer, self.samples = how, how.scorer, samples
        self.ends = how.ends if how.device.type == "cpu" or not how.scorer.prefix_free else ()

    def logits(
        self, tokens: Int[Tensor, "batch capacity"], lengths: Sequence[int], drafted: list[Int[Tensor, "batch"]]
    ) -> Float[Tensor, "batch 1 rows"]:
        """Raw logits after each row's first ``lengths[r]`` tokens and the drafted ones, of which all but the last were fed
        before."""
        raise NotImplementedError

    def propose(self, tokens: Int[Tensor, "batch capacity"], lengths: Sequence[int], count: int) -> Proposal:
        drafted, kept = list[Tensor](), list[Tensor]()
        # as many coins in every round: a row of a batch draws those that it would draw alone
        coins: Sequence[Tensor] | None = None
        if not self.how.greedy and count > 0:
            coins = self.how.coins(len(lengths), max(count, self.num_assistant_tokens)).unbind(1)
        prefix, going = tokens, [True] * len(lengths)
        if not self.scorer.prefix_free and count > 0:
            prefix = torch.cat([tokens[:, : max(lengths)], tokens.new_zeros(len(lengths), count)], 1)
        for i in range(count):
            places = [length + i for length in lengths]
            q = self.distribution(self.logits(tokens, lengths, drafted), prefix, places)
            token = q.argmax(-1) if coins is None else sample(q, coins[i].to(q.device))
            drafted.append(token)
            if not self.scorer.prefix_free:
                put(prefix, places, token[:, None].to(prefix.device))
            if self.how.needs_probs:
                kept.append(one_hot(token, q) if self.how.point_mass else q)
            if self.ends:
                going = [goes and t not in self.ends for goes, t in zip(going, token.tolist(), strict=True)]
            if not any(going) or (self.how.confidence and (at(q, token) < self.how.confidence).all()):
                break
        if not drafted:
            return Proposal.chain(tokens[:, :0])
        q_drafted = torch.stack(kept, 1).to(self.how.device) if kept else None
        return Proposal.chain(torch.stack(drafted, 1).to(self.how.device), q_drafted)

    def next_logits(
        self, tokens: Int[Tensor, "batch capacity"], lengths: Sequence[int], nodes: Sequence[int]
    ) -> Float[Tensor, "batch 1 rows"] | None:
        """Raw logits at the nodes (all the same) of the last chain; see :meth:`Draft.next_probs`."""
        return self.logits(tokens, lengths, [])

    def next_probs(
        self, tokens: Int[Tensor, "batch capacity"], lengths: Sequence[int], nodes: Sequence[int]
    ) -> Float[Tensor, "batch vocab"] | None:
        logits = self.next_logits(tokens, lengths, nodes)
        if logits is None:
            return None
        q = self.distribution(logits, tokens, lengths)
        if self.how.point_mass:
            q = one_hot(q.argmax(-1), q)
        return q.to(self.how.device)

    def select(self, rows: Sequence[int]) -> None:
        super().select(rows)
        self.scorer.select(rows)

    def complain(self, position: int) -> Exception:
        return self.scorer.complain(position)

    def distribution(
        self, logits: Float[Tensor, "batch 1 rows"], tokens: Int[Tensor, "batch capacity"], lengths: Sequence[int]
    ) -> Float[Tensor, "batch vocab"]:
        """q after each row's first ``lengths[r]`` tokens; the scores where only their argmax will be read."""
        scores = self.scorer.scores(logits, tokens, lengths)[:, 0]
        if not (self.how.needs_probs or self.how.confidence) and self.how.greedy:
            return scores
        return self.how.law.shape_draft(scores.softmax(-1))
