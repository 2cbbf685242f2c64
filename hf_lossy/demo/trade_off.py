"""The trade-off tab: results of ``hf-lossy evaluate`` as curves."""

from __future__ import annotations

from json import JSONDecodeError
from pathlib import Path
from typing import Any

from ..errors import LossyError
from ..evaluation.report import figure, markdown, read
from .models import Backend

SHOWN = {
    "distortion-against-acceptance": "What acceptance costs: distortion",
    "score-against-block-efficiency": "What speed costs: score",
}
"""Plots of the report, and what they say."""


def folders(backend: Backend) -> list[tuple[str, str]]:
    """Names and paths of the result folders that the backend was given, and of those right below them."""
    found = {}
    for root in backend.results:
        for folder in (root, *sorted(root.glob("*"))):
            if (folder / "summary.json").is_file():
                found[str(folder)] = folder.name
    return [(name, path) for path, name in found.items()]


def curves(backend: Backend, folder: str) -> tuple[list[Any], str]:
    """The plots of :data:`SHOWN` as plotly figures (None where there is nothing to plot), and the table in Markdown.

    Raises:
        LossyError: no result folder, or one that is not open here.
    """
    if not folder.strip():
        raise LossyError("no folder: give one that hf-lossy evaluate wrote")
    if not backend.local and folder not in {path for _, path in folders(backend)}:
        raise LossyError(f"{folder} is a path on this machine, which is not open here: choose from the list")
    try:
        found = read(Path(folder).expanduser())
        rows, title = found["rows"], f"{found['pair']}, {found['settings']['task']}"
        plots, table = [figure(rows, name) for name in SHOWN], markdown(rows)
    except (KeyError, TypeError, JSONDecodeError) as error:
        raise LossyError(f"{folder}/summary.json is none of hf-lossy evaluate's ({error!r}): choose another") from error
    for plot in filter(None, plots):  # below the plot, which leaves it the width of a telephone
        legend = {"orientation": "h", "yanchor": "top", "y": -0.22, "x": 0}
        plot.update_layout(height=500, margin={"l": 10, "r": 10, "t": 45, "b": 10}, legend=legend)
    return plots, f"**{title}**\n\n{table}"
