from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ..bench.trees import shape_name
from ..embedded import clock_sums
from ..evaluation.statistics import wilson
from ..generation import VerificationStats, generate
from ..laws import Law, law
from ..loading import Pair, dtype_name
from ..provenance import provenance, write_json
from .common import (
    DeviceOption,
    DraftOption,
    DraftWeightsOption,
    DtypeOption,
    PairOption,
    TargetOption,
    ThreadsOption,
    console,
    number,
    open_pair,
    parse_law,
    status,
)

DEFAULT_LAWS = ("lossless", "lenience=0.4", "cos=0.4", "adaptive_ensemble=0.4", "min_p=0.1", "speccascade=0.1")
NARROWEST = 22
"""Terminal columns below which a text is no longer readable beside others."""
MISTAKE = "bold white on red"
STYLES = {"accepted": "green", "replaced": "yellow", "bonus": "cyan", "plain": ""}


@dataclass
class Column:
    """One way of decoding in the comparison, and what it did over all prompts. ``law`` is None for the target alone."""

    name: str
    law: Law | None
    seconds: float = 0.0
    tokens: int = 0
    right: int = 0
    stats: VerificationStats = field(default_factory=VerificationStats)
    texts: list[dict[str, Any]] = field(default_factory=list)

    def summary(self, plain: Column, marked: int) -> dict[str, Any]:
        """The column's line of the table."""
        accounting = self.stats.accounting or {}
        return {
            "method": self.name,
            "law": None if self.law is None else self.law.to_dict(),
            "tokens_per_second": self.tokens / self.seconds,
            "speed_up": (self.tokens / self.seconds) / (plain.tokens / plain.seconds),
            "block_efficiency": self.stats.block_efficiency if self.law else 1.0,
            "acceptance": accounting.get("acceptance"),
            "tv": accounting.get("tv", 0.0 if self.law is None else None),
            "max_log_ratio": accounting.get("max_log_ratio", 0.0 if self.law is None else None),
            "sequence_kl": accounting.get("kl", 0.0 if self.law is None else None),
            "right": self.right / marked if marked else None,
            "statistics": self.stats.summary() if self.law else None,
            "outputs": self.texts,
        }


def compare(
    pair: PairOption = None,
    target: TargetOption = None,
    draft: DraftOption = None,
    draft_quantization: DraftWeightsOption = None,
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt; may be given several times.")] = None,
    laws: Annotated[
        list[str] | None,
        typer.Option("--law", help="A law: lenience=0.4, speccascade=0.3,fallback=target; may be given several times."),
    ] = None,
    prompts: Annotated[
        int | None, typer.Option(min=1, help="How many of the pair's prompts (default 60, or 2).")
    ] = None,
    show: Annotated[int, typer.Option(min=0, help="How many outputs to print side by side.")] = 2,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 1.0,
    coupling: Annotated[str, typer.Option(help="block, token or reference.")] = "block",
    bonus: Annotated[str, typer.Option(help="induced or target.")] = "induced",
    gamma: Annotated[int | None, typer.Option(min=1, help="Drafted tokens in a round (default: the pair's).")] = None,
    draft_mode: Annotated[str | None, typer.Option(help="Of an EAGLE-3 head: tree, chain or sampled.")] = None,
    tree_size: Annotated[int | None, typer.Option(min=2, help="Nodes of its tree, the root included.")] = None,
    tree_depth: Annotated[int | None, typer.Option(min=0, help="Expansions after the tree's first level.")] = None,
    tree_top_k: Annotated[int | None, typer.Option(min=1, help="Candidates expanded at each level.")] = None,
    draft_probs: Annotated[
        str | None, typer.Option(help="head, or point_mass: each deterministic candidate counts as q = 1.")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Default: the pair's, or 64.")] = None,
    seed: Annotated[int, typer.Option(help="Of every generation.")] = 0,
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    as_json: Annotated[str | None, typer.Option("--json", help="Write everything to this file; - prints it.")] = None,
) -> None:
    """Target alone, lossless speculation and lossy laws on the same prompts: what is written, how fast, how far off."""
    columns = [Column("target alone", None)]
    columns += [Column(str(one), one) for one in map(parse_law, laws or DEFAULT_LAWS)]
    if not any(c.law is not None and c.law.name == "lossless" for c in columns):
        columns.insert(1, Column("lossless", law("lossless")))
    loaded = open_pair(pair, target, draft, dtype, device, threads, draft_quantization)
    if loaded.draft is None and draft_probs != "point_mass" and not laws:
        columns = [c for c in columns if c.law is None or not c.law.uses_draft]  # prompt lookup has no q
    texts = prompt or loaded.prompts[: prompts or (60 if loaded.arithmetic else 2)]
    if prompt and not loaded.arithmetic:
        texts = [loaded.chat(p) for p in prompt]
    lookup = loaded.draft is None
    drafting = loaded.drafting(
        **{"prompt_lookup_num_tokens" if lookup else "num_assistant_tokens": gamma},
        draft_mode=draft_mode,
        tree_size=tree_size,
        tree_depth=tree_depth,
        tree_top_k=tree_top_k,
        draft_probs=draft_probs,
    )
    settings: dict[str, Any] = {**drafting, "do_sample": temperature > 0}
    if temperature > 0:
        settings |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}
    settings["max_new_tokens"] = max_new_tokens or settings.get("max_new_tokens", 64)
    verification = {"coupling": coupling, "bonus": bonus}
    run(loaded, columns, texts, settings, verification, seed)
    marked = sum(_operands(loaded, text) is not None for text in texts)
    results = [c.summary(columns[0], marked) for c in columns]
    options = {k: v for k, v in settings.items() if isinstance(v, int | float | str | bool)}
    report = {
        "pair": loaded.name,
        "settings": {**options, **verification, "seed": seed, "dtype": dtype_name(loaded.target)},
        "draft": shape_name(settings) if loaded.head is not None else f"γ = {_gamma(settings)}",
        "prompts": texts,
        "marked": marked,
        "results": results,
        "provenance": provenance(),
    }
    if as_json == "-":
        print(json.dumps(report, indent=2, ensure_ascii=False))
        return
    if as_json is not None:
        write_json(Path(as_json), report)
    side_by_side(loaded, columns, texts[:show])
    table(report)


