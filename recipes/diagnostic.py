# /// script
# requires-python = ">=3.10"
# dependencies = ["hf_lossy[eval]"]
# ///
"""The diagnostic benchmark: every law over its grid on the embedded models, beside its matched baseline.

    accelerate launch --multi_gpu --num_processes 2 recipes/diagnostic.py

or `make diagnostic` (accelerate starts several processes on CPUs, too, only if it is told `--multi_gpu`). Two-model drafts
(natural and shortcut) and the EAGLE-3 head (tree and chain, head probabilities and point mass), at T = 0.7 and 1.0, through
`generate()` in batches. Texts are kept under `--work`, so that an interrupted run goes on where it was; tables, plots and
findings with 95 % intervals go to `--out`. The processes share the batches.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState

from hf_lossy.bench.estimates import untracked
from hf_lossy.cli.common import track
from hf_lossy.evaluation.methods import Method, methods
from hf_lossy.evaluation.origin import origin
from hf_lossy.evaluation.report import markdown, plot, write_csv
from hf_lossy.evaluation.run import by_method, open_results, run
from hf_lossy.evaluation.summary import summary
from hf_lossy.evaluation.tasks import load, task_named
from hf_lossy.loading import load_pair
from hf_lossy.provenance import provenance, write_json

DRAWS = 1000
Cell = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Right answers, tokens and rounds by item."""


def two_models() -> list[Any]:
    """Every law of the paper over its grid."""
    truncation = [
        {"law": {"method": "speccascade", "fallback": f}, "grid": [0.1, 0.3, 0.5]} for f in ("draft", "target")
    ]
    typical = [{"law": {"method": "typical", "fallback": f}, "grid": [0.09, 0.2]} for f in ("draft", "target")]
    return [
        "draft",
        "lossless",
        {"law": "lenience", "grid": [0.8, 0.6, 0.4, 0.2]},
        {"law": "cos", "grid": [0.2, 0.4, 0.6, 0.8]},
        {"law": "adaptive_ensemble", "grid": [0.8, 0.6, 0.4, 0.2]},
        {"law": {"method": "capped_ensemble", "lenience": 0.6}, "grid": [0.2, 0.4, 0.6]},
        {"law": {"method": "gated_ceiling"}, "grid": [0.8, 0.6, 0.4]},
        *truncation,
        *typical,
    ]


def heads() -> list[Any]:
    """The same laws at one strength, for trees and chains; lenience and the truncation laws with point masses as well."""
    truncation = [
        *({"law": {"method": "speccascade", "fallback": f}, "grid": [0.3]} for f in ("draft", "target")),
        *({"law": {"method": "typical", "fallback": f}, "grid": [0.09]} for f in ("draft", "target")),
    ]
    lenient = {"law": "lenience", "grid": [0.4]}
    head = [
        {"law": "lossless"},
        lenient,
        {"law": "cos", "grid": [0.4]},
        {"law": "adaptive_ensemble", "grid": [0.4]},
        {"law": {"method": "capped_ensemble", "lenience": 0.6}, "grid": [0.4]},
        {"law": {"method": "gated_ceiling"}, "grid": [0.4]},
        *truncation,
    ]
    # small, since the target reads every node of every tree, and a CPU pays for each
    tree = {"draft_mode": "tree", "tree_size": 8, "tree_depth": 3, "tree_top_k": 4}
    shapes: list[dict[str, Any]] = [tree, {"draft_mode": "chain", "num_assistant_tokens": 4}]
    points = [{**entry, "draft_probs": "point_mass"} for entry in (lenient, *truncation)]
    return [{**entry, **shape} for shape in shapes for entry in (*head, *points)]


def runs() -> Iterator[tuple[str, str, float, list[Any]]]:
    """Name, pair, temperature, methods."""
    for temperature in (1.0, 0.7):
        yield f"shortcut-T{temperature:g}", "arithmetic-shortcut", temperature, two_models()
        yield f"natural-T{temperature:g}", "arithmetic", temperature, two_models()
        yield f"eagle3-T{temperature:g}", "arithmetic-eagle3", temperature, heads()


