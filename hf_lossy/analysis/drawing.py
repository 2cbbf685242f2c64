"""Figures and tables of the analyses. Matplotlib is imported when something is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

Figure = Any
"""matplotlib's Figure."""


def axes_grid(rows: int, columns: int) -> tuple[Figure, Any]:
    """An empty figure and its axes, [rows, columns]; nothing global of matplotlib is touched."""
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=(4.6 * columns, 3.8 * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def line(
    ax: Any, xs: Sequence[float], found: Sequence[dict[str, Any]], label: str, sign: int = 1, **style: Any
) -> None:
    """Means with their 95 % intervals over x."""
    halves = [one["half_width"] or 0.0 for one in found]
    means = [sign * one["mean"] for one in found]
    ax.errorbar(xs, means, yerr=halves, label=label, **{"marker": "o", "markersize": 3, "capsize": 2, **style})


def save(figure: Figure, folder: Path) -> None:
    """``figure.png`` and ``figure.svg``, the same bytes for the same figure."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    for ax in figure.axes:
        ax.grid(alpha=0.3)
    with matplotlib.rc_context({"svg.hashsalt": "hf_lossy"}):
        figure.savefig(folder / "figure.png", dpi=120)
        figure.savefig(folder / "figure.svg", metadata={"Date": None})


def shown(found: dict[str, Any] | None, digits: int, kind: str = "f") -> str:
    """A mean with half of its 95 % interval, to so many digits (``kind="f"``: after the point, ``"g"``: in all); a dash
    where nothing was measured."""
    if found is None:
        return "–"
    half = found["half_width"]
    return f"{found['mean']:.{digits}{kind}}" + ("" if half is None else f" ± {half:.{digits}{kind}}")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n" for cells in lines)
