"""Laws and allowed sets as transformers ``LogitsProcessor`` subclasses.

With these a law can be used wherever transformers takes a processor. Behind them plain sampling emits the law token by
token, without speculation, which is also the slow but obvious way to check the fast one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel

from .cached_model import CachedModel
from .compat import default_cache
from .errors import LossyError
from .laws import Law, make
from .laws.allowed import eta_set, min_p_set
from .scores import Scorer


class LawLogitsProcessor(LogitsProcessor):
    """Turn target scores into log π, given the draft's scores at the same prefix.

    Put it last: what comes after it would process π and no longer p. A lossless kernel behind it (plain sampling, or the
    stock assisted loop with prompt lookup) then emits π.

    Args:
        verification: a law, by name, dict or instance.
        draft_scores: called with the prefix [B, L], gives the draft's processed scores [B, V], such as
            :class:`DraftScores`. May be left out for a law that does not use the draft.

    Raises:
        LossyError: a law that uses the draft without ``draft_scores``.
    """

    def __init__(
        self, verification: str | dict[str, object] | Law, draft_scores: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self.law, self.draft_scores = make(verification), draft_scores
        if self.law.needs_draft and draft_scores is None:
            raise LossyError(
                f"{self.law} needs the draft's probabilities: pass draft_scores=DraftScores(draft, target.config.vocab_size)"
            )

    def __call__(
        self, input_ids: Int[Tensor, "batch length"], scores: Float[Tensor, "batch vocab"]
    ) -> Float[Tensor, "batch vocab"]:
        p = scores.float().softmax(-1)
        q = p if self.draft_scores is None else self.draft_scores(input_ids).to(p.device).softmax(-1)
        return self.law.induced(p, q).log()


class DraftScores:
    """A draft model's processed scores at any prefix of one growing sequence; keeps its cache between calls.

    Args:
        model: the draft.
        vocabulary: width of the target's scores.
        processors: applied to the draft's scores as to the target's.
    """

    def __init__(self, model: PreTrainedModel, vocabulary: int, processors: LogitsProcessorList | None = None) -> None:
        self.model = model
        rows = model.config.get_text_config(decoder=True).vocab_size
        self._processors, self._limits = processors or LogitsProcessorList(), (vocabulary, min(rows, vocabulary))
        self._cached: CachedModel | None = None
        self._seen = torch.empty(0, 0, dtype=torch.long)

    @torch.no_grad()
    def __call__(self, input_ids: Int[Tensor, "batch length"]) -> Float[Tensor, "batch vocab"]:
        rows, length = input_ids.shape
        if self._cached is None or rows != self._seen.shape[0]:
            self._scorer = Scorer(self._processors, *self._limits, "draft", rows=rows)
            self._cached, self._seen = (
                CachedModel(self.model, default_cache(self.model), "draft", rows=rows),
                input_ids[:, :0],
            )
        shorter = min(length - 1, self._seen.shape[1], self._cached.held[0])
        same = (input_ids[:, :shorter] == self._seen[:, :shorter]).all(0)
        self._cached.crop([int(same.long().cumprod(0).sum())] * rows)
        logits = self._cached(input_ids[:, self._cached.held[0] :]).logits[:, -1:]
        self._seen = input_ids
        return self._scorer.scores(logits, input_ids, [length] * rows)[:, 0]


class MinPSetLogitsProcessor(LogitsProcessor):
    """Keep the min-p set {p ≥ p_base · max p}, the set that ``speccascade`` and ``min_p`` use."""

    def __init__(self, p_base: float) -> None:
        self.p_base = make({"method": "min_p", "p_base": p_base}).parameters()["p_base"]

    def __call__(
        self, input_ids: Int[Tensor, "batch length"], scores: Float[Tensor, "batch vocab"]
    ) -> Float[Tensor, "batch vocab"]:
        return scores.masked_fill(~min_p_set(scores.softmax(-1), self.p_base), -torch.inf)


class EtaSetLogitsProcessor(LogitsProcessor):
    """Keep the eta set {p ≥ min(ε, δ exp(−H(p)))} ∪ argmax p, the set that ``typical`` and ``eta`` use."""

    def __init__(self, epsilon: float = 0.09, delta: float | None = None) -> None:
        self.epsilon, self.delta = (
            make({"method": "eta", "epsilon": epsilon, "delta": delta}).parameters()[name]
            for name in ("epsilon", "delta")
        )

    def __call__(
        self, input_ids: Int[Tensor, "batch length"], scores: Float[Tensor, "batch vocab"]
    ) -> Float[Tensor, "batch vocab"]:
        return scores.masked_fill(~eta_set(scores.softmax(-1), self.epsilon, self.delta), -torch.inf)
