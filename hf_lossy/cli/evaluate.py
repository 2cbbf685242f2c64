from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import LossyError, unknown
from .common import (
    DeviceOption,
    DraftOption,
    DraftWeightsOption,
    DtypeOption,
    PairOption,
    TargetOption,
    ThreadsOption,
    console,
    open_pair,
    parse_law,
    status,
    track,
)

DEFAULTS: dict[str, Any] = {
    "pair": None,
    "target": None,
    "draft": None,
    "draft_quantization": None,
    "dtype": "float32",
    "device": "cpu",
    "task": "clock_sums",
    "data": None,
    "limit": None,
    "seeds": 1,
    "temperature": 0.7,
    "top_k": 0,
    "top_p": 1.0,
    "max_new_tokens": None,
    "batch_size": 1,
    "options": {},
    "methods": None,
}
"""What a configuration file may set, and what it is where nothing says otherwise."""
MODELS = ("pair", "target", "draft", "draft_quantization", "dtype", "device")
"""The settings that say which models run and how: a ``--pair`` or ``--target`` takes the place of all those in a file."""


def evaluate(
    config: Annotated[
        Path | None, typer.Option(help="A YAML file with any of the settings below, which go before it (see recipes/).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Result folder; the same one again goes on where it stopped.")
    ] = None,
    pair: PairOption = None,
    target: TargetOption = None,
    draft: DraftOption = None,
    draft_quantization: DraftWeightsOption = None,
    task: Annotated[
        str | None, typer.Option(help="math500, gsm8k, mbppplus, humaneval, include, bfcl, clock_sums.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="A JSONL file in the dataset's schema, instead of the Hub.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first items.")] = None,
    verification: Annotated[
        list[str] | None,
        typer.Option(help="A law, as in compare; its baseline comes with it. May be given several times."),
    ] = None,
    grid: Annotated[str | None, typer.Option(help="Strengths of the laws given: 0.2,0.4, or default.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many texts an item and method.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 is greedy.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Default: the task's.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Texts generated together.")] = None,
    draft_mode: Annotated[str | None, typer.Option(help="Of an EAGLE-3 head: tree, chain or sampled.")] = None,
    draft_probs: Annotated[str | None, typer.Option(help="head or point_mass.")] = None,
    gamma: Annotated[int | None, typer.Option(min=1, help="Drafted tokens in a round.")] = None,
    coupling: Annotated[str | None, typer.Option(help="block, token or reference.")] = None,
    dtype: DtypeOption | None = None,
    device: DeviceOption | None = None,
    threads: ThreadsOption = None,
) -> None:
    """Laws beside their matched baselines on a task: scores, efficiency, distortion, with intervals."""
    import yaml
    from accelerate import PartialState

    from ..bench.estimates import untracked
    from ..evaluation.methods import methods
    from ..evaluation.origin import origin
    from ..evaluation.report import markdown
    from ..evaluation.run import open_results, run
    from ..evaluation.summary import summary
    from ..evaluation.tasks import load, task_named
    from ..provenance import write_json

    given = {} if config is None else yaml.safe_load(config.read_text(encoding="utf-8")) or {}
    for name in given:
        if name not in DEFAULTS and name != "out":
            raise unknown(f"setting in {config}", name, [*DEFAULTS, "out"])
    flags: dict[str, Any] = {
        "pair": pair,
        "target": target,
        "draft": draft,
        "draft_quantization": draft_quantization,
        "dtype": dtype,
        "device": device,
        "task": task,
        "data": None if data is None else str(data),
        "limit": limit,
        "seeds": seeds,
        "temperature": temperature,
        "max_new_tokens": max_new_tokens,
        "batch_size": batch_size,
    }
    if pair is not None or target is not None:
        given = {name: value for name, value in given.items() if name not in MODELS}
    settings = DEFAULTS | given | {name: value for name, value in flags.items() if value is not None}
    folder = out or (None if settings.get("out") is None else Path(settings["out"]))
    if folder is None:
        raise LossyError("no result folder: give --out")
    settings.pop("out", None)
    options = {
        "draft_mode": draft_mode,
        "draft_probs": draft_probs,
        "num_assistant_tokens": gamma,
        "coupling": coupling,
    }
    settings["options"] = settings["options"] | {name: value for name, value in options.items() if value is not None}
    if verification:
        strengths = None if grid is None else grid if grid == "default" else [float(x) for x in grid.split(",")]
        laws = [parse_law(text).to_dict() for text in verification]
        settings["methods"] = [{"law": one, **({} if strengths is None else {"grid": strengths})} for one in laws]
    entries = settings["methods"] or ["lossless", "lenience", "cos"]
    wanted = methods([_with_options(entry, settings["options"]) for entry in entries])
    settings["methods"] = [one.to_dict() for one in wanted]
    what = task_named(settings["task"])
    items = load(what, None if settings["data"] is None else Path(settings["data"]), settings["limit"])
    loaded = open_pair(**{name: settings[name] for name in MODELS}, threads=threads)
    sampling: dict[str, Any] = {"do_sample": settings["temperature"] > 0}
    if settings["temperature"] > 0:
        sampling |= {name: settings[name] for name in ("temperature", "top_k", "top_p")}
    sampling["max_new_tokens"] = settings["max_new_tokens"] or what.max_new_tokens
    processes = PartialState(cpu=settings["device"] == "cpu") if int(os.environ.get("WORLD_SIZE", "1")) > 1 else None
    if processes is None or processes.is_main_process:
        open_results(folder, settings, origin(loaded, what, items))
    lines = run(
        loaded,
        what,
        items,
        wanted,
        range(settings["seeds"]),
        sampling,
        folder,
        processes,
        track if processes is None or processes.is_main_process else untracked,
        settings["batch_size"],
    )
    if processes is not None and not processes.is_main_process:
        return
    rows = summary(lines, wanted)
    write_json(folder / "summary.json", {"pair": loaded.name, "settings": settings, "rows": rows})
    (folder / "table.md").write_text(markdown(rows), encoding="utf-8")
    count = 1 if processes is None else processes.num_processes
    by = f"{count} process{'es' * (count > 1)}"
    console.print(
        f"{loaded.name}, {what.name}: {len(items)} items × {settings['seeds']} seeds by {by}, results in {folder}\n"
    )
    print(markdown(rows))
    status.print(f"hf-lossy report {folder} makes tables and plots of it")


def _with_options(entry: Any, options: dict[str, Any]) -> Any:
    """A method's entry with the options that hold for all of them."""
    if entry in ("target", "draft"):
        return entry
    return {**options, **({"law": entry} if isinstance(entry, str) else entry)}


def report(
    folders: Annotated[list[Path], typer.Argument(help="Result folders of hf-lossy evaluate.")],
    out: Annotated[Path | None, typer.Option(help="Where to write (default: the first folder).")] = None,
) -> None:
    """Tables (Markdown, LaTeX, CSV) and plots (PNG, HTML) of finished evaluations."""
    from ..evaluation.report import latex, markdown, plot, read, write_csv

    where = out or folders[0]
    where.mkdir(parents=True, exist_ok=True)
    loaded = [read(folder) for folder in folders]
    text = "\n".join(f"## {one['pair']}, {one['settings']['task']}\n\n{markdown(one['rows'])}" for one in loaded)
    (where / "report.md").write_text(text, encoding="utf-8")
    rows = [row for one in loaded for row in one["rows"]]
    (where / "report.tex").write_text(latex(rows), encoding="utf-8")
    write_csv(rows, where / "report.csv")
    title = " · ".join(f"{one['pair']}, {one['settings']['task']}" for one in loaded)
    plot(rows, where, title)
    console.print(f"wrote report.md, report.tex, report.csv and plots to {where}")