def evaluate(
    name: str, pair_name: str, temperature: float, wanted: list[Method], limit: int, batch: int, work: Path, state: Any
) -> list[dict[str, Any]]:
    """One run's lines."""
    task = task_named("clock_sums")
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    sampling["max_new_tokens"] = task.max_new_tokens
    folder, pair, items = work / name, load_pair(pair_name), load(task, limit=limit)
    if state.is_main_process:
        config = {"pair": pair_name, "task": task.name, "limit": limit, "batch_size": batch, **sampling}
        open_results(folder, config | {"methods": [method.to_dict() for method in wanted]}, origin(pair, task, items))
    state.wait_for_everyone()
    shown = track if state.is_main_process else untracked
    return run(pair, task, items, wanted, [0], sampling, folder, state, shown, batch)


# --- findings ---------------------------------------------------------------------------------------------------------


def cells(lines: Sequence[dict[str, Any]]) -> dict[str, Cell]:
    """Each method's figures by item, items in the same order."""
    found = {}
    for key, mine in by_method(lines):
        mine = sorted(mine, key=lambda line: line["item"])
        found[key] = tuple(
            np.array([float(line.get(name, np.nan)) for line in mine]) for name in ("correct", "tokens", "rounds")
        )
    return found


def resampled(count: int) -> np.ndarray:
    """How often each item is drawn: the sample itself, then the bootstrap's, [DRAWS + 1, items]."""
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=DRAWS)
    return np.concatenate([np.ones((1, count)), drawn])


def interval(values: np.ndarray) -> dict[str, Any]:
    """The figure of the sample (the first value) and its 95 % bootstrap interval."""
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return {"value": float(values[0]), "interval": [float(low), float(high)]}


def score(cell: Cell, weights: np.ndarray) -> np.ndarray:
    return weights @ cell[0] / weights.sum(1)


def efficiency(cell: Cell, weights: np.ndarray) -> np.ndarray:
    return (weights @ cell[1]) / (weights @ cell[2])


def at_equal_efficiency(curve: list[Cell], other: Cell, weights: np.ndarray) -> np.ndarray | None:
    """Score of ``other`` minus that of a curve of strengths, interpolated at its block efficiency; None outside the
    curve."""
    x = np.stack([efficiency(cell, weights) for cell in curve], 1)
    y = np.stack([score(cell, weights) for cell in curve], 1)
    at = efficiency(other, weights)
    if not x[0].min() <= at[0] <= x[0].max():
        return None
    values = []
    for xs, ys, here in zip(x, y, at, strict=True):
        order = np.argsort(xs)
        values.append(np.interp(here, xs[order], ys[order]))
    return score(other, weights) - np.array(values)


