"""How much is recorded, and the rounds that all analyses look at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from ..bench.estimates import Track
from ..bench.rounds import Recorded, record, spread_out, write_texts
from ..loading import Pair, dtype_name
from ..tree import Tree

BATCH = 1 << 16
"""Probabilities of the target that are looked at together."""


@dataclass(frozen=True)
class Settings:
    """How much is recorded on a pair, and how.

    Attributes:
        texts: that the target writes, one after each of the pair's first prompts; what shares a text is no independent
            evidence, so that intervals go by texts.
        rounds: recorded at evenly spread prefixes of them.
        max_new_tokens: of a text.
        temperature: of target and draft; there are no other warpers.
        seed: of everything.
    """

    texts: int
    rounds: int
    max_new_tokens: int = 64
    temperature: float = 0.7
    seed: int = 0

    def described(self, pair: Pair, **more: Any) -> dict[str, Any]:
        """The settings for a result file."""
        models = {"pair": pair.name, "dtype": dtype_name(pair.target), "device": str(pair.target.device)}
        return {**models, **asdict(self), **more}


_EMBEDDED = Settings(texts=400, rounds=4000, max_new_tokens=24)


def defaults(embedded: bool, **given: Any) -> Settings:
    """The settings for the embedded models, or for larger ones, with those that are given (not None) in their place."""
    base = _EMBEDDED if embedded else Settings(texts=8, rounds=160)
    return replace(base, **{name: value for name, value in given.items() if value is not None})


def recorded(pair: Pair, settings: Settings, track: Track, **drafting: Any) -> Iterator[tuple[int, Recorded]]:
    """Rounds, each with the number of the text that it stands in.

    Args:
        **drafting: how it is drafted, in place of the pair's own.
    """
    some = settings
    texts = write_texts(pair, some.texts, some.max_new_tokens, some.temperature, some.seed, track)
    generator = torch.Generator(pair.target.device).manual_seed(some.seed)
    for i, lengths in track(spread_out(texts, some.rounds), f"{pair.name}: rounds"):
        for seen in record(pair, texts[i].ids, lengths, generator, some.temperature, **drafting):
            yield i, seen


def together(rounds: Iterable[tuple[int, Recorded]]) -> Iterator[tuple[list[int], Recorded]]:
    """Chains of the same length in one batch, as many as do not take much memory, each with the number of its text; with a
    small vocabulary a law takes as long over a hundred rounds as over one."""
    waiting: dict[int, list[tuple[int, Recorded]]] = {}
    for i, seen in rounds:
        of_length = waiting.setdefault(seen.q.shape[1], [])
        of_length.append((i, seen))
        if len(of_length) * seen.p.numel() >= BATCH:
            yield _stacked(of_length)
            of_length.clear()
    for of_length in waiting.values():
        if of_length:
            yield _stacked(of_length)


def _stacked(rounds: list[tuple[int, Recorded]]) -> tuple[list[int], Recorded]:
    texts, seen = [i for i, _ in rounds], [one for _, one in rounds]
    p, q, stops = (torch.cat(x) for x in zip(*((one.p, one.q, one.stops) for one in seen), strict=True))
    return texts, Recorded(Tree.chain(torch.cat([one.tree.tokens for one in seen])), p, q, stops)


def sampled(pair: Pair) -> dict[str, Any]:
    """The arguments of ``generate`` for a chain whose tokens are drawn from q, whatever the pair's draft is."""
    return {} if pair.head is None else {"draft_mode": "sampled"}
