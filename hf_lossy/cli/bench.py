from __future__ import annotations

import gc
import json
import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from ..bench import PARTS, RESULTS, defaults, measure_coupling, measure_pair, save, with_provenance
from ..bench.trees import READINGS, SECTIONS
from ..errors import LossyError, unknown
from ..loading import PAIRS
from ..provenance import write_json
from .common import DeviceOption, DtypeOption, ThreadsOption, console, interval, number, open_pair, status, track

KINDS = ("token", "block", "reference")
WRITTEN = ("arithmetic", "arithmetic-eagle3", "qwen-coder", "smollm2", "smollm2-eagle3")
"""The pairs of ``--write``; those that are not installed are left out."""


def bench(
    pair: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A named pair: {', '.join(PAIRS)}; may be given several times. Default: arithmetic, and with --write "
            f"every one of {', '.join(WRITTEN)} that is there."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(PARTS)}; may be given several times (default: all)."),
    ] = None,
    prompts: Annotated[int | None, typer.Option(min=1, help="Prompts of what is timed (default: the pair's).")] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Interleaved repeats (default: the pair's; 160 couplings).")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=2, help="Tokens a text (default: the pair's).")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Recorded rounds of the efficiency (default: the pair's).")
    ] = None,
    sequences: Annotated[
        int | None,
        typer.Option(
            min=1, help="Texts for each law and coupling of the efficiency, prompts of the trees (default: the pair's)."
        ),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Of the throughput only the methods whose name holds this, e.g. 'T = 1e-4'.")
    ] = None,
    threads: ThreadsOption = None,
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
    gpu: Annotated[
        bool, typer.Option("--gpu", help="A few minutes on the first CUDA device: speed, batches, one coupling.")
    ] = False,
    write: Annotated[bool, typer.Option("--write", help=f"Write to {RESULTS}/<pair>.json, part by part.")] = False,
    as_json: Annotated[str | None, typer.Option("--json", help="Write everything to this file; - prints it.")] = None,
) -> None:
    """Speed and tokens a round, side by side: against transformers' assisted generation and plain decoding."""
    if gpu:
        if not torch.cuda.is_available():
            raise LossyError("--gpu needs a CUDA device, and torch sees none here: leave it out to measure on the CPU")
        device, only = "cuda", only or ["throughput", "batches", "coupling"]
    parts = only or list(PARTS)
    for part in parts:
        if part not in PARTS:
            raise unknown("part of the benchmark (--only)", part, PARTS)
    names = list(dict.fromkeys(pair or (WRITTEN if write else ("arithmetic",))))
    for name in names:
        if name not in PAIRS:
            raise unknown("pair", name, PAIRS)
    given = {
        "prompts": prompts,
        "repeats": repeats,
        "max_new_tokens": max_new_tokens,
        "rounds": rounds,
        "sequences": sequences,
        "method": method,
    }
    if method and write:
        raise LossyError("--write keeps whole parts, and --method measures some of one: use --json FILE with it")
    results = Results(write, as_json)
    left_out: dict[str, str] = {}
    failed: dict[str, str] = {}
    for name in names if set(parts) - {"coupling"} else []:
        try:
            loaded = open_pair(name, None, None, dtype, device, threads)
        except LossyError as error:
            # a pair that was asked for by name has to be there
            (failed if pair else left_out)[name] = str(error)
            continue
        try:
            measure_pair(loaded, defaults(name, **given), parts, partial(results.add, name), track)
        except Exception as error:  # the other pairs can still be measured
            failed[name] = str(error) if isinstance(error, LossyError) else f"{type(error).__name__}: {error}"
        del loaded  # before the next pair is loaded
        gc.collect()
    if "coupling" in parts:
        torch.set_num_threads(threads or os.cpu_count() or 1)
        figures = measure_coupling(repeats or 160, device=device, track=track)
        results.add("coupling", "coupling", figures)
    results.finish(left_out, failed)
    for name, reason in left_out.items():
        status.print(f"left out {name}: {escape(reason)}", style="yellow")
    for name, reason in failed.items():
        status.print(f"{name} failed: {escape(reason)}", style="bold red")
    if failed:
        raise typer.Exit(1)


