"""The analyses by name, and the files that each writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..bench.estimates import Track
from ..loading import Pair
from ..provenance import provenance, write_json
from . import differences, divergence, lenience, tree, truncation
from .drawing import Figure, save
from .settings import Settings


@dataclass(frozen=True)
class Analysis:
    """One question to p and q.

    Attributes:
        pair: the embedded pair that it runs on unless another is named.
        measure: its figures, as plain numbers.
        draw: the figure, made from them alone.
        describe: the README, made from them alone.
        fewer: what of :class:`Settings` is enough on the embedded pair, where it takes longer than others.
    """

    pair: str
    measure: Callable[[Pair, Settings, Track], dict[str, Any]]
    draw: Callable[[dict[str, Any]], Figure]
    describe: Callable[[dict[str, Any]], str]
    fewer: Mapping[str, int] = field(default_factory=dict)


SOME = {"texts": 200, "rounds": 2000}
ANALYSES = {
    "truncation": Analysis("arithmetic", truncation.measure, truncation.draw, truncation.describe),
    "divergence": Analysis("arithmetic", divergence.measure, divergence.draw, divergence.describe, SOME),
    "tree": Analysis("arithmetic-eagle3", tree.measure, tree.draw, tree.describe, {"texts": 150, "rounds": 600}),
    "lenience": Analysis("arithmetic", lenience.measure, lenience.draw, lenience.describe, SOME),
    "differences": Analysis("arithmetic", differences.measure, differences.draw, differences.describe, {"texts": 100}),
}


def write(folder: Path, analysis: Analysis, figures: dict[str, Any]) -> None:
    """``numbers.json`` with its provenance, the figure and the README, into a folder of their own."""
    write_json(folder / "numbers.json", {**figures, "provenance": provenance()})
    save(analysis.draw(figures), folder)
    (folder / "README.md").write_text(analysis.describe(figures), encoding="utf-8")
