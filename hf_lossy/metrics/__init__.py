"""Metrics as ``evaluate`` modules, one folder each, which load from a path and without the Hub.

    evaluate.load(hf_lossy.metrics.path("block_efficiency"))

They compute what ``hf_lossy`` itself reports, with the same code.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import unknown
from ..evaluation.statistics import wilson
from ..evaluation.tasks import Score

_ROOT = Path(__file__).parent


def names() -> list[str]:
    """The metrics."""
    return sorted(folder.name for folder in _ROOT.iterdir() if (folder / f"{folder.name}.py").is_file())


def path(name: str) -> str:
    """The folder of a metric, for ``evaluate.load``."""
    if name not in names():
        raise unknown("metric", name, names())
    return str(_ROOT / name)


def accuracy(scores: Iterable[Score]) -> dict[str, Any]:
    """What the metrics of the tasks say about their answers: share of right ones with its 95 % Wilson interval, how many
    could not be parsed (they count as wrong), and which are right."""
    scores = list(scores)
    right = [score.correct for score in scores]
    return {
        "accuracy": sum(right) / len(right) if right else float("nan"),
        "interval": list(wilson(sum(right), len(right))),
        "unparsed": sum(not score.parsed for score in scores),
        "correct": right,
    }
