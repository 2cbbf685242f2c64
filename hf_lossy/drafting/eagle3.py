"""Drafting with an EAGLE-3 head: chains and trees that grow from the target's own hidden states.

Rows: row t of the head holds the target's feature of token t and the token t + 1, and predicts token t + 2. Rows of true
features are kept from round to round ("stable"); what is drafted from them goes on at position R, the number of stable
rows, with the head's own output as feature, and is dropped afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..cached_model import CachedModel
from ..eagle3.head import Eagle3Head, HeadCache
from ..ragged import take, window
from ..scores import Scorer
from ..tree import Tree
from .base import Draft, Proposal
from .schedule import ExpectedTree, Schedule, TreeSchedule
from .stepwise import Stepping, StepwiseDraft


class HeadRunner:
    """A head beside its target: takes in the target's features as they come, and steps on from them.

    The rows of a batch have different numbers of stable rows; as in the target's cache, what is added goes behind the
    longest and is moved up to its own place once it is stable.

    Args:
        head: with an embedding.
        target: keeps the states that the head taps (``taps=head.config.taps``).
        firsts: for each sequence the position of the first token that is no padding.
    """

    def __init__(self, head: Eagle3Head, target: CachedModel, firsts: Sequence[int] = (0,)) -> None:
        self.head, self.target, self.cache = head, target, HeadCache()
        self.forwards, self.seconds = 0, 0.0
        self.start = min(firsts)
        """The token of the first row."""
        self.padding = [first - self.start for first in firsts]
        """Rows of each sequence that are padding."""
        self.stable = [0] * len(firsts)
        """Rows of true features, the padding included."""
        self.ids = head.draft_to_target
        """The target's id of each draft id."""
        # asked once: looking makes the host wait
        self._identical = head.config.draft_vocab_size == head.config.vocab_size and not bool(head.d2t.any())
        self._y: Tensor | None = None

    def ready(self, lengths: Sequence[int]) -> bool:
        """Whether the target has read all but the last settled token of each sequence, and more than padding."""
        return all(
            self.start + padding < length - 1 <= held
            for padding, length, held in zip(self.padding, lengths, self.target.held, strict=True)
        )

    def read(
        self, tokens: Int[Tensor, "batch capacity"], lengths: Sequence[int]
    ) -> Float[Tensor, "batch 1 hidden"] | None:
        """Take in what the target has said about each sequence's first ``lengths[r]`` tokens; the head's output at its last
        row, which predicts the token after them. None while there is no row: before the target's first forward, or for one
        token."""
        width = max(self.stable)
        self.cache.crop(width)
        ends = [min(n - 1, held) - self.start for n, held in zip(lengths, self.target.held, strict=True)]
        new = [end - stable for end, stable in zip(ends, self.stable, strict=True)]
        if max(new) > 0:
            tokens_from = [self.start + stable for stable in self.stable]
            features = self.head.features(self.target.tapped(tokens_from, max(new)).to(self.head.device))
            following = window(tokens, [start + 1 for start in tokens_from], max(new))
            row = torch.arange(max(new), device=self.head.device)
            mask = self._visible(torch.ones(max(new), max(new), dtype=torch.bool, device=self.head.device).tril())
            y = self._forward(features, following, self._positions(row), mask)
            # sequences with fewer new rows than others were fed something after them, which nothing sees
            last = window(y, [max(n - 1, 0) for n in new], 1)
            known = torch.tensor([n > 0 for n in new], device=y.device)[:, None, None]
            self._y = last if self._y is None else torch.where(known, last, self._y)
            self.cache.close_gaps(self.stable, width)
            self.stable = [max(end, stable) for end, stable in zip(ends, self.stable, strict=True)]
            self.cache.crop(max(self.stable))
        return self._y

    def step(
        self,
        features: Float[Tensor, "batch rows hidden"],
        tokens: Int[Tensor, "batch rows"],
        depth: int | Sequence[int],
        mask: Bool[Tensor, "*batch rows drafted"] | None = None,
    ) -> Float[Tensor, "batch rows hidden"]:
        """Go on from drafted tokens (depth 0: the children of the last settled token); the head's output.

        Args:
            features: of the rows they follow.
            tokens: the drafted tokens.
            depth: the rows of each sequence stand at position R + depth.
            mask: which drafted rows each row sees, its own included; None: all.
        """
        if mask is None:
            drafted = self.cache.length - max(self.stable) + 1
            mask = torch.ones(1, drafted, dtype=torch.bool, device=self.head.device)
        each = [depth] if isinstance(depth, int) else depth
        depths = torch.tensor(each, device=self.head.device)[:, None].expand(-1, tokens.shape[1])
        return self._forward(features, tokens, self._positions(depths), self._visible(mask))

    def logits(self, y: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch vocab"]:
        """The head's logits at their target ids; -inf for tokens it can't draft."""
        drafted = self.head.logits(y)
        if self._identical:
            return drafted
        whole = drafted.new_full((*drafted.shape[:-1], self.head.config.vocab_size), -torch.inf)
        return whole.index_copy_(-1, self.ids, drafted)

    def empty(self) -> set[int]:
        """Sequences without a row of true features: those of one token."""
        return {
            i for i, (stable, padding) in enumerate(zip(self.stable, self.padding, strict=True)) if stable <= padding
        }

    def select(self, rows: Sequence[int]) -> None:
        """Go on with some sequences only."""
        self.cache.select(rows)
        self.padding = [self.padding[row] for row in rows]
        self.stable = [self.stable[row] for row in rows]
        self._y = None if self._y is None else self._y[rows]

    def _positions(self, after: Int[Tensor, "*batch rows"]) -> Int[Tensor, "batch rows"]:
        """Positions of rows that stand so far after each sequence's stable ones."""
        counts = [stable - padding for stable, padding in zip(self.stable, self.padding, strict=True)]
        return (torch.tensor(counts, device=self.head.device)[:, None] + after).clamp_min(0)

    def _visible(self, mask: Bool[Tensor, "*batch rows new"]) -> Bool[Tensor, "*batch rows cached"]:
        """Which cached rows new rows see: each sequence's stable ones, and of the new ones those in the mask."""
        width = max(self.stable)
        if not any(self.padding) and min(self.stable) == width:
            whole = torch.cat([mask.new_ones(*mask.shape[:-1], width), mask], -1)
            return whole if mask.dim() == 2 else whole[:, None]
        row = torch.arange(width, device=self.head.device)
        padding, stable = (torch.tensor(x, device=self.head.device)[:, None] for x in (self.padding, self.stable))
        held = ((row >= padding) & (row < stable))[:, None].expand(-1, mask.shape[-2], -1)
        new = mask.expand(len(held), -1, -1)
        if max(self.stable) == 0:  # the prompt: padding sees itself alone
            real = torch.arange(new.shape[2], device=self.head.device) >= padding
            new = (new & real[:, None]) | torch.eye(new.shape[2], dtype=torch.bool, device=self.head.device)
        return torch.cat([held, new], 2)[:, None]

    def _forward(self, features: Tensor, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        began = time.perf_counter()
        y: Tensor = self.head(features, tokens.to(self.head.device), positions, self.cache, mask)
        self.seconds += time.perf_counter() - began
        self.forwards += 1
        return y


class Eagle3ChainDraft(StepwiseDraft):
    """A chain: the head's likeliest tokens, or with ``samples`` tokens drawn from its softmax.

    Args:
        runner: the head at work.
        how, schedule, samples: of :class:`StepwiseDraft`.
    """

    def __init__(self, runner: HeadRunner, how: Stepping, schedule: Schedule, samples: bool) -> None:
        super().__init__(how, schedule, samples)
        self.runner = self.runs = runner
        self._y: Tensor | None = None

    def propose(self, tokens: Int[Tensor, "batch capacity"], lengths: Sequence[int], count: int) -> Proposal:
        if not self.runner.ready(lengths):
            return Proposal.chain(tokens[:, :0])
        return super().propose(tokens, lengths, count)

    def logits(
        self, tokens: Int[Tensor, "batch capacity"], lengths: Sequence[int], drafted: list[Int[Tensor, "batch"]]
    ) -> Float[Tensor, "batch 1 rows"]:
        logits = self._after(tokens, lengths, len(drafted), drafted[-1][:, None] if drafted else None)
        assert logits is not None
        return logits

    def next_logits(
        self, tokens: Int[Tensor, "batch capacity"], lengths: Sequence[int], nodes: Sequence[int]
    ) -> Float[Tensor, "batch 1 rows"] | None:
        last = window(tokens, [length - 1 for length in lengths], 1) if nodes[0] else None
        return self._after(tokens, lengths, nodes[0], last)

    def without_q(self) -> set[int]:
        return self.runner.empty()

    def _after(self, tokens: Tensor, lengths: Sequence[int], node: int, last: Tensor | None) -> Tensor | None:
        """Logits after the ``node``-th drafted token (``last``), or after the settled ones; None where there is no row."""
        head = self.runner.head
        if last is None:
            self._y = self.runner.read(tokens, lengths)
        else:
            assert self._y is not None
            self._y = self.runner.step(head.feedback(self._y), last, node - 1)
        return None if self._y is None else self.runner.logits(self._y)


class Eagle3TreeDraft(Draft):
    """EAGLE's dynamic tree: expand the most probable candidates level by level, keep the most probable of all.

    The root's ``top_k`` likeliest tokens are the first level. For each further level the head runs over the ``top_k``
    candidates of the last with the largest cumulative log-probability, each of which gets its ``top_k`` likeliest tokens as
    children. Of all candidates the ``size − 1`` with the largest cumulative log-probability stay. The search uses the
    head's own log-probabilities at temperature 1; q at a node is its softmax after the processors.

    Args:
        runner: the head at work.
        scorer: the processors of q, over the target's vocabulary.
        device: the target's.
        schedule: how many levels of candidates, and nodes (EAGLE's total_token).
        top_k: candidates expanded at each level, and children of each.

    Source: EAGLE-2 2406.16858 and EAGLE-3 2503.01840.
    """

    has_probs = True
    walked = True
    samples = False
    schedule: TreeSchedule | ExpectedTree

    def __init__(
        self,
        runner: HeadRunner,
        scorer: Scorer,
        device: torch.device,
        *,
        schedule: TreeSchedule | ExpectedTree,
        top_k: int,
    ) -> None:
        super().__init__(schedule)
        self.runner = self.runs = runner
        self.scorer, self.device = scorer, device
        self.top_k = min(top_k, runner.head.config.draft_vocab_size)
        self._tree: Tree | None = None
        self._y = torch.empty(0)
        """The head's output at each row of the search."""
        self._places = torch.empty(0, dtype=torch.long)
        """The row of the search at each node, −1 where it was not expanded."""

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "tree_top_k": self.top_k}

    def propose(self, tokens: Int[Tensor, "batch capacity"], lengths: Sequence[int], count: int) -> Proposal:
        self._tree = None
        if count < 1 or not self.runner.ready(lengths):
            return Proposal.chain(tokens[:, :0])
        head, k = self.runner.head, self.top_k
        y = self.runner.read(tokens, lengths)
        assert y is not None
        # the pool of candidates: draft ids, cumulative log-probability, and the candidate each follows (-1: the root)
        best, one = head.logits(y)[:, 0].log_softmax(-1).topk(k), torch.ones(len(lengths), 1, dtype=torch.long)
        ids, scores, parents = [best.indices], [best.values], [torch.full_like(best.indices, -1)]
        rows, expanded = [y], [-one.to(head.device)]
        frontier, pool = torch.arange(k, device=head.device).expand(len(lengths), -1), k
        own = torch.eye(k, dtype=torch.bool, device=head.device).expand(len(lengths), -1, -1)
        features, seen = head.feedback(y).expand(-1, k, -1), own
        drafted, reached = best.indices, best.values
        for level in range(count - 1):
            y = self.runner.step(features, self.runner.ids[drafted], level, seen)
            rows.append(y)
            expanded.append(frontier)
            best = head.logits(y).log_softmax(-1).topk(k)
            ids.append(best.indices.flatten(1))
            scores.append((reached[:, :, None] + best.values).flatten(1))
            parents.append(frontier.repeat_interleave(k, 1))
            reached, chosen = scores[-1].topk(k)
            drafted, frontier, pool = ids[-1].gather(1, chosen), pool + chosen, pool + k * k
            from_row = chosen // k
            features = head.feedback(take(y, from_row))
            seen = torch.cat([take(seen, from_row), own], 2)
        # a stable sort: of equals the earlier, so that no candidate comes without the one it follows
        likely = torch.cat(scores, 1).sort(descending=True, stable=True)
        room = self.runner.target.room  # a static cache has to hold the tree
        reach, order = (x if room is None else x[:, : room - 1] for x in likely)
        size = self.schedule.choose(lambda: reach.exp().mean(0).tolist())
        kept = order[:, : size - 1].sort().values
        follows, searched = torch.cat(parents, 1).gather(1, kept), torch.cat(expanded, 1)
        chosen_tokens = self.runner.ids[torch.cat(ids, 1).gather(1, kept)]
        self._tree = Tree(chosen_tokens.to(self.device), _node_of(kept, follows).to(self.device))
        self._y = torch.cat(rows, 1)
        # candidates that were expanded and then not kept share a column at the end, which is cut off
        places = kept.new_full((len(kept), kept.shape[1] + 2), -1)
        places.scatter_(1, _node_of(kept, searched), torch.arange(searched.shape[1]).to(kept).expand_as(searched))
        self._places = places[:, :-1]
        return Proposal(self._tree)

    def next_probs(
        self, tokens: Int[Tensor, "batch capacity"], lengths: Sequence[int], nodes: Sequence[int]
    ) -> Float[Tensor, "batch vocab"] | None:
        if self._tree is None:
            y = self.runner.read(tokens, lengths)
            if y is None:
                return None
        else:
            at = torch.tensor(nodes, device=self._y.device)[:, None]
            places = self._places.gather(1, at)
            y = take(self._y, places.clamp_min(0))
            if (places < 0).any():
                y = y.where(places[:, :, None] >= 0, self._expand(at))
        logits = self.runner.logits(y).to(self.device)
        return self.scorer.scores(logits, tokens, lengths)[:, 0].softmax(-1)

    def without_q(self) -> set[int]:
        return self.runner.empty()

    def select(self, rows: Sequence[int]) -> None:
        super().select(rows)
        self.scorer.select(rows)

    def complain(self, position: int) -> Exception:
        return self.scorer.complain(position)

    def _expand(self, nodes: Int[Tensor, "batch 1"]) -> Float[Tensor, "batch 1 hidden"]:
        """Run the head on a node of each sequence, where the search did not expand it; elsewhere on anything."""
        assert self._tree is not None
        head, rows = self.runner.head, len(nodes)
        tokens, parents, seen = (x.to(nodes.device) for x in (self._tree.tokens, self._tree.parents, self._tree.seen))
        above = seen[torch.arange(rows), nodes[:, 0]].scatter(1, nodes, False)  # ancestors
        depths = (above.sum(1) - 1).clamp_min(0)
        # the search's row 0 is the last true row, not a drafted one; what is not above goes to a column that is cut off
        drafted = self.runner.cache.length - max(self.runner.stable)
        columns = torch.where(above & (self._places > 0), self._places - 1, drafted)
        mask = torch.zeros(rows, drafted + 1, dtype=torch.bool, device=nodes.device).scatter_(1, columns, True)
        mask[:, drafted] = True  # itself
        carrier = (nodes - 1).clamp_min(0)
        before = self._places.gather(1, parents.gather(1, carrier)).clamp_min(0)
        features = head.feedback(take(self._y, before))
        return self.runner.step(features, tokens.gather(1, carrier), depths.tolist(), mask[:, None])


def _node_of(
    kept: Int[Tensor, "batch nodes"], candidates: Int[Tensor, "batch candidates"]
) -> Int[Tensor, "batch candidates"]:
    """The node of each candidate, −1 being the root (0), among those that were kept, in ascending order; one past the last
    node for those that were not."""
    place = torch.searchsorted(kept, candidates)
    found = kept.gather(1, place.clamp_max(kept.shape[1] - 1)) == candidates
    return torch.where(candidates < 0, 0, torch.where(found, place + 1, kept.shape[1] + 1))
