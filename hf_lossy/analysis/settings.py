"""How much is recorded, and the rounds that all analyses look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from ..bench.estimates import Track
from ..bench.rounds import Recorded, record, spread_out, write_texts
from ..bench.trees import dtype_of
from ..loading import Pair


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
        models = {"pair": pair.name, "dtype": dtype_of(pair), "device": str(pair.target.device)}
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


def sampled(pair: Pair) -> dict[str, Any]:
    """The arguments of ``generate`` for a chain whose tokens are drawn from q, whatever the pair's draft is."""
    return {} if pair.head is None else {"draft_mode": "sampled"}
