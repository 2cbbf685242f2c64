"""Drafting with an EAGLE-3 head: chains and trees that grow from the target's own hidden states.

Rows: row t of the head holds the target's feature of token t and the token t + 1, and predicts token t + 2. Rows of true
features are kept from round to round ("stable"); what is drafted from them goes on at position R, the number of stable
rows, with the head's own output as feature, and is dropped afterwards.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..cached_model import CachedModel
from ..eagle3.head import Eagle3Head, HeadCache
from ..scores import Scorer
from ..tree import Tree
from .base import Draft, Proposal
from .stepwise import StepwiseDraft


class HeadRunner:
    """A head beside its target: takes in the target's features as they come, and steps on from them.

    Args:
        head: with an embedding.
        target: keeps the states that the head taps (``taps=head.config.taps``).
        first: the position of the first token that is no padding.
    """

    def __init__(self, head: Eagle3Head, target: CachedModel, first: int = 0) -> None:
        self.head, self.target, self.cache = head, target, HeadCache()
        self.first, self.forwards, self.seconds = first, 0, 0.0
        self.stable = 0
        """Rows of true features."""
        self.ids = head.draft_to_target
        """The target's id of each draft id."""
        # asked once: looking makes the host wait
        self._identical = head.config.draft_vocab_size == head.config.vocab_size and not bool(head.d2t.any())
        self._y: Tensor | None = None

    def ready(self, length: int) -> bool:
        """Whether the target has read all but the last of ``length`` settled tokens, and more than padding."""
        return self.first < length - 1 <= self.target.length

    def read(self, tokens: Int[Tensor, "batch capacity"], length: int) -> Float[Tensor, "batch 1 hidden"] | None:
        """Take in what the target has said about the first ``length`` tokens; the head's output at the last row, which
        predicts the token after them. None while there is no row: before the target's first forward, or for one token."""
        self.cache.crop(self.stable)
        start, end = self.first + self.stable, min(length - 1, self.target.length)
        if end > start:
            features = self.head.features(self.target.tapped(start, end).to(self.head.device))
            rows = torch.arange(self.stable, self.stable + end - start, device=self.head.device)
            mask = torch.arange(self.stable + end - start, device=self.head.device) <= rows[:, None]
            self._y = self._forward(features, tokens[:, start + 1 : end + 1], rows, mask)[:, -1:]
            self.stable += end - start
        return self._y

    def step(
        self,
        features: Float[Tensor, "batch rows hidden"],
        tokens: Int[Tensor, "batch rows"],
        depth: int,
        mask: Bool[Tensor, "rows drafted"] | None = None,
    ) -> Float[Tensor, "batch rows hidden"]:
        """Go on from drafted tokens of one depth (0: the children of the last settled token); the head's output.

        Args:
            features: of the rows they follow.
            tokens: the drafted tokens.
            depth: all rows stand at position R + depth.
            mask: which drafted rows each row sees, its own included; None: all.
        """
        if mask is not None:
            mask = torch.cat([mask.new_ones(len(mask), self.stable), mask], 1)
        positions = torch.full((tokens.shape[1],), self.stable + depth, device=self.head.device)
        return self._forward(features, tokens, positions, mask)

    def logits(self, y: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch vocab"]:
        """The head's logits at their target ids; -inf for tokens it can't draft."""
        drafted = self.head.logits(y)
        if self._identical:
            return drafted
        whole = drafted.new_full((*drafted.shape[:-1], self.head.config.vocab_size), -torch.inf)
        return whole.index_copy_(-1, self.ids, drafted)

    def _forward(self, features: Tensor, tokens: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        began = time.perf_counter()
        y: Tensor = self.head(features, tokens.to(self.head.device), positions[None], self.cache, mask)
        self.seconds += time.perf_counter() - began
        self.forwards += 1
        return y


class Eagle3ChainDraft(StepwiseDraft):
    """A chain: the head's likeliest tokens, or with ``samples`` tokens drawn from its softmax.

    Args:
        runner: the head at work.
        **settings: of :class:`StepwiseDraft`.
    """

    def __init__(self, runner: HeadRunner, **settings: Any) -> None:
        super().__init__(**settings)
        self.runner = self.runs = runner
        self._y: Tensor | None = None

    def propose(self, tokens: Int[Tensor, "batch capacity"], length: int, count: int) -> Proposal:
        if not self.runner.ready(length):
            return Proposal.nothing(tokens)
        return super().propose(tokens, length, count)

    def logits(
        self, tokens: Int[Tensor, "batch capacity"], length: int, drafted: list[Int[Tensor, "batch"]]
    ) -> Float[Tensor, "batch 1 rows"]:
        logits = self._after(tokens, length, len(drafted), drafted[-1][:, None] if drafted else None)
        assert logits is not None
        return logits

    def next_logits(
        self, tokens: Int[Tensor, "batch capacity"], length: int, node: int
    ) -> Float[Tensor, "batch 1 rows"] | None:
        return self._after(tokens, length, node, tokens[:, length - 1 : length] if node else None)

    def _after(self, tokens: Tensor, length: int, node: int, last: Tensor | None) -> Tensor | None:
        """Logits after the ``node``-th drafted token (``last``), or after the settled ones; None where there is no row."""
        head = self.runner.head
        if last is None:
            self._y = self.runner.read(tokens, length)
        else:
            assert self._y is not None
            self._y = self.runner.step(head.feedback(self._y), last, node - 1)
        return None if self._y is None else self.runner.logits(self._y)


class Eagle3TreeDraft(Draft):
    """EAGLE's dynamic tree: expand the most probable candidates level by level, keep the most probable of all.

    The root's ``top_k`` likeliest tokens are the first level. Then ``depth`` times: the head runs over the ``top_k``
    candidates of the level with the largest cumulative log-probability, each of which gets its ``top_k`` likeliest tokens as
    children. Of all candidates the ``size - 1`` with the largest cumulative log-probability stay. The search uses the
    head's own log-probabilities at temperature 1; q at a node is its softmax after the processors.

    Args:
        runner: the head at work.
        scorer: the processors of q, over the target's vocabulary.
        device: the target's.
        size: nodes, the root included (EAGLE's total_token).
        depth: expansions after the first level; the longest path has ``depth + 1`` candidates.
        top_k: candidates expanded at each level, and children of each.

    Source: EAGLE-2 2406.16858 and EAGLE-3 2503.01840.
    """

    has_probs = True
    walked = True
    samples = False

    def __init__(
        self, runner: HeadRunner, scorer: Scorer, device: torch.device, *, size: int, depth: int, top_k: int
    ) -> None:
        super().__init__(num_assistant_tokens=depth + 1)
        self.runner = self.runs = runner
        self.scorer, self.device = scorer, device
        self.size, self.depth, self.top_k = size, depth, min(top_k, runner.head.config.draft_vocab_size)
        self._tree: Tree | None = None
        self._y = torch.empty(0)
        self._row_of: dict[int, int] = {}

    def describe(self) -> dict[str, Any]:
        return {"draft": "Eagle3Tree", "tree_size": self.size, "tree_depth": self.depth, "tree_top_k": self.top_k}

    def propose(self, tokens: Int[Tensor, "1 capacity"], length: int, count: int) -> Proposal:
        self._tree = None
        if count < 1 or not self.runner.ready(length):
            return Proposal.nothing(tokens)
        head, k = self.runner.head, self.top_k
        y = self.runner.read(tokens, length)
        assert y is not None
        # the pool of candidates: draft ids, cumulative log-probability, and the candidate each follows (-1: the root)
        best = head.logits(y)[0, 0].log_softmax(-1).topk(k)
        ids, scores, parents = [best.indices], [best.values], [torch.full((k,), -1, device=head.device)]
        rows, expanded = [y[0]], [torch.tensor([-1], device=head.device)]
        frontier, pool = torch.arange(k, device=head.device), k
        features, seen = head.feedback(y).expand(1, k, -1), torch.eye(k, dtype=torch.bool, device=head.device)
        drafted, reached = best.indices, best.values
        for level in range(min(self.depth, count - 1)):
            y = self.runner.step(features, self.runner.ids[drafted][None], level, seen)
            rows.append(y[0])
            expanded.append(frontier)
            best = head.logits(y)[0].log_softmax(-1).topk(k)
            reached = reached[:, None] + best.values
            ids.append(best.indices.flatten())
            scores.append(reached.flatten())
            parents.append(frontier.repeat_interleave(k))
            chosen = scores[-1].topk(k).indices
            drafted, reached, frontier, pool = ids[-1][chosen], scores[-1][chosen], pool + chosen, pool + k * k
            from_row = chosen // k
            features = head.feedback(y[:, from_row])
            seen = torch.cat([seen[from_row], torch.eye(k, dtype=torch.bool, device=head.device)], 1)
        size = min(self.size, self.runner.target.room or self.size)  # a static cache has to hold the tree
        # a stable sort: of equals the earlier, so that no candidate comes without the one it follows
        kept = torch.cat(scores).sort(descending=True, stable=True).indices[: size - 1].sort().values
        node_of = {candidate: node for node, candidate in enumerate([-1, *kept.tolist()])}
        follows = torch.cat(parents)[kept].tolist()
        chosen_tokens = self.runner.ids[torch.cat(ids)[kept]][None].to(self.device)
        self._tree = Tree(chosen_tokens, [node_of[candidate] for candidate in follows])
        self._y, order = torch.cat(rows), torch.cat(expanded).tolist()
        self._row_of = {node_of[candidate]: row for row, candidate in enumerate(order) if candidate in node_of}
        return Proposal(self._tree)

    def next_probs(self, tokens: Int[Tensor, "1 capacity"], length: int, node: int) -> Float[Tensor, "1 vocab"] | None:
        if self._tree is None:
            y = self.runner.read(tokens, length)
            if y is None:
                return None
        elif node in self._row_of:
            y = self._row(node)
        else:
            y = self._expand(node)
        logits = self.runner.logits(y).to(self.device)
        return self.scorer.scores(logits, tokens, length)[:, 0].softmax(-1)

    def complain(self, position: int) -> Exception:
        return self.scorer.complain(position)

    def _row(self, node: int) -> Float[Tensor, "1 1 hidden"]:
        """The head's output at an expanded node."""
        return self._y[self._row_of[node]][None, None]

    def _expand(self, node: int) -> Float[Tensor, "1 1 hidden"]:
        """Run the head on a node that the search did not expand."""
        assert self._tree is not None
        head, path = self.runner.head, self._tree.path(node)
        mask = torch.zeros(1, self.runner.cache.length - self.runner.stable + 1, dtype=torch.bool, device=head.device)
        mask[0, [*(self._row_of[n] - 1 for n in path[1:-1]), -1]] = True
        token = self._tree.tokens[:, node - 1 : node]
        return self.runner.step(head.feedback(self._row(path[-2])), token, len(path) - 2, mask)
