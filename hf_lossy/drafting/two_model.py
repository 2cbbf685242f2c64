from __future__ import annotations

from collections.abc import Collection

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..cached_model import CachedModel
from ..laws.base import Law
from ..numerics import at, one_hot, sample
from ..scores import Coins, Scorer
from .base import Draft, Proposal


class TwoModelDraft(Draft):
    """A smaller language model with its own cache, kept from round to round; one forward a drafted token.

    Args:
        model: the draft model and its cache.
        scorer: its processors, over the target's vocabulary.
        law: asked for the distribution the draft samples from (``law.shape_draft``).
        coins: where randomness comes from.
        device: the target's device, where tokens and q are needed.
        greedy: draft the likeliest token; q is a point mass when ``sampled`` is set, the softmax otherwise.
        sampled: whether the target is sampled (else the verification is greedy and only needs the softmax).
        needs_probs: leave q out where nothing will read it.
        confidence: stop drafting after a token with q below this; 0 never stops.
        ends: stop drafting after one of these tokens. Only looked at on a CPU, or for processors that look at the prefix;
            elsewhere the host would have to wait for the device after every token, and drafting on is cheaper.
    """

    has_probs = True

    def __init__(
        self,
        model: CachedModel,
        scorer: Scorer,
        law: Law,
        coins: Coins,
        device: torch.device,
        *,
        greedy: bool,
        sampled: bool,
        needs_probs: bool,
        confidence: float,
        ends: Collection[int],
        num_assistant_tokens: int,
        schedule: str,
    ) -> None:
        super().__init__(num_assistant_tokens, schedule)
        self.model, self.scorer, self.law, self.coins, self.device = model, scorer, law, coins, device
        self.greedy, self.sampled, self.needs_probs, self.confidence = greedy, sampled, needs_probs, confidence
        self.ends = ends if model.device.type == "cpu" or not scorer.prefix_free else ()

    @property
    def forwards(self) -> int:  # type: ignore[override]
        return self.model.forwards

    @property
    def seconds(self) -> float:  # type: ignore[override]
        return self.model.seconds

    def propose(self, tokens: Int[Tensor, "batch capacity"], length: int, count: int) -> Proposal:
        drafted, kept = list[Tensor](), list[Tensor]()
        coins = None if self.greedy else self.coins(tokens.shape[0], count).to(self.model.device)
        for i in range(count):
            # [B, V]: the scores or the distribution at position length + i
            q = self._distribution(tokens, length, drafted)
            token = q.argmax(-1) if coins is None else sample(q, coins[:, i])
            drafted.append(token)
            if self.needs_probs:
                kept.append(one_hot(token, q) if self.greedy and self.sampled else q)
            unsure = self.confidence and (at(q, token) < self.confidence).all()
            if unsure or (self.ends and all(t in self.ends for t in token.tolist())):
                break
        if not drafted:
            return Proposal(tokens[:, length:length], None)
        return Proposal(torch.stack(drafted, 1).to(self.device), torch.stack(kept, 1).to(self.device) if kept else None)

    def next_probs(self, tokens: Int[Tensor, "batch capacity"], length: int) -> Float[Tensor, "batch vocab"]:
        q = self._distribution(tokens, length, [])
        if self.greedy and self.sampled:
            q = one_hot(q.argmax(-1), q)
        return q.to(self.device)

    def settle(self, length: int) -> None:
        self.model.crop(min(self.model.length, length - 1))

    def complain(self, position: int) -> Exception:
        return self.scorer.complain(position)

    def _distribution(
        self, tokens: Int[Tensor, "batch capacity"], length: int, drafted: list[Int[Tensor, "batch"]]
    ) -> Float[Tensor, "batch vocab"]:
        """q after the first ``length`` tokens and the drafted ones, of which all but the last are in the cache."""
        prefix = tokens[:, :length]
        new = drafted[-1][:, None] if drafted else prefix[:, self.model.length :]
        if drafted and not self.scorer.prefix_free:
            prefix = torch.cat([prefix, torch.stack(drafted, 1).to(prefix.device)], 1)
        logits = self.model(new).logits[:, -1:]
        scores = self.scorer.scores(logits, prefix, length + len(drafted))[:, 0]
        if not (self.needs_probs or self.confidence) and self.greedy:
            return scores  # only the argmax will be read
        return self.law.shape_draft(scores.softmax(-1))
