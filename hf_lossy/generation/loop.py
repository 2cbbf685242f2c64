"""The decoding loop: draft → verify (one target forward) → couple → commit → roll back.

Shapes: B rows, G drafted tokens in a round, V tokens in the vocabulary. Row r has ``lengths[r]`` settled tokens (its prompt
and what was emitted); rows are independent, keep different numbers of tokens in a round, and leave when they stop. A round
feeds what the target's cache does not hold yet: the last settled token and the G drafted ones, in the first round the whole
prompt and the G drafted ones. It gets p at G + 1 nodes: the last settled token (node 0) and each drafted one. The first
round's forwards are the prefill, and that round's time is booked as such.
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
from ..numerics import at, sample, widened
from ..ragged import put, window
from ..scores import Coins, Scorer
from ..tree import Tree
from .outputs import Recorder
from .statistics import Round, RowStats, VerificationStats
from .stops import Stops

BROKEN, NONE = -1, -2
"""Stand for a token that was drawn from a π of NaN, until the tokens are read, and for no token."""


@dataclass
class Run:
    """Everything one call of ``generate`` works with. Tokens, lengths and rows are those of the sequences still going on."""

    target: CachedModel
    scorer: Scorer
    draft: Draft
    law: Law
    coupling: type[Coupling]
    coins: Coins
    stops: Stops
    recorder: Recorder
    tokens: Int[Tensor, "batch capacity"]
    lengths: list[int]
    sampled: bool
    induced_bonus: bool
    point_mass: bool
    accounting: bool
    prefill_chunk: int | None = None
    on_token: Callable[[int], None] | None = None
    stats: VerificationStats = field(default_factory=VerificationStats)
    rows: list[int] = field(default_factory=list)
    """Which sequence each row is."""
    finished: dict[int, Int[Tensor, "length"]] = field(default_factory=dict)


class Verified(NamedTuple):
    """What one target forward tells about a round: its output, and the raw logits at each node [B, G + 1, rows]."""

    outputs: Any
    logits: Float[Tensor, "batch drafted_1 rows"]


class Outcome(NamedTuple):
    """What a round decided.

    Attributes:
        paths: for each row the nodes whose distributions its tokens come from: the root, then the accepted candidates.
        last: the token drawn at the last of them, [B].
        leaves: whether no candidates were left there, so that it is a bonus.
        scores: processed target scores along the path, at least as many positions as it has nodes, [B, n, V].
        figures: the accounting of the path's nodes in pieces of [B, n] each.
    """

    paths: Sequence[Sequence[int]]
    last: Int[Tensor, "batch"]
    leaves: Sequence[bool]
    scores: Float[Tensor, "batch nodes vocab"]
    figures: list[Accounting]


def decode(run: Run) -> list[Int[Tensor, "length"]]:
    """Generate until every sequence has stopped; returns each one's prompt and emitted tokens."""
    stats, timed = run.stats, run.stats.first_round
    run.rows = list(range(len(run.lengths)))
    stats.rows = [RowStats() for _ in run.rows]
    with timed("prefill"):
        chunks = read_prompt(run)
    while run.rows:
        with timed("draft"):
            proposal = propose(run)
        with timed("verify"):
            verified = verify(run, proposal)
        with timed("couple"):
            outcome = couple(run, proposal, verified.logits)
        with timed("cache"):
            stopped = commit(run, proposal, verified, outcome)
            roll_back(run, outcome)
            drop(run, stopped)
        if timed == stats.first_round:
            timed, prefill = stats.timed, (run.target.seconds, run.draft.seconds)
    run.target.release()
    stats.target_forwards, stats.draft_forwards = run.target.forwards - chunks, run.draft.forwards
    stats.add_forwards(prefill, (run.target.seconds, run.draft.seconds))
    return [run.finished[row] for row in sorted(run.finished)]


def read_prompt(run: Run) -> int:
    """Where ``prefill_chunk_size`` asks for it, feed the prompt up to its last chunk; the number of forwards it took."""
    before, length = run.target.forwards, run.lengths[0]
    while run.prefill_chunk is not None and (end := run.target.held[0] + run.prefill_chunk) < length:
        run.target(run.tokens[:, run.target.held[0] : end])
        run.target.crop([end] * len(run.rows))  # nothing to forget, but a sliding window is trimmed
    return run.target.forwards - before


