"""Which measurements on which pair, and the files they go to."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..loading import Pair
from ..provenance import provenance, write_json
from .batches import measure_batches, measure_schedule
from .compiled import measure_compiled
from .efficiency import measure_efficiency
from .estimates import Track, untracked
from .memory import measure_memory
from .throughput import measure_throughput
from .trees import measure_trees

PARTS = ("throughput", "coupling", "efficiency", "trees", "batches", "schedule", "compiled", "memory")
"""What can be measured; ``coupling`` needs no pair, ``trees`` one with an EAGLE-3 head."""
RESULTS = Path("docs/results/bench")


@dataclass(frozen=True)
class Settings:
    """How much is measured on a pair.

    Attributes:
        prompts, repeats: of the throughput and of the trees' speed; every method runs on each prompt in each repeat.
        max_new_tokens: tokens a text.
        rounds: recorded rounds for the expected tokens a round.
        sequences: calls of ``generate`` for each law and coupling, for the block efficiency as counted; prompts of the
            trees' acceptance, whose first quarter is that of the laws.
        method: of the throughput only the methods whose name holds this.
    """

    prompts: int
    repeats: int
    max_new_tokens: int
    rounds: int
    sequences: int
    method: str = ""


_EMBEDDED = Settings(prompts=30, repeats=5, max_new_tokens=24, rounds=2000, sequences=200)
_DEFAULTS = {
    "arithmetic": _EMBEDDED,
    "arithmetic-shortcut": _EMBEDDED,
    "arithmetic-eagle3": _EMBEDDED,
    "qwen-coder": Settings(prompts=6, repeats=2, max_new_tokens=32, rounds=360, sequences=6),
    "smollm2": Settings(prompts=10, repeats=3, max_new_tokens=64, rounds=0, sequences=0),
    "smollm2-eagle3": Settings(prompts=4, repeats=3, max_new_tokens=64, rounds=0, sequences=36),
}


def defaults(pair: str, **given: Any) -> Settings:
    """The settings of a pair, with those that were given in their place."""
    base = _DEFAULTS.get(pair, _DEFAULTS["qwen-coder"])
    return replace(base, **{name: value for name, value in given.items() if value is not None})


def measure_pair(
    pair: Pair,
    settings: Settings,
    parts: Collection[str],
    done: Callable[[str, dict[str, Any]], None],
    track: Track = untracked,
) -> None:
    """Measure parts of a pair, and hand over each as soon as it is done: ``done(part, figures)``. The trees are handed over
    after each of their sections, with those before it."""
    amount = (settings.prompts, settings.repeats, settings.max_new_tokens)
    if "throughput" in parts:
        done("throughput", measure_throughput(pair, *amount, track=track, holding=settings.method))
    if "efficiency" in parts:
        figures = measure_efficiency(pair, settings.rounds, settings.sequences, settings.max_new_tokens, track=track)
        done("efficiency", figures)
    if "batches" in parts:
        done("batches", measure_batches(pair, *amount, track=track))
    if "schedule" in parts:
        done("schedule", measure_schedule(pair, *amount, track=track))
    if "compiled" in parts:
        done("compiled", measure_compiled(pair, *amount, track=track))
    if "memory" in parts:
        done("memory", measure_memory(pair, track=track))
    if "trees" in parts:
        for figures in measure_trees(pair, *amount, settings.sequences, track=track):
            done("trees", figures)


def with_provenance(figures: dict[str, Any]) -> dict[str, Any]:
    """A part's figures and where they come from."""
    return {**figures, "provenance": provenance()}


def save(folder: Path, name: str, part: str, figures: dict[str, Any]) -> Path:
    """Put one part, which carries its own provenance, into the result file ``name``, whose other parts stay as they are."""
    path = folder / f"{name}.json"
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        known = {}  # a damaged file has nothing worth keeping, and what was just measured has
    known = {"name": name} | known | {part: figures}
    write_json(path, {key: known[key] for key in ("name", *PARTS) if key in known})
    return path
