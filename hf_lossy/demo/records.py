"""What happened at each emitted token: the p, q and π it was drawn from, computed again from the finished text.

The loop does not keep these rows (a vocabulary wide, one for each token). Both models are functions of the prefix, so that
one forward of each over the whole text gives the same rows again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList

from ..accounting import account
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


Rows = tuple[Float[Tensor, "n vocab"], Float[Tensor, "n vocab"] | None]
"""p and q at some tokens that follow one another; no q where the draft has none."""
CHUNK = 32
"""Rows that are held at once: a vocabulary can be 150,000 wide."""


def records(rows: Iterable[Rows], law: Law, tokens: Sequence[int]) -> Records:
    """The records of the tokens that a law drew from these rows."""
    found, done = Records(*([] for _ in fields(Records))), 0
    for p, q in rows:
        chosen = torch.tensor(tokens[done : done + len(p)], device=p.device)
        done += len(p)
        pi = law.induced(p, p if q is None else q)
        figures = account(p, q, pi)
        of_p, of_pi = at(p, chosen), at(pi, chosen)
        of_q = torch.full_like(of_p, torch.nan) if q is None else at(q, chosen)
        acceptance, overshoot = (of_pi / of_q).clamp_max(1), of_pi.log() - of_p.log()
        values = (of_p, of_q, of_pi, acceptance, overshoot, figures.tv, figures.kl, figures.max_log_ratio)
        for spec, value in zip(fields(Records), values, strict=True):
            getattr(found, spec.name).extend(value.tolist())
    return found


def row(rows: Iterable[Rows], position: int) -> tuple[Float[Tensor, "vocab"], Float[Tensor, "vocab"] | None]:
    """p and q at one token."""
    for p, q in rows:
        if position < len(p):
            return p[position], None if q is None else q[position]
        position -= len(p)
    raise IndexError(f"there is no token {position} after the last")


@torch.no_grad()
def distributions(
    pair: Pair,
    arguments: dict[str, Any],
    prompt: Int[Tensor, "1 prompt"],
    emitted: Sequence[int],
    rounds: Sequence[int],
) -> Iterator[Rows]:
    """p and q at every emitted token, :data:`CHUNK` tokens at a time, in float64.

    Args:
        pair: target and draft.
        arguments: of the call of ``generate`` that emitted the tokens.
        prompt: its prompt.
        emitted: its tokens.
        rounds: how many of them each round emitted; an EAGLE-3 head's q depends on where in a round a token stands.
    """
    run = _opened(pair, {**arguments, **_CHAIN} if pair.head is not None else arguments, prompt, len(emitted))
    n, start, draft = len(emitted), prompt.shape[1], run.draft
    tokens = torch.cat([prompt, torch.tensor([emitted], device=prompt.device)], 1)
    of_target = run.target(tokens[:, :-1], logits=n).logits[:, -n:]
    of_draft = draft.model(tokens[:, :-1], logits=n).logits[:, -n:] if isinstance(draft, TwoModelDraft) else None
    nodes = [node for count in rounds for node in range(count)]
    for i in range(0, n, CHUNK):
        p = run.scorer.scores(of_target[:, i : i + CHUNK].double(), tokens, [start + i]).softmax(-1)[0]
        q = None
        if isinstance(draft, TwoModelDraft) and of_draft is not None:
            logits = of_draft[:, i : i + CHUNK].double().to(tokens.device)
            q = run.law.shape_draft(draft.scorer.scores(logits, tokens, [start + i]).softmax(-1)[0])
        elif isinstance(draft, Eagle3ChainDraft):
            found = [draft.next_probs(tokens, [start + j], [nodes[j]]) for j in range(i, i + len(p))]
            # a head that has seen a single token says nothing yet, and what is drawn there comes from p
            q = torch.cat([p[j : j + 1] if x is None else x.double() for j, x in enumerate(found)])
        yield p, q


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