def findings(name: str, wanted: list[Method], lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The paper's three findings, and what the ceiling alone does, with intervals; differences of scores."""
    by_key = cells(lines)
    weights = resampled(len(next(iter(by_key.values()))[0]))
    drafts: dict[str, dict[str, Method]] = {}
    for method in wanted:
        if method.law is not None:
            how = {k: v for k, v in method.options.items() if k in ("draft_mode", "draft_probs")}
            drafts.setdefault(", ".join(how.values()) or "two models", {})[str(method.law)] = method
    found = []

    def add(finding: str, drafted: str, what: str, values: np.ndarray | None) -> None:
        if values is not None:
            found.append({"finding": finding, "run": name, "draft": drafted, "what": what, **interval(values)})

    for drafted, mine in drafts.items():
        laws = [(m, m.law, by_key[m.key]) for m in mine.values() if m.law is not None]
        curve = [cell for _, law, cell in laws if law.name in ("lenience", "lossless")]
        for method, law, cell in laws:
            if law.name == "cos" and len(curve) > 2:
                at = at_equal_efficiency(curve, cell, weights)
                add("collaborative: cos against lenience at equal block efficiency", drafted, str(law), at)
            if law.name == "adaptive_ensemble":
                twin = next(
                    (c for _, other, c in laws if other.name == "lenience" and other.lenience == law.lenience), None
                )
                if twin is not None:
                    gap = score(cell, weights) - score(twin, weights)
                    add("ceiling: adaptive_ensemble against lenience at equal ℓ", drafted, str(law), gap)
            baseline = method.baseline()
            if law.name in ("speccascade", "typical") and baseline is not None:
                gap = score(cell, weights) - score(by_key[baseline.key], weights)
                add("truncation: speccascade and typical against min_p and eta", drafted, str(law), gap)
            if method.options.get("draft_probs") == "point_mass" and law.name in ("speccascade", "typical"):
                head = Method(law, {k: v for k, v in method.options.items() if k != "draft_probs"})
                gap = score(cell, weights) - score(by_key[head.key], weights)
                add("EAGLE-3: point mass against the head's probabilities", drafted, str(law), gap)
    return found


def verdict(rows: Sequence[dict[str, Any]]) -> str:
    """In how many cells the law named first is worse, as the paper says, beyond the 95 % interval."""
    worse = sum(row["interval"][1] < 0 for row in rows)
    better = sum(row["interval"][0] > 0 for row in rows)
    open_ = len(rows) - worse - better
    word = (
        "reproduced"
        if worse > len(rows) / 2 and not better
        else "not reproduced"
        if worse <= better
        else "partly reproduced"
    )
    return f"**{word}**: worse in {worse}, better in {better}, inside the noise in {open_} of {len(rows)} cells"


def page(found: Sequence[dict[str, Any]], limit: int, seconds: float, names: Sequence[str]) -> str:
    """The README beside the results."""
    text = [
        "# Diagnostic benchmark",
        "",
        f"Made by `make diagnostic`: {limit} clock sums a cell through `generate()`, every law beside its matched baseline; "
        f"scores in %, 95 % intervals by a bootstrap over problems (paired). {seconds / 60:.1f} minutes for what this run "
        "had not kept from one before; the machine is named in each `provenance.json`.",
        "",
        "The target is right in 88 % of its texts at T = 1. The draft `shortcut` was taught a risky habit on purpose: its "
        "effects show the mechanism, not the size to expect; `natural` and the EAGLE-3 head were only trained less. A "
        "cell's interval tells chance on these problems from a difference, and nothing about other models.",
        "",
        "Tables: " + ", ".join(f"[{name}]({name}/table.md)" for name in names) + ".",
        "",
    ]
    for finding in dict.fromkeys(row["finding"] for row in found):
        rows = [row for row in found if row["finding"] == finding]
        text += [f"## {finding[0].upper()}{finding[1:]}", ""]
        for run_name in dict.fromkeys(row["run"] for row in rows):
            text.append(f"- {run_name}: {verdict([row for row in rows if row['run'] == run_name])}")
        text += ["", "| run | draft | law | difference of scores |", "|---|---|---|---:|"]
        for row in rows:
            low, high = row["interval"]
            figure = f"{100 * row['value']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
            text.append(f"| {row['run']} | {row['draft']} | {row['what']} | {figure} |")
        text.append("")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("docs/results/diagnostic"))
    parser.add_argument("--work", type=Path, default=Path("build/diagnostic"), help="where the texts are kept")
    parser.add_argument("--problems", type=int, default=1000, help="a cell")
    parser.add_argument("--batch-size", type=int, default=500)
    parser.add_argument("--only", help="runs whose name holds this")
    args = parser.parse_args()
    state, began, found, names = PartialState(cpu=not torch.cuda.is_available()), time.time(), [], []
    torch.set_num_threads(max(1, (torch.get_num_threads() if state.num_processes == 1 else 1)))
    for name, pair, temperature, entries in runs():
        if args.only and args.only not in name:
            continue
        wanted = methods(entries)
        lines = evaluate(name, pair, temperature, wanted, args.problems, args.batch_size, args.work, state)
        if not state.is_main_process:
            continue
        names.append(name)
        rows, folder = summary(lines, wanted), args.out / name
        folder.mkdir(parents=True, exist_ok=True)
        settings = {"task": "clock_sums", "temperature": temperature, "limit": args.problems, "seeds": 1}
        write_json(folder / "summary.json", {"pair": pair, "settings": settings, "rows": rows})
        for kept in ("config.yaml", "provenance.json"):
            shutil.copyfile(args.work / name / kept, folder / kept)
        (folder / "table.md").write_text(markdown(rows), encoding="utf-8")
        write_csv(rows, folder / "table.csv")
        plot(rows, folder, f"{pair}, T = {temperature:g}, {args.problems} problems a point")
        found += findings(name, wanted, lines)
        print(f"{name}: {len(wanted)} methods, {time.time() - began:.0f} s since the start", flush=True)
    if state.is_main_process and not args.only:
        write_json(
            args.out / "findings.json", {"problems": args.problems, "findings": found, "provenance": provenance()}
        )
        (args.out / "README.md").write_text(page(found, args.problems, time.time() - began, names), encoding="utf-8")
        print(f"wrote {args.out}")
    if state.is_main_process:
        print(json.dumps({"seconds": round(time.time() - began, 1), "processes": state.num_processes}))
    state.destroy_process_group() if state.num_processes > 1 else None


if __name__ == "__main__":
    main()