class Results:
    """What has been measured so far: printed and written part by part, so that a later failure loses nothing."""

    def __init__(self, write: bool, as_json: str | None) -> None:
        self.write, self.as_json = write, as_json
        self.report: dict[str, Any] = {}

    def add(self, name: str, part: str, figures: dict[str, Any]) -> None:
        """Take a part's figures."""
        figures = with_provenance(figures)
        self.report.setdefault(name, {})[part] = figures
        if self.write:
            status.print(f"wrote {part} to {save(RESULTS, name, part, figures)}")
        if self.as_json == "-":
            return
        if "left_out" in figures:
            console.print(f"{name}: {part} left out: {figures['left_out']}")
        else:
            SHOWN[part](name, figures)

    def finish(self, left_out: dict[str, str], failed: dict[str, str]) -> None:
        """Write the whole report where ``--json`` says."""
        whole = {**self.report, "left_out": left_out, "failed": failed}
        if self.as_json == "-":
            print(json.dumps(whole, indent=2, ensure_ascii=False))
        elif self.as_json is not None:
            write_json(Path(self.as_json), whole)


def show_throughput(name: str, figures: dict[str, Any]) -> None:
    """Tokens/s, and the time of a round."""
    settings = figures["settings"]
    title = (
        f"{name}: {settings['prompts']} prompts × {settings['repeats']} repeats, γ = {settings['num_assistant_tokens']}, "
        f"{settings['dtype']}, {_machine(figures)}"
    )
    caption = "× transformers, × plain: ratio of tokens/s, median of the repeats \\[quartiles]"
    table = _table(
        title, caption, "method", "tokens/s", "× transformers", "× plain", "tokens\na round", "outside\nforwards"
    )
    ratios = {(r["of"], r["to"].split(",")[0]): r for r in figures["ratios"]}
    for method, found in figures["methods"].items():
        outside = found.get("outside_forwards")
        table.add_row(
            method,
            number(found["tokens_per_second"]["median"], 1),
            _spread(ratios.get((method, "transformers"))),
            _spread(ratios.get((method, "plain"))),
            number(found["statistics"]["block_efficiency"]) if outside else "–",
            f"{100 * outside['share']:.1f} %" if outside else "–",
        )
    console.print(table)
    same = figures["same_greedy_text"]
    if same:
        counts = ", ".join(f"{name.split(',')[0]} {count}" for name, count in same.items())
        console.print(f"greedy text equal to plain decoding's: {counts} of {settings['prompts']}")
    columns = ("round", "target\nforward", "draft\nforwards", "outside", "draft", "verify", "couple", "cache")
    stages = _table(
        f"{name}: microseconds a round", "draft to cache: stages, the forwards in them included", "method", *columns
    )
    for method, found in figures["methods"].items():
        if outside := found.get("outside_forwards"):
            values = [*outside["microseconds_per_round"].values(), *outside["stage_microseconds_per_round"].values()]
            stages.add_row(method, *(number(value, 0) for value in values))
    console.print(stages)


def show_coupling(name: str, figures: dict[str, Any]) -> None:
    """The time of one coupling."""
    settings = figures["settings"]
    title = f"one coupling at V = {settings['vocabulary']:,}, γ = {settings['gamma']}, {_machine(figures)}"
    unit = 1e3 * figures["two_softmaxes"]["median"]
    caption = (
        f"unit: two float32 softmaxes, {unit:.2f} ms (a copy of p and q takes {1e3 * figures['copy']['median']:.2f} ms); "
        f"median of {settings['repeats']} repeats \\[quartiles]; memory: "
        "peak of the couplings, in units of p and q together"
    )
    table = _table(title, caption, "law", "token", "block", "reference", "memory")
    for law in dict.fromkeys(one["law"] for one in figures["couplings"]):
        kinds = {one["coupling"]: one for one in figures["couplings"] if one["law"] == law}
        times = (_spread(kinds[kind]["softmax_pairs"] if kind in kinds else None) for kind in KINDS)
        table.add_row(law, *times, number(max(one["peak_memory"] for one in kinds.values())))
    console.print(table)


def show_efficiency(name: str, figures: dict[str, Any]) -> None:
    """Tokens a round."""
    expected, counted = figures["expected"], figures["counted"]
    title = f"{name}: tokens a round at temperature 1, γ = {figures['settings']['num_assistant_tokens']}"
    caption = (
        f"expected: exact, at the same {expected['rounds']} rounds in {expected['texts']} texts of the target; counted: "
        f"{counted['sequences']} calls of generate(); ± half of a 95 % interval"
    )
    table = _table(title, caption, "law", *KINDS, "block\n− token", "block\n− reference")
    for law, kinds in expected["laws"].items():
        columns = (*KINDS, "block minus token", "block minus reference")
        table.add_row(law, *(interval(kinds.get(column), 3) for column in columns))
        found = counted["laws"][law]
        table.add_row("  counted", *(interval(found.get(kind), 2) for kind in KINDS), style="dim")
    console.print(table)


