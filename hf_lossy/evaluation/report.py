"""Reports of evaluations: Markdown, LaTeX and CSV tables, plots as PNG and as interactive HTML."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import LossyError

COLUMNS = (
    "method",
    "score % [95 %]",
    "block eff.",
    "MAL",
    "TV",
    "overshoot",
    "seq. KL",
    "gap to baseline",
    "p",
    "unparsed",
)


def read(folder: Path) -> dict[str, Any]:
    """A result folder's summary."""
    path = folder / "summary.json"
    if not path.is_file():
        raise LossyError(f"{folder} has no summary.json: run hf-lossy evaluate --out {folder} to its end first")
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def cells(row: dict[str, Any]) -> list[str]:
    """A row of a summary as text, in the order of :data:`COLUMNS`."""
    low, high = row["score_interval"]
    gap = row.get("gap")
    return [
        row["name"],
        f"{100 * row['score']:.1f} [{100 * low:.1f}, {100 * high:.1f}]",
        _mean(row.get("block_efficiency"), 2),
        _mean(row.get("mean_acceptance_length"), 2),
        _number(row.get("tv"), 3),
        _number(row.get("max_log_ratio"), 2),
        _number(row.get("kl"), 2),
        ""
        if gap is None
        else f"{100 * gap['difference']:+.1f} [{100 * gap['interval'][0]:+.1f}, {100 * gap['interval'][1]:+.1f}] vs "
        f"{row['baseline_name']}" + (" (noise)" if gap["inside_noise"] else ""),
        "" if gap is None or gap["p_value"] is None else f"{gap['p_value']:.2g}",
        str(row["unparsed"]) if row["unparsed"] else "",
    ]


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A Markdown table."""
    lines = [COLUMNS, ["---"] + ["---:"] * (len(COLUMNS) - 1), *map(cells, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def latex(rows: Sequence[dict[str, Any]]) -> str:
    """A LaTeX tabular (booktabs)."""

    def escaped(text: str) -> str:
        return "".join("\\" + c if c in "%_&#$" else c for c in text)

    body = [" & ".join(map(escaped, line)) + r" \\" for line in (COLUMNS, *map(cells, rows))]
    head = [r"\begin{tabular}{l" + "r" * (len(COLUMNS) - 1) + "}", r"\toprule", body[0], r"\midrule"]
    return "\n".join([*head, *body[1:], r"\bottomrule", r"\end{tabular}", ""])


def write_csv(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """The numbers of a summary, unrounded, a row a method."""
    flat = [_flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(flat)


def _flat(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            found |= {f"{prefix}{name}.{i}": x for i, x in enumerate(value)}
        else:
            found[f"{prefix}{name}"] = value
    return found


def _mean(value: dict[str, Any] | None, digits: int) -> str:
    if value is None:
        return ""
    half = value["half_width"]
    return f"{value['mean']:.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


# --- plots -----------------------------------------------------------------------------------------------------------

PLOTS = {
    "score-against-block-efficiency": ("block_efficiency", "score", "tokens a target forward", "score"),
    "distortion-against-acceptance": ("acceptance", "tv", "expected acceptance", "TV(π, p) a token"),
    "overshoot-against-block-efficiency": (
        "block_efficiency",
        "max_log_ratio",
        "tokens a target forward",
        "largest log(π/p), nats",
    ),
}
"""Name: (x, y, their labels)."""


def curves(rows: Sequence[dict[str, Any]], x: str, y: str) -> dict[str, list[dict[str, Any]]]:
    """Points with their intervals by law and options, each curve in the order of the rows (of strength). What all curves
    have in common is not in their names."""
    found: dict[str, list[dict[str, Any]]] = {}
    drawn = [row for row in rows if row["law"] is not None and row.get(x) is not None and row.get(y) is not None]
    for row in drawn:
        own = [
            k for k in ("draft_probs", "draft_mode", "coupling") if any(row.get(k) != other.get(k) for other in drawn)
        ]
        options = [f"{k}={row[k]}" for k in own if k in row]
        extra = [str(v) for k, v in row["law"].items() if isinstance(v, str) and k != "method"]
        point: dict[str, Any] = {"name": row["name"]}
        for axis, name in (("x", x), ("y", y)):
            value = row[name]
            point[axis] = value["mean"] if isinstance(value, dict) else value
            if isinstance(value, dict) and value["half_width"] is not None:
                point[f"{axis}_error"] = [value["half_width"]] * 2
            elif name == "score":
                point[f"{axis}_error"] = [value - row["score_interval"][0], row["score_interval"][1] - value]
        found.setdefault(", ".join([row["law"]["method"], *extra, *options]), []).append(point)
    return found


def figure(rows: Sequence[dict[str, Any]], name: str, title: str | None = None) -> Any:
    """One of :data:`PLOTS` as an interactive plotly figure, None where the rows have nothing to plot."""
    import plotly.graph_objects as go

    x, y, x_label, y_label = PLOTS[name]
    found = curves(rows, x, y)
    if not found:
        return None
    page = go.Figure()
    for label, points in found.items():
        bars = {
            f"error_{axis}": {"type": "data", "symmetric": False, "arrayminus": low, "array": high}
            for axis, (low, high) in _errors(points).items()
        }
        xs, ys, names = ([p[key] for p in points] for key in ("x", "y", "name"))
        page.add_scatter(x=xs, y=ys, name=label, mode="lines+markers", text=names, **bars)
    page.update_layout(xaxis_title=x_label, yaxis_title=y_label)
    if title is not None:
        page.update_layout(title=title)
    return page


def _errors(points: Sequence[dict[str, Any]]) -> dict[str, list[tuple[float, ...]]]:
    """The lengths of the error bars below and above a curve's points, by axis."""
    return {axis: list(zip(*(p.get(f"{axis}_error", (0, 0)) for p in points), strict=True)) for axis in "xy"}


def plot(rows: Sequence[dict[str, Any]], folder: Path, title: str) -> list[Path]:
    """Write every plot of :data:`PLOTS` as PNG (matplotlib) and HTML (plotly)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, (x, y, x_label, y_label) in PLOTS.items():
        page = figure(rows, name, title)
        if page is None:
            continue
        drawn, axes = plt.subplots(figsize=(8, 5.5))
        for label, points in curves(rows, x, y).items():
            errors, (xs, ys) = _errors(points), ([p[axis] for p in points] for axis in "xy")
            axes.errorbar(xs, ys, xerr=errors["x"], yerr=errors["y"], marker="o", capsize=2, linewidth=1, label=label)
        axes.set(xlabel=x_label, ylabel=y_label, title=title)
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
        drawn.tight_layout()
        drawn.savefig(folder / f"{name}.png", dpi=120)
        plt.close(drawn)
        page.write_html(folder / f"{name}.html", include_plotlyjs="cdn")
        written += [folder / f"{name}.png", folder / f"{name}.html"]
    return written