def propose(run: Run) -> Proposal:
    """Draft up to γ tokens deep, and no deeper than some row can emit with one token after them."""
    count = min(run.draft.num_assistant_tokens, max(map(run.stops.room, run.lengths)) - 1)
    lacking = max(run.lengths) + count + 1 - run.tokens.shape[1]
    if lacking > 0:  # rows that are nearly full draft on with the others, past their own end
        run.tokens = torch.cat([run.tokens, run.tokens.new_zeros(len(run.rows), lacking)], 1)
    return run.draft.propose(run.tokens, run.lengths, count)


def verify(run: Run, proposal: Proposal) -> Verified:
    """One target forward over the last settled and the drafted tokens: logits at the root and at each candidate."""
    count = run.target.missing(run.lengths)
    settled = window(run.tokens, [length - count for length in run.lengths], count)
    nodes = proposal.tokens.shape[1] + 1
    seen = None if proposal.tree.is_chain else proposal.tree.seen
    outputs = run.target(torch.cat([settled, proposal.tokens], 1), logits=nodes, seen=seen)
    return Verified(outputs, outputs.logits[:, -nodes:].to(run.tokens.device))


def distributions(
    run: Run, logits: Float[Tensor, "batch n rows"], lengths: Sequence[int]
) -> tuple[Float[Tensor, "batch n vocab"], Float[Tensor, "batch n vocab"]]:
    """Processed scores and p at n positions, of which the first sees each row's first ``lengths[r]`` tokens."""
    scores = run.scorer.scores(logits, run.tokens, lengths)
    if run.sampled:
        return scores, scores.softmax(-1)
    if run.law.is_strict and not run.accounting:
        return scores, scores  # π = p and only its argmax is read, which needs no softmax
    return scores, widened(scores).softmax(-1)  # in double, so that no two scores become a tie


def couple(run: Run, proposal: Proposal, logits: Float[Tensor, "batch drafted_1 rows"]) -> Outcome:
    """Decide which drafted tokens each row keeps, and draw the token after them."""
    if run.draft.walked:
        return walk(run, proposal, logits)
    put(run.tokens, run.lengths, proposal.tokens)  # processors read their prefix from here
    return match(run, proposal, *distributions(run, logits, run.lengths))


def match(
    run: Run,
    proposal: Proposal,
    scores: Float[Tensor, "batch drafted_1 vocab"],
    p: Float[Tensor, "batch drafted_1 vocab"],
) -> Outcome:
    """Couple a chain: accepted counts for all rows at once, then the replacements, then the bonus tokens."""
    drafted = proposal.tokens
    rows, count = drafted.shape
    q = None if proposal.q is None or run.point_mass else proposal.q.to(p.dtype)
    # as many coins in every round, so that a row's do not depend on how far its neighbours draft
    coins = run.coins(rows, max(count, run.draft.num_assistant_tokens) + 1)
    verification = run.coupling(run.law, p[:, :count], q, drafted) if count else None
    accepted = drafted.new_zeros(rows) if verification is None else verification.accepted(coins[:, 1 : count + 1])
    kept, ended = _read(run, accepted, drafted, p, q)  # the one synchronisation of a round
    figures, last = [], accepted
    if verification is not None and run.accounting:
        chance = None if run.draft.samples else at(verification.pi, drafted)
        figures.append(account(p[:, :count], q, verification.pi, chance))
    if verification is not None and min(kept) < count:
        last = verification.replace(accepted, coins[:, 0])
    if any(k == count and not ends for k, ends in zip(kept, ended, strict=True)):
        p_bonus = p[:, count]
        lengths = [length + count for length in run.lengths]
        pi, q_bonus = emitted_at(run, p_bonus, proposal.tree, [count] * rows, lengths)
        bonus = sample(pi, coins[:, 0]) if run.sampled else pi.argmax(-1)
        if q_bonus is not None:  # in which rows that have none hold NaN
            bonus = bonus.where(pi.amax(-1).isfinite(), BROKEN)
        last = bonus if min(kept) == count else torch.where(accepted == count, bonus, last)
        if run.accounting:
            figures.append(Accounting(*(x[:, None] for x in account(p_bonus, q_bonus, pi))))
    return Outcome([range(k + 1) for k in kept], last, [k == count for k in kept], scores, figures)


