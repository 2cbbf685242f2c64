"""The tables of cards: evaluations, and the parts of ``hf-lossy bench``. A matched baseline stands in the next row, and what
was measured in time names the hardware in its column."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..bench.trees import strengths
from ..errors import LossyError
from ..evaluation.methods import OPTIONS, Method
from ..evaluation.report import COLUMNS, cells
from ..laws import make
from .figures import Figure, File, Prose, Value, fill, hardware, table

AGAINST = "↳ against "
"""What the name of a baseline follows."""


# --- evaluations -----------------------------------------------------------------------------------------------------


class Evaluation:
    """A result folder of ``hf-lossy evaluate``.

    Args:
        folder: with ``summary.json``, ``config.yaml`` and ``provenance.json``.
        label: how cards call it.

    Raises:
        LossyError: a file that is missing or says something else than an evaluation.
    """

    def __init__(self, folder: Path, label: str | None = None) -> None:
        label = label or folder.name
        self.folder, self.label = folder, label
        self.file = File(folder / "summary.json", f"{label}/summary.json")
        self.config = File(folder / "config.yaml", f"{label}/config.yaml")
        self.run = File(folder / "provenance.json", f"{label}/provenance.json")
        for key in ("pair", "settings", "rows"):
            self.file.get(key)
        if not self.rows:
            raise LossyError(f"{folder}/summary.json has no rows: run hf-lossy evaluate to its end first")

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One a method."""
        rows: list[dict[str, Any]] = self.file.get("rows")
        return rows

    @property
    def pair(self) -> str:
        """The name of the pair that ran."""
        return str(self.file.get("pair"))

    @property
    def task(self) -> str:
        """The name of the task."""
        return str(self.file.get("settings", "task"))

    def describe(self) -> Prose:
        """What was run."""
        return fill(
            "Task {task}: {texts} texts a method; {settings}; ran on {machine}.",
            task=self.file.figure("settings", "task"),
            texts=self.file.figure("rows", form=_texts),
            settings=self.config.figure(form=_settings),
            machine=self.run.figure("machine", form=_machine),
        )

    def table(self) -> Prose:
        """Every method, each lossy one followed by its matched baseline."""
        rows = [self._cells(i) for i in self.order()]
        return table([Figure(column, self.file) for column in COLUMNS], rows)

    def order(self) -> list[tuple[int | None, Method | None]]:
        """Row and None of each method; then row and method of its baseline, whose row is None where it was not run."""
        by_key = {row["method"]: i for i, row in enumerate(self.rows)}
        found: list[tuple[int | None, Method | None]] = []
        for i, row in enumerate(self.rows):
            found.append((i, None))
            against = method_of(row).baseline()
            if against is not None:
                found.append((by_key.get(row.get("baseline", against.key)), against))
        return found

    def _cells(self, entry: tuple[int | None, Method | None]) -> Sequence[Value]:
        i, baseline = entry
        if i is None:
            assert baseline is not None
            name = f"{AGAINST}{baseline.label(self._common())}"
            return [Figure(f"{name}: not run", self.file), *[""] * (len(COLUMNS) - 1)]
        if baseline is None:
            return [self.file.figure("rows", i, form=_cell(j)) for j in range(len(COLUMNS))]
        own = [self.file.figure("rows", i, form=_cell(j)) for j in range(len(COLUMNS))]
        gaps = {COLUMNS.index("gap to baseline"), COLUMNS.index("p")}  # its own gap stands in its own row
        rest = [figure if j not in gaps else "" for j, figure in enumerate(own)]
        return [Figure(f"{AGAINST}{own[0].text}", self.file), *rest[1:]]

    def _common(self) -> dict[str, Any]:
        drafting = [set(method_of(row).options.items()) for row in self.rows if row["law"] is not None]
        return dict(set.intersection(*drafting)) if drafting else {}


def method_of(row: dict[str, Any]) -> Method:
    """The method of a row of a summary."""
    options = {name: row[name] for name in OPTIONS if name in row}
    return Method(None if row["law"] is None else make(row["law"]), options)


def _cell(column: int) -> Callable[[dict[str, Any]], str]:
    return lambda row: cells(row)[column]


def _texts(rows: list[dict[str, Any]]) -> str:
    return " to ".join(
        f"{count:,}" for count in sorted({min(row["texts"] for row in rows), max(row["texts"] for row in rows)})
    )


