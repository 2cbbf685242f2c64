"""Clock sums, the task of the embedded models; its items are made, not loaded."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from ...embedded import clock_sums
from .base import Record, Score, Task, read, register

SEED, COUNT = 1, 10_000
"""The first 1,000 are the problems on which ``hf_lossy.loading`` reports, and which the recipes keep out of training."""


def make(task: Task, path: Path | None) -> Iterable[Record]:
    """The problems, or those of a file with a column ``operands``."""
    if path is not None:
        return read(task, path)
    return [{"operands": operands} for operands in clock_sums.problems(COUNT, SEED)]


def score(record: Record, text: str) -> Score:
    """The number at the end of the working."""
    found = clock_sums.answer(text)
    if found is None:
        return Score.unparsed("no number at the end")
    return Score(clock_sums.is_correct(record["operands"], text), True, str(found))


register(
    Task(
        name="clock_sums",
        dataset=None,
        license="Apache-2.0",
        fields=("operands",),
        prompt=lambda record: clock_sums.prompt(record["operands"]),
        item_id=lambda record: "-".join(map(str, record["operands"])),
        score=score,
        gold=lambda record: " ".join(clock_sums.TARGET_CORPUS.working(record["operands"], random.Random(0))),
        max_new_tokens=clock_sums.MAX_NEW_TOKENS,
        default_limit=1000,
        read=make,
    )
)