def walk(run: Run, proposal: Proposal, logits: Float[Tensor, "batch drafted_1 rows"]) -> Outcome:
    """Descend each row's tree along what is drawn at its nodes. Only the nodes on the way are looked at, one of every row at
    a time, each with the prefix of its own path; the host waits for the device at each of them."""
    tree, figures, scored = proposal.tree, list[Accounting](), list[Tensor]()
    # as many coins in every round, so that a row's do not depend on how far its neighbours get
    coins = run.coins(len(run.rows), run.draft.num_assistant_tokens + 1)

    def draw(paths: list[list[int]]) -> Int[Tensor, "batch"]:
        nodes, lengths = [path[-1] for path in paths], write(run, tree, paths)
        scores, p = (x[:, 0] for x in distributions(run, window(logits, nodes, 1), lengths))
        pi, q = emitted_at(run, p, tree, nodes, lengths)
        drawn = sample(pi, coins[:, len(scored)]) if run.sampled else pi.argmax(-1)
        scored.append(scores)
        if run.accounting:
            found, here = account(p, q, pi), run.tokens.new_tensor(nodes)
            chance = (pi.gather(1, tree.tokens) * tree.below(here)).sum(1)
            found = found._replace(acceptance=found.acceptance.where(tree.is_leaf(here), chance))
            figures.append(Accounting(*(x[:, None] for x in found)))
        # NaN in p or q, or no score above -inf, shows in the largest entry
        return drawn.where(pi.amax(-1).isfinite(), BROKEN)

    paths, last, leaves = descend(tree, draw, run.stops.eos)
    for row, token in enumerate(last):
        if token == BROKEN:
            depth = len(paths[row]) - 1
            sound = bool(scored[depth][row].softmax(-1).isfinite().all())
            raise (run.draft if sound else run.scorer).complain(run.lengths[row] + depth)
    write(run, tree, paths)
    return Outcome(paths, run.tokens.new_tensor(last), leaves, torch.stack(scored, 1), figures)


def write(run: Run, tree: Tree, paths: Sequence[Sequence[int]]) -> list[int]:
    """Write the tokens that the paths have come to into the sequences; the lengths with them."""
    lengths = [length + len(path) - 1 for length, path in zip(run.lengths, paths, strict=True)]
    if any(path[-1] for path in paths):
        starts, nodes = [length - 1 for length in lengths], run.tokens.new_tensor([[path[-1]] for path in paths])
        carried = tree.tokens.gather(1, (nodes - 1).clamp_min(0))
        put(run.tokens, starts, carried.where(nodes > 0, window(run.tokens, starts, 1)))
    return lengths


def emitted_at(
    run: Run, p: Float[Tensor, "batch vocab"], tree: Tree, nodes: Sequence[int], lengths: Sequence[int]
) -> tuple[Float[Tensor, "batch vocab"], Float[Tensor, "batch vocab"] | None]:
    """π at one node of each row, after its first ``lengths[r]`` tokens, and q there where it was asked for.

    A node without candidates is a bonus position: with ``bonus="induced"`` the draft is run once more for its q, with
    ``"target"``, or where the draft has no q there, π = p."""
    law = run.law
    if run.point_mass:
        return sibling_walk(law, p, tree.candidates(run.tokens.new_tensor(nodes))), None
    if not run.induced_bonus and tree.are_leaves(nodes):
        return p, None
    wanted = run.accounting or law.needs_draft
    q = run.draft.next_probs(run.tokens, lengths, nodes) if wanted else None
    if q is None:
        return (p if wanted and law.uses_draft else law.induced(p, p)), None
    q = q.to(p.dtype)
    pi, unknown = law.induced(p, q), run.draft.without_q()
    if unknown or not run.induced_bonus:  # in a batch beside rows that have a q
        without = tree.is_leaf(run.tokens.new_tensor(nodes))
        if run.induced_bonus:
            without &= torch.tensor([row in unknown for row in range(len(lengths))], device=p.device)
        q = q.where(~without[:, None], torch.nan)
        if law.uses_draft or not run.induced_bonus:
            pi = pi.where(~without[:, None], p)
    return pi, q