def run(
    pair: Pair,
    columns: list[Column],
    texts: list[str],
    settings: dict[str, Any],
    verification: dict[str, Any],
    seed: int,
) -> None:
    """Decode every prompt in every column. The order of the columns turns from prompt to prompt; each law runs twice with
    the same coins: once to be timed, once with the accounting on."""
    plain = {k: v for k, v in settings.items() if k in ("do_sample", "temperature", "top_k", "top_p", "max_new_tokens")}
    bar = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*bar, console=status, transient=True) as progress:
        task = progress.add_task("warming up", total=len(columns) * (len(texts) + 1))
        for i in range(-1, len(texts)):  # -1: a warm-up that counts for nothing
            inputs = pair.inputs(texts[max(i, 0)])
            length = inputs["input_ids"].shape[1]
            turn = max(i, 0) % len(columns)
            for column in columns[turn:] + columns[:turn]:
                generator = torch.Generator(device=pair.target.device).manual_seed(seed + max(i, 0))
                began = time.perf_counter()
                if column.law is None:
                    torch.manual_seed(seed + max(i, 0))
                    out = pair.target.generate(**inputs, **plain)
                else:
                    kwargs = {**inputs, **settings, **verification, "verification": column.law}
                    out = generate(pair.target, **kwargs, generator=generator)
                seconds = time.perf_counter() - began
                progress.advance(task)
                if i < 0:
                    continue
                progress.update(task, description=f"{column.name}")
                sources = ["plain"] * (out.shape[1] - length)
                if column.law is not None:
                    stats = VerificationStats()
                    generator.manual_seed(seed + i)
                    again = generate(
                        pair.target, **kwargs, generator=generator, accounting=True, verification_stats=stats
                    )
                    if not torch.equal(out, again):
                        raise RuntimeError(f"{column.name}: the same seed gave another text")
                    column.stats.add(stats)
                    sources = list(stats.rows[0].sources)
                column.seconds += seconds
                column.tokens += out.shape[1] - length
                ids = out[0, length:].tolist()
                working = pair.tokenizer.decode(ids)
                operands = _operands(pair, texts[i])
                right = None if operands is None else clock_sums.is_correct(operands, working)
                column.right += bool(right)
                column.texts.append({"text": working, "tokens": ids, "sources": sources, "right": right})


