"""The decoding loop: draft → verify (one target forward) → couple → commit → roll back.

Shapes: B rows, L settled tokens (the prompt and what was emitted), G drafted tokens in a round, V tokens in the
vocabulary. A round feeds what the target's cache does not hold yet: the last settled token and the G drafted ones, in the
first round the whole prompt and the G drafted ones. It gets p at G + 1 positions. The first round's forwards are the
prefill, and that round's time is booked as such.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..accounting import Accounting, account
from ..cached_model import CachedModel
from ..couplings import Coupling
from ..drafting import Draft, Proposal
from ..laws.base import Law
from ..numerics import one_hot, sample
from ..scores import Coins, Scorer
from .outputs import Recorder
from .statistics import Round, RowStats, VerificationStats
from .stops import Stops

BROKEN = -1
"""Stands for a bonus token that was drawn with a q of NaN, until the tokens are read."""


@dataclass
class Run:
    """Everything one call of ``generate`` works with."""

    target: CachedModel
    scorer: Scorer
    draft: Draft
    law: Law
    coupling: type[Coupling]
    coins: Coins
    stops: Stops
    recorder: Recorder
    tokens: Int[Tensor, "batch capacity"]
    length: int
    sampled: bool
    induced_bonus: bool
    point_mass: bool
    accounting: bool
    prefill_chunk: int | None = None
    on_token: Callable[[int], None] | None = None
    stats: VerificationStats = field(default_factory=VerificationStats)


class Verified(NamedTuple):
    """What one target forward tells about a round: its output, raw logits, processed scores and p, each [B, G + 1, V]."""

    outputs: Any
    logits: Float[Tensor, "batch drafted_1 rows"]
    scores: Float[Tensor, "batch drafted_1 vocab"]
    p: Float[Tensor, "batch drafted_1 vocab"]


class Outcome(NamedTuple):
    """What a round decided: accepted drafted tokens a row, the token after them [B], and the accounting of the positions
    in pieces of [B, n] each."""

    accepted: list[int]
    last: Int[Tensor, "batch"]
    figures: list[Accounting]


def decode(run: Run) -> Int[Tensor, "batch length"]:
    """Generate until the sequence stops; returns the prompt and the emitted tokens."""
    stats, stopped, timed = run.stats, False, run.stats.first_round
    stats.rows = [RowStats() for _ in run.tokens]
    with timed("prefill"):
        chunks = read_prompt(run)
    while not stopped:
        with timed("draft"):
            proposal = propose(run)
        with timed("verify"):
            verified = verify(run, proposal)
        with timed("couple"):
            outcome = couple(run, proposal, verified.p)
        with timed("cache"):
            stopped = commit(run, proposal, verified, outcome)
            roll_back(run, verified, outcome)
        if timed == stats.first_round:
            timed, prefill = stats.timed, (run.target.seconds, run.draft.seconds)
    run.target.release()
    stats.target_forwards, stats.draft_forwards = run.target.forwards - chunks, run.draft.forwards
    stats.add_forwards(prefill, (run.target.seconds, run.draft.seconds))
    return run.tokens[:, : run.length]


def read_prompt(run: Run) -> int:
    """Where ``prefill_chunk_size`` asks for it, feed the prompt up to its last chunk; the number of forwards it took."""
    before = run.target.forwards
    while run.prefill_chunk is not None and (end := run.target.length + run.prefill_chunk) < run.length:
        run.target(run.tokens[:, run.target.length : end])
        run.target.crop(end)  # nothing to forget, but a sliding window is trimmed
    return run.target.forwards - before


def propose(run: Run) -> Proposal:
    """Draft up to γ tokens, and no more than can be emitted with one token after them."""
    count = min(run.draft.num_assistant_tokens, run.stops.room(run.length) - 1)
    proposal = run.draft.propose(run.tokens, run.length, count)
    drafted, q = proposal
    if q is None and run.point_mass and drafted.shape[1]:
        q = one_hot(drafted, torch.empty(*drafted.shape, run.scorer.vocabulary, device=drafted.device))
    return Proposal(drafted, q)


def verify(run: Run, proposal: Proposal) -> Verified:
    """One target forward over the last settled and the drafted tokens: p at each drafted position and after the last."""
    drafted = proposal.tokens.shape[1]
    run.tokens[:, run.length : run.length + drafted] = proposal.tokens  # processors read their prefix from here
    outputs = run.target(run.tokens[:, run.target.length : run.length + drafted], logits=drafted + 1)
    logits = outputs.logits[:, -drafted - 1 :].to(run.tokens.device)
    scores = run.scorer.scores(logits, run.tokens, run.length)
    if run.sampled:
        p = scores.softmax(-1)
    elif run.law.is_strict and not run.accounting:
        p = scores  # π = p and only its argmax is read, which needs no softmax
    else:
        p = scores.double().softmax(-1)  # in double, so that no two scores become a tie
    return Verified(outputs, logits, scores, p)


def couple(run: Run, proposal: Proposal, p: Float[Tensor, "batch drafted_1 vocab"]) -> Outcome:
    """Decide how many drafted tokens each row keeps, and draw the token after them."""
    drafted, q = proposal.tokens, None if proposal.q is None else proposal.q.to(p.dtype)
    rows, count = drafted.shape
    accepted, verification = torch.zeros(rows, dtype=torch.long, device=p.device), None
    if count:
        verification = run.coupling(run.law, p[:, :count], q, drafted)
        accepted = verification.accepted(run.coins(rows, count))
    kept, ended = _read(run, accepted, drafted, p, q)  # the one synchronisation of a round
    figures, last = [], accepted
    if verification is not None and run.accounting:
        figures.append(account(p[:, :count], q, verification.pi))
    if verification is not None and min(kept) < count:
        last = verification.replace(accepted, run.coins(rows))
    if max(kept) == count and not ended:
        p_bonus, q_bonus = p[:, count], bonus_probs(run, count)
        induced = run.induced_bonus and (q_bonus is not None or not run.law.uses_draft)
        pi = run.law.induced(p_bonus, p_bonus if q_bonus is None else q_bonus.to(p.dtype)) if induced else p_bonus
        bonus = sample(pi, run.coins(rows)) if run.sampled else pi.argmax(-1)
        if q_bonus is not None:
            bonus = bonus.where(q_bonus[:, 0].isfinite(), BROKEN)
        last = torch.where(accepted == count, bonus, last)
        if run.accounting:
            figures.append(Accounting(*(x[:, None] for x in account(p_bonus, q_bonus, pi))))
    return Outcome(kept, last, figures)


def bonus_probs(run: Run, count: int) -> Float[Tensor, "batch vocab"] | None:
    """q after the last drafted token, by one more step of the draft; None where nothing will read it."""
    wanted = run.induced_bonus and (run.accounting or (run.law.uses_draft and not run.law.is_strict))
    return run.draft.next_probs(run.tokens, run.length + count) if wanted else None


def commit(run: Run, proposal: Proposal, verified: Verified, outcome: Outcome) -> bool:
    """Settle the emitted tokens, cut at the first stop: sequence, stream, records and statistics. True when it stopped."""
    count = proposal.tokens.shape[1]
    for row, kept in enumerate(outcome.accepted):
        run.tokens[row, run.length + kept] = outcome.last[row]
        new = run.tokens[row, run.length : run.length + kept + 1].tolist()
        if new[-1] == BROKEN:
            raise run.draft.complain(run.length + kept)
        recorded = run.recorder.with_scores(verified.scores)
        emitted, stop = run.stops.first(run.tokens[row : row + 1], run.length, new, recorded)
        stats = run.stats.rows[row]
        accepted = min(kept, emitted)
        stats.rounds.append(Round(count, accepted, emitted, stop))
        stats.sources.extend(["accepted"] * accepted)
        if emitted > kept:
            stats.sources.append("replaced" if kept < count else "bonus")
        if outcome.figures:
            stats.add_accounting(
                Accounting(*(torch.cat(x, 1)[row, :emitted] for x in zip(*outcome.figures, strict=True)))
            )
        if run.on_token is not None:
            for token in new[:emitted]:
                run.on_token(token)
    run.recorder.add(verified.outputs, verified.logits, verified.scores, emitted)
    run.length += emitted  # one row; rows of different length come with the cache work for batches
    return stop is not None


def roll_back(run: Run, verified: Verified, outcome: Outcome) -> None:
    """Forget the refused tokens: the target's cache keeps all settled tokens but the last, the draft's what it can use."""
    run.target.crop(run.length - 1)
    run.draft.settle(run.length)
    run.draft.update_candidate_strategy(run.tokens[:, : run.length], verified.scores, outcome.accepted[0])


def _read(run: Run, accepted: Tensor, drafted: Tensor, p: Tensor, q: Tensor | None) -> tuple[list[int], bool]:
    """The accepted counts as numbers, and whether every row's block ends in an end-of-sequence token, so that no bonus
    will be emitted; after a check of p and q that rides on the same transfer.

    A NaN, or nothing but -inf, makes a whole softmax row NaN, so that its first entry tells; where p holds scores (greedy
    and strict) the maximum does."""
    marks = [p[..., 0] if run.sampled or run.accounting or not run.law.is_strict else p.amax(-1)]
    marks += [] if q is None else [q[..., 0]]
    sound = torch.stack([mark.sum() for mark in marks]).sum().isfinite()
    ends = drafted[:, -1] if drafted.shape[1] else torch.full_like(accepted, -1)
    *numbers, sound = torch.cat([accepted, ends, sound[None]]).tolist()
    if not sound:
        complaints = (run.scorer.complain, run.draft.complain)
        for mark, complain in zip(marks, complaints, strict=False):
            broken = (~mark.isfinite()).any(0).nonzero()
            if len(broken):
                raise complain(run.length + int(broken[0]))
    return numbers[: len(accepted)], all(token in run.stops.eos for token in numbers[len(accepted) :])