def commit(run: Run, proposal: Proposal, verified: Verified, outcome: Outcome) -> list[bool]:
    """Settle the emitted tokens, cut at the first stop: sequence, stream, records and statistics. Which rows stopped."""
    stopped, kept, tree = [], [len(path) - 1 for path in outcome.paths], proposal.tree
    depths = None if tree.is_chain else tree.depths.amax(1).tolist()
    put(run.tokens, [length + k for length, k in zip(run.lengths, kept, strict=True)], outcome.last[:, None])
    blocks = window(run.tokens, run.lengths, max(kept) + 1).tolist()
    figures = torch.cat([torch.stack(piece, -1) for piece in outcome.figures], 1) if outcome.figures else None
    for row, path in enumerate(outcome.paths):
        length, new = run.lengths[row], blocks[row][: len(path)]
        if new[-1] == BROKEN:
            raise run.draft.complain(length + kept[row])
        one, scores, number = slice(row, row + 1), outcome.scores[row : row + 1], run.rows[row]
        emitted, stop = run.stops.first(run.tokens[one], length, new, run.recorder.with_scores(number, scores))
        stats, accepted = run.stats.rows[number], min(kept[row], emitted)
        depth = None if depths is None else depths[row]
        stats.rounds.append(Round(tree.tokens.shape[1], accepted, emitted, stop, depth))
        stats.sources.extend(["accepted"] * accepted)
        if emitted > kept[row]:
            stats.sources.append("bonus" if outcome.leaves[row] else "replaced")
        if figures is not None:
            stats.add_accounting(figures[row, :emitted])
        if run.on_token is not None:
            for token in new[:emitted]:
                run.on_token(token)
        run.recorder.add(number, verified.outputs, verified.logits[one], scores, path[:emitted])
        run.lengths[row] += emitted
        stopped.append(stop is not None)
    return stopped


def roll_back(run: Run, outcome: Outcome) -> None:
    """Forget the refused tokens: the target's cache keeps all settled tokens but the last, the draft's what it can use; and
    let the draft length follow how it went."""
    run.target.crop([length - 1 for length in run.lengths], outcome.paths if run.draft.walked else ())
    run.draft.settle(run.lengths)
    levels = [run.stats.rows[number].rounds[-1].levels for number in run.rows]
    run.draft.schedule.update(levels, [len(path) - 1 for path in outcome.paths])


def drop(run: Run, stopped: Sequence[bool]) -> None:
    """Take out the rows that stopped, so that they cost nothing any more. (The last ones stay, for their cache.)"""
    going = [row for row, stops in enumerate(stopped) if not stops]
    run.finished |= {run.rows[row]: run.tokens[row, : run.lengths[row]] for row, stops in enumerate(stopped) if stops}
    if going and len(going) < len(stopped):
        run.target.select(going)
        run.draft.select(going)
        run.scorer.select(going)
        run.coins.select(going)
        run.tokens, run.lengths = run.tokens[going], [run.lengths[row] for row in going]
    run.rows = [run.rows[row] for row in going]


def _read(run: Run, accepted: Tensor, drafted: Tensor, p: Tensor, q: Tensor | None) -> tuple[list[int], list[bool]]:
    """The accepted counts as numbers, and whether each row's block ends in an end-of-sequence token, so that no bonus will
    be emitted; after a check of p and q that rides on the same transfer.

    A NaN, or nothing but -inf, makes a whole softmax row NaN, so that its first entry tells; where p holds scores (greedy
    and strict) the maximum does."""
    marks = [p[..., 0] if run.sampled or run.accounting or not run.law.is_strict else p.amax(-1)]
    marks += [] if q is None else [q[..., 0]]
    total = torch.cat(marks, 1).sum(1)
    # (where nothing was drafted, any token that is none: −1 may be how a caller says that no token ends a text)
    last = drafted[:, -1] if drafted.shape[1] else torch.full_like(accepted, NONE)
    numbers, ends, sums = torch.stack([accepted, last, total]).tolist()
    if not all(map(math.isfinite, sums)):
        complaints = (run.scorer.complain, run.draft.complain)
        for mark, complain in zip(marks, complaints, strict=False):
            broken = (~mark.isfinite()).nonzero()
            if len(broken):
                row, position = broken[broken[:, 1].argmin()].tolist()
                raise complain(run.lengths[row] + position)
    return [int(number) for number in numbers], [token in run.stops.eos for token in ends]