def _operands(pair: Pair, text: str) -> list[int] | None:
    return clock_sums.operands_of(text) if pair.arithmetic else None


def side_by_side(pair: Pair, columns: list[Column], texts: list[str]) -> None:
    """The outputs of the first prompts, tokens coloured by where they came from, wrong answers marked: side by side where
    the terminal is wide enough, else one below the other."""
    wide = console.width >= NARROWEST * len(columns)
    for i, prompt in enumerate(texts):
        shown = Table(title=repr(prompt), title_justify="left", show_header=wide, show_lines=not wide)
        cells = [_coloured(pair, column.texts[i], _operands(pair, prompt)) for column in columns]
        if wide:
            for column in columns:
                shown.add_column(column.name, overflow="fold")
            shown.add_row(*cells)
        else:
            for column, cell in zip(columns, cells, strict=True):
                shown.add_row(column.name, cell)
        console.print(shown)
    if texts:
        legend = [Text(name, style=STYLES[name]) for name in ("accepted", "replaced", "bonus")]
        if pair.arithmetic:
            legend.append(Text("first mistake", style=MISTAKE))
        console.print(Text("tokens: ").append(Text(", ").join(legend)))


def _coloured(pair: Pair, output: dict[str, Any], operands: list[int] | None) -> Text:
    mistake = None if operands is None else clock_sums.first_mistake(operands, output["text"])
    cell = Text()
    for j, (token, source) in enumerate(zip(output["tokens"], output["sources"], strict=True)):
        style = MISTAKE if mistake is not None and j == mistake[0] else STYLES[source]
        cell.append(pair.tokenizer.decode([token]) + (" " if pair.arithmetic else ""), style=style)
    if operands is not None:
        right = f"✗ wrong, it is {sum(operands) % clock_sums.MODULUS}"
        cell.append("\n")
        cell.append("✓ right" if output["right"] else right, style="bold green" if output["right"] else "bold red")
    return cell


def table(report: dict[str, Any]) -> None:
    """The figures of all columns."""
    settings, count = report["settings"], len(report["prompts"])
    title = f"{report['pair']}: {count} prompts, {_words(report)}"
    shown = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    marked = report["marked"]
    names = ["tokens\n/s", "speed-\nup", "block\neff.", "accep-\ntance", "TV", "over-\nshoot", "seq.\nKL"]
    shown.add_column("method", no_wrap=True, vertical="bottom")
    for name in names + (["right %\n\\[95 %]"] if marked else []):
        shown.add_column(name, justify="right", no_wrap=True)
    for r in report["results"]:
        cells = [
            r["method"],
            number(r["tokens_per_second"], 0),
            f"{number(r['speed_up'])}×",
            number(r["block_efficiency"]),
            number(r["acceptance"], 3),
            number(r["tv"], 3),
            number(r["max_log_ratio"], 2),
            number(r["sequence_kl"], 2),
        ]
        if marked:
            low, high = wilson(round(r["right"] * marked), marked)
            cells.append(f"{100 * r['right']:.0f} \\[{100 * low:.0f} {100 * high:.0f}]")
        shown.add_row(*cells)
    console.print(shown)
    machine = report["provenance"]["machine"]
    console.print(
        f"speed-up: over the target alone, in this run ({machine['cpu']}, {machine['torch_threads']} threads, "
        f"{settings['dtype']}, prefill included). Per emitted token: acceptance Σ min(π, q) and TV(π, p), means; overshoot, "
        "the largest log(π/p); and the sequence-level KL(Π‖P), all in nats.",
        style="dim",
    )


def _gamma(settings: dict[str, Any]) -> int:
    return int(settings.get("num_assistant_tokens") or settings.get("prompt_lookup_num_tokens") or 7)


def _words(report: dict[str, Any]) -> str:
    settings, used = report["settings"], report["results"][1]["statistics"]
    how = f"T = {settings['temperature']:g}" if settings["do_sample"] else "greedy"
    reading = ", each candidate as q = 1" if used["draft_probs"] == "point_mass" else ""
    coupling = "" if used["coupling"] == "greedy" else f", {used['coupling']} coupling"
    return f"{how}, {report['draft']}{reading}{coupling}, {settings['bonus']} bonus, seed {settings['seed']}"
