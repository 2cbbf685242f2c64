"""What happened at each emitted token: the p, q and π it was drawn from, computed again from the finished text.

The loop does not keep these rows (a vocabulary wide, one for each token). Both models are functions of the prefix, so that
one forward of each over the whole text gives the same rows again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList

from ..accounting import Accounting, account
from ..drafting import Eagle3ChainDraft, TwoModelDraft
from ..generation import Options
from ..generation.api import prepare
from ..generation.loop import Run
from ..laws import Law
from ..loading import Pair
from ..numerics import at


@dataclass(frozen=True)
class Records:
    """Of each emitted token: its probability under target, draft and law, and the figures of its position.

    Attributes:
        p, q, pi: probability of the token; ``q`` is NaN where the draft has none.
        acceptance: min(1, π/q) of the token, the chance that the token coupling keeps it once it is drafted; NaN where
            there is no q.
        overshoot: log(π/p) of the token, in nats.
        tv, kl, max_log_ratio: of the position (:class:`hf_lossy.accounting.Accounting`).
    """

    p: list[float]
    q: list[float]
    pi: list[float]
    acceptance: list[float]
    overshoot: list[float]
    tv: list[float]
    kl: list[float]
    max_log_ratio: list[float]


def records(
    p: Float[Tensor, "n vocab"], q: Float[Tensor, "n vocab"] | None, law: Law, tokens: Int[Tensor, "n"]
) -> Records:
    """The records of n tokens that a law drew from p and q."""
    pi = law.induced(p, p if q is None else q)
    figures: Accounting = account(p, q, pi)
    of_p, of_pi = at(p, tokens), at(pi, tokens)
    of_q = torch.full_like(of_p, torch.nan) if q is None else at(q, tokens)
    values = (
        of_p,
        of_q,
        of_pi,
        (of_pi / of_q).clamp_max(1),
        of_pi.log() - of_p.log(),
        figures.tv,
        figures.kl,
        figures.max_log_ratio,
    )
    return Records(*(value.tolist() for value in values))


@torch.no_grad()
def distributions(
    pair: Pair,
    arguments: dict[str, Any],
    prompt: Int[Tensor, "1 prompt"],
    emitted: Sequence[int],
    rounds: Sequence[int],
) -> tuple[Float[Tensor, "n vocab"], Float[Tensor, "n vocab"] | None]:
    """p and q at every emitted token, in float64.

    Args:
        pair: target and draft.
        arguments: of the call of ``generate`` that emitted the tokens.
        prompt: its prompt.
        emitted: its tokens.
        rounds: how many of them each round emitted; an EAGLE-3 head's q depends on where in a round a token stands.
    """
    run = _opened(pair, {**arguments, **_CHAIN} if pair.head is not None else arguments, prompt, len(emitted))
    n, start = len(emitted), prompt.shape[1]
    tokens = torch.cat([prompt, torch.tensor([emitted], device=prompt.device)], 1)
    logits = run.target(tokens[:, :-1], logits=n).logits[:, -n:]
    p = run.scorer.scores(logits.double(), tokens, start).softmax(-1)[0]
    if isinstance(run.draft, TwoModelDraft):
        own = run.draft.model(tokens[:, :-1], logits=n).logits[:, -n:].double()
        scores = run.draft.scorer.scores(own.to(tokens.device), tokens, start)
        return p, run.law.shape_draft(scores.softmax(-1)[0])
    if not isinstance(run.draft, Eagle3ChainDraft):
        return p, None
    rows: list[Tensor] = []
    for emitted_in_round in rounds:
        for node in range(emitted_in_round):
            q = run.draft.next_probs(tokens, start + len(rows), node)
            rows.append(torch.full_like(p[:1], torch.nan) if q is None else q.double())
    return p, torch.cat(rows)


_CHAIN = {"draft_mode": "chain", "tree_size": None, "tree_depth": None, "tree_top_k": None, "num_assistant_tokens": 1}
"""Along the path that was taken, a tree's rows are those of a chain."""


def _opened(pair: Pair, arguments: dict[str, Any], prompt: Int[Tensor, "1 prompt"], count: int) -> Run:
    """A run as ``generate`` would set it up with these arguments, at its beginning."""
    names = Options.__dataclass_fields__
    options = Options(**{k: v for k, v in arguments.items() if k in names}, accounting=True)
    opened: list[Run] = []

    def keep(
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> Tensor:
        opened.append(
            prepare(model, input_ids, logits_processor, stopping_criteria, generation_config, options, model_kwargs)
        )
        return input_ids

    others = {k: v for k, v in arguments.items() if k not in names} | {"max_new_tokens": count}
    pair.target.generate(prompt, attention_mask=torch.ones_like(prompt), custom_generate=keep, **others)
    return opened[0]