def show_trees(name: str, figures: dict[str, Any]) -> None:
    """The newest of the sections."""
    newest = [section for section in SECTIONS if section in figures][-1]
    {"acceptance": show_acceptance, "speed": show_speed, "laws": show_laws}[newest](name, figures)


def show_acceptance(name: str, figures: dict[str, Any]) -> None:
    """What is kept of chains and trees."""
    settings = figures["settings"]
    title = (
        f"{name}: {settings['sequences']} prompts of {settings['max_new_tokens']} tokens, lossless, {settings['dtype']}"
    )
    caption = (
        "tree: size/depth/top-k. 1, 2, …: of the rounds that drafted so deep, the share that kept a token there. ± half of "
        "a 95 % interval over prompts"
    )
    deepest = max(len(one["per_position"]) for one in figures["acceptance"])
    columns = ("T", "mean acceptance\nlength", "tokens a\nforward", *map(str, range(1, deepest + 1)))
    table = _table(title, caption, "draft", *columns)
    for one in figures["acceptance"]:
        table.add_row(
            one["name"],
            f"{one['temperature']:g}",
            interval(one["mean_acceptance_length"], 2),
            number(one["tokens_per_forward"]),
            *(number(position["mean"]) for position in one["per_position"]),
        )
    console.print(table)


def show_speed(name: str, figures: dict[str, Any]) -> None:
    """Chains and trees beside plain decoding."""
    settings = figures["settings"]
    caption = (
        "median of the repeats \\[quartiles]; break-even: the mean acceptance length (MAL) at which a round takes as long "
        "as the plain steps it replaces"
    )
    for dtype, found in figures["speed"].items():
        title = (
            f"{name}: {settings['prompts']} prompts × {settings['repeats']} repeats, greedy, {dtype}, {_machine(figures)}; "
            f"plain {found['plain']['tokens_per_second']['median']:.1f} tokens/s"
        )
        table = _table(title, caption, "draft", "tokens/s", "× plain", "ms a\nround", "MAL", "break-even", "same\ntext")
        for one in found["shapes"]:
            table.add_row(
                one["name"],
                number(one["tokens_per_second"]["median"], 1),
                _spread(one["ratio"]),
                number(one["round_milliseconds"]["median"], 1),
                number(one["mean_acceptance_length"]["mean"]),
                _spread(one["break_even"]),
                f"{one['same_text']}/{settings['prompts']}",
                style="bold" if one["name"] == found["best"] else "",
            )
        console.print(table)
        console.print(f"best: {found['best']}" if found["pays"] else f"nothing pays; the best is {found['best']}")


def show_laws(name: str, figures: dict[str, Any]) -> None:
    """What each law does on a tree."""
    found = figures["laws"]
    title = f"{name}: {found['name']}, T = {found['temperature']:g}, {found['prompts']} prompts"
    caption = (
        "MAL: mean acceptance length. head: candidates count with the head's probability; q = 1: each as if certain. "
        "TV(π, p): mean over tokens; overshoot: the largest log(π/p); ± half of a 95 % interval over prompts"
    )
    columns = (f"{figure}\n{reading}" for figure in ("MAL", "TV", "overshoot") for reading in ("head", "q = 1"))
    table = _table(title, caption, "law", *columns)
    cases = {(one["law"], one["draft_probs"]): one for one in found["laws"]}
    for law in dict.fromkeys(one["law"] for one in found["laws"]):
        both = [cases[law, reading] for reading in READINGS]
        table.add_row(
            law,
            *(interval(one["mean_acceptance_length"], 2) for one in both),
            *(interval(one["tv"], 3) for one in both),
            *("∞" if one["max_log_ratio"] is None else number(one["max_log_ratio"]) for one in both),
        )
    console.print(table)


