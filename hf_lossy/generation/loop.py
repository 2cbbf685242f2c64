"""The decoding loop: draft → verify (one target forward) → couple → commit → roll back.

Shapes: B rows, L settled tokens (the prompt and what was emitted), G drafted tokens in a round, V tokens in the
vocabulary. A round feeds what the target's cache does not hold yet: the last settled token and the G drafted ones, in the
first round the whole prompt and the G drafted ones. It gets p at G + 1 nodes: the last settled token (node 0) and each
drafted one. The first round's forwards are the prefill, and that round's time is booked as such.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..accounting import Accounting, account
from ..cached_model import CachedModel
from ..couplings import Coupling, descend, sibling_walk
from ..drafting import Draft, Proposal
from ..laws.base import Law
from ..numerics import at, sample
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
    """What one target forward tells about a round: its output, and the raw logits at each node [B, G + 1, rows]."""

    outputs: Any
    logits: Float[Tensor, "batch drafted_1 rows"]


class Outcome(NamedTuple):
    """What a round decided.

    Attributes:
        paths: for each row the nodes whose distributions its tokens come from: the root, then the accepted candidates.
        last: the token drawn at the last of them, [B].
        scores: processed target scores along the path, at least as many positions as it has nodes, [B, n, V].
        figures: the accounting of the path's nodes in pieces of [B, n] each.
    """

    paths: list[Sequence[int]]
    last: Int[Tensor, "batch"]
    scores: Float[Tensor, "batch nodes vocab"]
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
            outcome = couple(run, proposal, verified.logits)
        with timed("cache"):
            stopped = commit(run, proposal, verified, outcome)
            roll_back(run, outcome)
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
    """Draft up to γ tokens deep, and no deeper than can be emitted with one token after them."""
    count = min(run.draft.num_assistant_tokens, run.stops.room(run.length) - 1)
    return run.draft.propose(run.tokens, run.length, count)


def verify(run: Run, proposal: Proposal) -> Verified:
    """One target forward over the last settled and the drafted tokens: logits at the root and at each candidate."""
    tree = proposal.tree
    fed = torch.cat([run.tokens[:, run.target.length : run.length], tree.tokens], 1)
    nodes = tree.tokens.shape[1] + 1
    outputs = run.target(fed, logits=nodes, seen=None if tree.is_chain else tree.seen)
    return Verified(outputs, outputs.logits[:, -nodes:].to(run.tokens.device))


def distributions(
    run: Run, logits: Float[Tensor, "batch n rows"], length: int
) -> tuple[Float[Tensor, "batch n vocab"], Float[Tensor, "batch n vocab"]]:
    """Processed scores and p at n positions, of which the first sees the first ``length`` tokens of ``run.tokens``."""
    scores = run.scorer.scores(logits, run.tokens, length)
    if run.sampled:
        return scores, scores.softmax(-1)
    if run.law.is_strict and not run.accounting:
        return scores, scores  # π = p and only its argmax is read, which needs no softmax
    return scores, scores.double().softmax(-1)  # in double, so that no two scores become a tie


def couple(run: Run, proposal: Proposal, logits: Float[Tensor, "batch drafted_1 rows"]) -> Outcome:
    """Decide which drafted tokens each row keeps, and draw the token after them."""
    if run.draft.walked:
        return walk(run, proposal, logits)
    drafted = proposal.tree.tokens
    run.tokens[:, run.length : run.length + drafted.shape[1]] = drafted  # processors read their prefix from here
    return match(run, proposal, *distributions(run, logits, run.length))


def match(
    run: Run,
    proposal: Proposal,
    scores: Float[Tensor, "batch drafted_1 vocab"],
    p: Float[Tensor, "batch drafted_1 vocab"],
) -> Outcome:
    """Couple a chain: accepted counts for all rows at once, then the replacements, then the bonus tokens."""
    drafted = proposal.tree.tokens
    rows, count = drafted.shape
    q = None if proposal.q is None or run.point_mass else proposal.q.to(p.dtype)
    accepted, verification = torch.zeros(rows, dtype=torch.long, device=p.device), None
    if count:
        verification = run.coupling(run.law, p[:, :count], q, drafted)
        accepted = verification.accepted(run.coins(rows, count))
    kept, ended = _read(run, accepted, drafted, p, q)  # the one synchronisation of a round
    figures, last = [], accepted
    if verification is not None and run.accounting:
        chance = None if run.draft.samples else at(verification.pi, drafted)
        figures.append(account(p[:, :count], q, verification.pi, chance))
    if verification is not None and min(kept) < count:
        last = verification.replace(accepted, run.coins(rows))
    if max(kept) == count and not ended:
        p_bonus = p[:, count]
        pi, q_bonus = emitted_at(run, p_bonus, proposal, count, run.length + count)
        bonus = sample(pi, run.coins(rows)) if run.sampled else pi.argmax(-1)
        if q_bonus is not None:
            bonus = bonus.where(q_bonus[:, 0].isfinite(), BROKEN)
        last = torch.where(accepted == count, bonus, last)
        if run.accounting:
            figures.append(Accounting(*(x[:, None] for x in account(p_bonus, q_bonus, pi))))
    return Outcome([range(k + 1) for k in kept], last, scores, figures)


def walk(run: Run, proposal: Proposal, logits: Float[Tensor, "1 drafted_1 rows"]) -> Outcome:
    """Descend a tree along what is drawn at its nodes. Only the nodes on the way are looked at, each with the prefix of its
    own path; the host waits for the device once at each of them."""
    tree, figures, scored = proposal.tree, list[Accounting](), list[Tensor]()

    def draw(path: list[int]) -> int:
        node, length = path[-1], run.length + len(path) - 1
        if node:
            run.tokens[:, length - 1] = tree.tokens[:, node - 1]
        scores, p = (x[:, 0] for x in distributions(run, logits[:, node : node + 1], length))
        pi, q = emitted_at(run, p, proposal, node, length)
        drawn = sample(pi, run.coins(1)) if run.sampled else pi.argmax(-1)
        # NaN in p or q, or no score above -inf, shows in the largest entry
        token, sound = torch.stack([drawn[0].double(), pi[0].amax().double()]).tolist()
        if not math.isfinite(sound):
            raise (run.scorer if not p.amax().isfinite() else run.draft).complain(length)
        scored.append(scores)
        if run.accounting:
            candidates = tree.candidates(node)
            chance = pi.gather(1, candidates).sum(1) if candidates.shape[1] else None
            figures.append(Accounting(*(x[:, None] for x in account(p, q, pi, chance))))
        return int(token)

    path, last = descend(tree, draw, run.stops.eos)
    if len(path) > 1:
        run.tokens[:, run.length + len(path) - 2] = tree.tokens[:, path[-1] - 1]
    return Outcome([path], run.tokens.new_tensor([last]), torch.stack(scored, 1), figures)


def emitted_at(
    run: Run, p: Float[Tensor, "batch vocab"], proposal: Proposal, node: int, length: int
) -> tuple[Float[Tensor, "batch vocab"], Float[Tensor, "batch vocab"] | None]:
    """π at one node, after the first ``length`` tokens of ``run.tokens``, and q there where it was asked for.

    A node without candidates is a bonus position: with ``bonus="induced"`` the draft is run once more for its q, with
    ``"target"``, or where the draft has no q there, π = p."""
    law, candidates = run.law, proposal.tree.candidates(node)
    if run.point_mass:
        return sibling_walk(law, p, candidates), None
    is_bonus = candidates.shape[1] == 0
    if is_bonus and not run.induced_bonus:
        return p, None
    wanted = run.accounting or (law.uses_draft and not law.is_strict)
    q = run.draft.next_probs(run.tokens, length, node) if wanted else None
    if q is None:
        return (p if is_bonus and law.uses_draft else law.induced(p, p)), None
    q = q.to(p.dtype)
    return law.induced(p, q), q


def commit(run: Run, proposal: Proposal, verified: Verified, outcome: Outcome) -> bool:
    """Settle the emitted tokens, cut at the first stop: sequence, stream, records and statistics. True when it stopped."""
    tree = proposal.tree
    for row, path in enumerate(outcome.paths):
        kept = len(path) - 1
        run.tokens[row, run.length + kept] = outcome.last[row]
        new = run.tokens[row, run.length : run.length + kept + 1].tolist()
        if new[-1] == BROKEN:
            raise run.draft.complain(run.length + kept)
        recorded = run.recorder.with_scores(outcome.scores)
        emitted, stop = run.stops.first(run.tokens[row : row + 1], run.length, new, recorded)
        stats = run.stats.rows[row]
        accepted = min(kept, emitted)
        depth = None if tree.is_chain else max(tree.depths)
        stats.rounds.append(Round(tree.tokens.shape[1], accepted, emitted, stop, depth))
        stats.sources.extend(["accepted"] * accepted)
        if emitted > kept:
            stats.sources.append("replaced" if tree.children[path[-1]] else "bonus")
        if outcome.figures:
            stats.add_accounting(
                Accounting(*(torch.cat(x, 1)[row, :emitted] for x in zip(*outcome.figures, strict=True)))
            )
        if run.on_token is not None:
            for token in new[:emitted]:
                run.on_token(token)
    run.recorder.add(verified.outputs, verified.logits, outcome.scores, path[:emitted])
    run.length += emitted  # one row; rows of different length come with the cache work for batches
    return stop is not None


def roll_back(run: Run, outcome: Outcome) -> None:
    """Forget the refused tokens: the target's cache keeps all settled tokens but the last, the draft's what it can use."""
    path = outcome.paths[0]
    run.target.crop(run.length - 1, path)
    run.draft.settle(run.length)
    run.draft.update_candidate_strategy(run.tokens[:, : run.length], outcome.scores, len(path) - 1)


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