NAMED = ("pair", "target", "draft", "task", "methods", "options", "out", "temperature", "top_k", "top_p", "do_sample")
"""Settings of an evaluation that a card has in other words."""


def _settings(config: dict[str, Any]) -> str:
    others = {name: value for name, value in config.items() if name not in NAMED and value is not None}
    return ", ".join(
        [_sampling(config), *(f"{name}={value}" for name, value in {**others, **config.get("options", {})}.items())]
    )


def _sampling(settings: dict[str, Any]) -> str:
    if "temperature" not in settings:
        return "temperature not recorded"
    if not settings["temperature"]:
        return "greedy"
    cuts = [
        f"{name} = {settings[name]:g}" for name, off in (("top_k", 0), ("top_p", 1)) if settings.get(name, off) != off
    ]
    return ", ".join([f"sampled at T = {settings['temperature']:g}", *cuts])


def _machine(machine: dict[str, Any]) -> str:
    return str(machine["gpu"] or f"{machine['torch_threads']} of {machine['cores']} cores of {machine['cpu']}")


# --- hf-lossy bench --------------------------------------------------------------------------------------------------


def throughput(bench: File) -> Prose:
    """Ratios of tokens/s, each beside what it is a ratio to."""
    part = "throughput"
    machine = hardware(bench, part)
    said = fill(
        "Ratios of tokens/s within one run, prefill included: {prompts} prompts of {tokens} tokens, {repeats} repeats, "
        "γ = {gamma}, {dtype}, on {machine}; median, and 95 % interval over prompts.",
        prompts=bench.figure(part, "settings", "prompts"),
        tokens=bench.figure(part, "settings", "max_new_tokens"),
        repeats=bench.figure(part, "settings", "repeats"),
        gamma=bench.figure(part, "settings", "num_assistant_tokens"),
        dtype=bench.figure(part, "settings", "dtype"),
        machine=machine,
    )
    rows: list[list[Value]] = []
    for i in bench.indices(part, "ratios"):
        where = (part, "ratios", i)
        rows.append(
            [
                bench.figure(*where, "of"),
                bench.figure(*where, "to"),
                bench.figure(*where, form=lambda ratio: _median(ratio, ratio["interval"])),
            ]
        )
    header = fill("ratio of tokens/s, {machine}", machine=machine)
    return said + table(["method", AGAINST.strip(), Prose(header.text.replace("\n", " "), header.files)], rows)


def efficiency(bench: File) -> Prose:
    """Expected tokens a round of each law, the couplings side by side."""
    part = "efficiency"
    said = fill(
        "Tokens a round, expected exactly at the same {rounds} recorded rounds of {texts} texts, γ = {gamma}, "
        "{temperature}; differences are paired; ± half of a 95 % interval over texts.",
        rounds=bench.figure(part, "expected", "rounds", form=","),
        texts=bench.figure(part, "expected", "texts"),
        gamma=bench.figure(part, "settings", "num_assistant_tokens"),
        temperature=bench.figure(part, "settings", "sampled", form=_sampling),
    )
    columns = ("token", "block", "reference", "block minus token", "block minus reference")
    rows: list[list[Value]] = []
    for name, kinds in bench.get(part, "expected", "laws").items():
        found = ((column, (part, "expected", "laws", name, column)) for column in columns)
        rows.append([Figure(name, bench), *(bench.figure(*at, form=mean(3)) if c in kinds else "" for c, at in found)])
    return said + table(["law", *columns], rows)


def acceptance(bench: File) -> Prose:
    """What a head's chains and trees keep."""
    part = "trees"
    said = fill(
        "Lossless verification, {sequences} prompts that are not in the training data, {tokens} tokens each, {dtype}; mean "
        "acceptance length (tokens a round, the replaced or bonus token included) with half of a 95 % interval over "
        "prompts, and the share of rounds that kept a token at each depth.",
        sequences=bench.figure(part, "settings", "sequences"),
        tokens=bench.figure(part, "settings", "max_new_tokens"),
        dtype=bench.figure(part, "settings", "dtype"),
    )
    rows = [
        [
            bench.figure(part, "acceptance", i, "name"),
            bench.figure(part, "acceptance", i, "temperature", form="g"),
            bench.figure(part, "acceptance", i, "mean_acceptance_length", form=mean(2)),
            bench.figure(
                part, "acceptance", i, "per_position", form=lambda kept: ", ".join(f"{one['mean']:.2f}" for one in kept)
            ),
        ]
        for i in bench.indices(part, "acceptance")
    ]
    return said + table(["draft", "temperature", "mean acceptance length", "kept at each depth"], rows)