def show_batches(name: str, figures: dict[str, Any]) -> None:
    """Batches beside one at a time."""
    settings = figures["settings"]
    amount = f"{settings['prompts']} prompts × {settings['repeats']} repeats"
    title = f"{name}: {amount}, {settings['dtype']}, {_machine(figures)}"
    table = _table(title, "median of the repeats \\[quartiles]", "lossless", "batch", "tokens/s", "× batch 1")
    for mode, found in figures["modes"].items():
        for one in found:
            rate = number(one["tokens_per_second"]["median"], 1)
            table.add_row(mode, str(one["batch_size"]), rate, _spread(one["ratio"]))
    console.print(table)
    console.print(f"greedy text the same in every batch size: {figures['same_greedy_text']} of {settings['prompts']}")


def show_schedule(name: str, figures: dict[str, Any]) -> None:
    """The schedule "expected" beside fixed lengths."""
    settings = figures["settings"]
    title = (
        f"{name}: {settings['prompts']} prompts × {settings['repeats']} repeats, greedy, {settings['dtype']}, "
        f"{_machine(figures)}"
    )
    table = _table(title, "median of the repeats \\[quartiles]", "draft length", "tokens/s")
    for method, rate in figures["methods"].items():
        table.add_row(method, _spread(rate), style="bold" if method in figures["best"].values() else "")
    console.print(table)
    _print_ratios(figures)
    for name, length in figures["mean_length"].items():
        console.print(f"{name} drafted {length:.1f} tokens a round")
    for name, seconds in figures["target_seconds"].items():
        one, *more = seconds.items()
        times = ", ".join(f"{n} tokens {taken / one[1]:.2f}" for n, taken in more)
        console.print(f"{name} went by a target's forward of {1e3 * one[1]:.1f} ms over a token; × that: {times}")


def show_compiled(name: str, figures: dict[str, Any]) -> None:
    """Compiled forwards beside others."""
    settings = figures["settings"]
    title = (
        f"{name}: {settings['prompts']} prompts × {settings['repeats']} repeats, γ = {settings['num_assistant_tokens']}, "
        f"{settings['dtype']}, {_machine(figures)}"
    )
    caption = "median of the repeats \\[quartiles]; warm-up: every text once, with what is compiled on the way"
    table = _table(title, caption, "lossless", "tokens/s", "outside\nforwards", "warm-up\nseconds")
    for method, found in figures["methods"].items():
        outside = found.get("outside_forwards")
        share = f"{100 * outside['share']:.1f} %" if outside else "–"
        seconds = number(figures["warm_up_seconds"][method], 0)
        table.add_row(method, _spread(found["tokens_per_second"]), share, seconds)
    console.print(table)
    _print_ratios(figures)
    same = ", ".join(f"{name} {count}" for name, count in figures["same_greedy_text"].items())
    console.print(f"greedy text equal to plain decoding's: {same} of {settings['prompts']}")
    for method, reason in figures["refused"].items():
        console.print(f"{method} is left out: {escape(reason)}")


def _print_ratios(figures: dict[str, Any]) -> None:
    for found in figures["ratios"]:
        interval = (
            "" if found["interval"] is None else "; 95 % over prompts {:.2f} to {:.2f}".format(*found["interval"])
        )
        console.print(f"{found['of']} / {found['to']}: {_spread(found)}{interval}")


def show_memory(name: str, figures: dict[str, Any]) -> None:
    """What a token of a long text takes."""
    tokens, last = figures["points"][-1]
    console.print(
        f"{name}: {tokens:,} tokens, {last / 1e6:.0f} MB at the end; in the second half a token took "
        f"{figures['bytes_per_token']:,.0f} bytes, {figures['cache_bytes_per_token']:,} of them in the caches"
    )


SHOWN = {
    "throughput": show_throughput,
    "coupling": show_coupling,
    "efficiency": show_efficiency,
    "trees": show_trees,
    "batches": show_batches,
    "schedule": show_schedule,
    "compiled": show_compiled,
    "memory": show_memory,
}


def _table(title: str, caption: str, first: str, *columns: str) -> Table:
    """A table whose first column holds names and may wrap, the others numbers that may not."""
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD)
    table.padding, table.pad_edge = (0, 1, 0, 0), False
    table.add_column(first, min_width=13)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _machine(figures: dict[str, Any]) -> str:
    machine = figures["provenance"]["machine"]
    return f"{machine['gpu'] or machine['cpu']}, {machine['torch_threads']} of {machine['cores']} cores"


def _spread(found: dict[str, Any] | None) -> str:
    if found is None:
        return "–"
    return "{:.2f} \\[{:.2f} {:.2f}]".format(found["median"], *found["quartiles"])