def speed(bench: File) -> Prose:
    """A head's chains and trees beside plain decoding."""
    part = "trees"
    machine = hardware(bench, part)
    said = fill(
        "Greedy speed over plain decoding on {machine}: {prompts} prompts of {tokens} tokens, {repeats} repeats. A round "
        "pays where the mean acceptance length is above the break-even.",
        machine=machine,
        prompts=bench.figure(part, "settings", "prompts"),
        tokens=bench.figure(part, "settings", "max_new_tokens"),
        repeats=bench.figure(part, "settings", "repeats"),
    )
    header = fill("× plain decoding, {machine}", machine=machine)
    rows = [
        [
            Figure(dtype, bench),
            bench.figure(part, "speed", dtype, "shapes", i, "name"),
            bench.figure(part, "speed", dtype, "shapes", i, "mean_acceptance_length", "mean", form=".2f"),
            bench.figure(part, "speed", dtype, "shapes", i, "break_even", "median", form=".2f"),
            bench.figure(
                part, "speed", dtype, "shapes", i, "ratio", form=lambda ratio: _median(ratio, ratio.get("interval"))
            ),
        ]
        for dtype in bench.get(part, "speed")
        for i in bench.indices(part, "speed", dtype, "shapes")
    ]
    return said + table(["dtype", "draft", "mean acceptance length", "break-even", header], rows)


def laws_on_trees(bench: File) -> Prose:
    """What each law does on a tree, with both readings of q, beside its matched baseline."""
    part = ("trees", "laws")
    said = fill(
        "Every law on a {shape}, T = {temperature}, {prompts} prompts. q of a candidate is the head's softmax (head), or "
        "each candidate counts as certain (point_mass); a baseline is emitted exactly, so that it is read with the head's. "
        "Mean acceptance length and mean TV(π, p) a token, ± half of a 95 % interval over prompts; overshoot: the largest "
        "log(π/p), in nats. No answers are marked here.",
        shape=bench.figure(*part, "name"),
        temperature=bench.figure(*part, "temperature", form="g"),
        prompts=bench.figure(*part, "prompts"),
    )
    where = {(one["law"], one["draft_probs"]): i for i, one in enumerate(bench.get(*part, "laws"))}
    known = {str(one): Method(one).baseline() for one in strengths()}
    rows: list[list[Value]] = []
    for law, reading in where:
        if law not in known:
            raise LossyError(f"{bench.label} has the law {law!r}, which hf-lossy bench does not run on trees")
        rows.append(_law_row(bench, where[law, reading], ""))
        baseline = known[law]
        if baseline is not None:
            rows.append(_law_row(bench, where[baseline.name, "head"], AGAINST))
    return said + table(["law", "q", "mean acceptance length", "TV", "overshoot"], rows)


def _law_row(bench: File, i: int, before: str) -> list[Value]:
    at = ("trees", "laws", "laws", i)
    return [
        bench.figure(*at, "law", form=lambda name: before + name),
        bench.figure(*at, "draft_probs"),
        bench.figure(*at, "mean_acceptance_length", form=mean(2)),
        bench.figure(*at, "tv", form=mean(3)),
        bench.figure(*at, "max_log_ratio", form=lambda value: "∞" if value is None else f"{value:.2f}"),
    ]


PARTS: dict[str, Callable[[File], Prose]] = {
    "throughput": throughput,
    "efficiency": efficiency,
    "trees": lambda bench: acceptance(bench) + speed(bench) + laws_on_trees(bench),
}
"""The parts of a pair's benchmark and their tables."""


def mean(digits: int) -> Callable[[dict[str, Any]], str]:
    """A mean with half of its interval."""

    def text(found: dict[str, Any]) -> str:
        half = found["half_width"]
        return f"{found['mean']:.{digits}f}" + ("" if half is None or math.isnan(half) else f" ± {half:.{digits}f}")

    return text


def _median(found: dict[str, Any], interval: Sequence[float] | None) -> str:
    return f"{found['median']:.2f}" + ("" if interval is None else f" [{interval[0]:.2f}, {interval[1]:.2f}]")
