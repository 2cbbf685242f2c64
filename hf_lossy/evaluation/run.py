"""Running methods over a task's items: one line an item, resumable, the same on any number of processes."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

import torch
import yaml
from transformers import PreTrainedModel

from ..bench.estimates import Track, untracked
from ..bench.rounds import eos
from ..errors import LossyError
from ..generation import VerificationStats, generate
from ..loading import Pair
from ..provenance import provenance, write_json
from .methods import Method
from .tasks import Item, Task

ITEMS, TIMES = "items.jsonl", "times.jsonl"


class Processes(Protocol):
    """How many processes work, which one this is, and a way to wait for the others (``accelerate.PartialState``)."""

    num_processes: int
    process_index: int

    def wait_for_everyone(self) -> None: ...


class Alone:
    """One process."""

    num_processes, process_index = 1, 0

    def wait_for_everyone(self) -> None:
        """Nobody to wait for."""


@dataclass(frozen=True)
class Unit:
    """One text to generate and mark: a method, a seed, an item."""

    method: Method
    seed: int
    item: Item

    @property
    def key(self) -> tuple[str, int, str]:
        """What it is called in the files."""
        return self.method.key, self.seed, self.item.id


def item_seed(seed: int, task: str, item: str) -> int:
    """The seed of an item's coins: the same for every method, in whatever order and on whichever process it runs."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{task}/{item}".encode()).digest()[:7], "big")


def open_results(folder: Path, config: dict[str, Any], origin: dict[str, Any]) -> None:
    """Make a result folder, or check that it belongs to the same configuration.

    Args:
        origin: models and records, for ``provenance.json`` (:func:`hf_lossy.evaluation.origin.origin`).

    Raises:
        LossyError: the folder holds results of another configuration.
    """
    path, text = folder / "config.yaml", yaml.safe_dump(config, sort_keys=True, allow_unicode=True)
    if path.is_file():
        before = yaml.safe_load(path.read_text(encoding="utf-8"))
        for name in sorted(before.keys() | config.keys()):
            if before.get(name) != yaml.safe_load(text).get(name):
                raise LossyError(
                    f"{folder} holds results with {name} = {before.get(name)!r}, got {config.get(name)!r}: choose another "
                    "folder, or the same configuration to go on"
                )
        return
    if folder.exists() and any(folder.iterdir()):
        raise LossyError(f"{folder} holds files but no config.yaml: choose an empty folder or a new one")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    write_json(folder / "provenance.json", provenance() | origin)


def read_lines(folder: Path, name: str) -> list[dict[str, Any]]:
    """The finished lines of a file and of its parts; a last line that a kill cut off is dropped."""
    found = []
    stem = name.removesuffix(".jsonl")
    for path in sorted([*folder.glob(name), *folder.glob(f"{stem}.part*.jsonl")]):
        for line in path.read_text(encoding="utf-8").split("\n"):
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return found


def key_of(line: dict[str, Any]) -> tuple[str, int, str]:
    """The key of a finished unit's line."""
    return line["method"], line["seed"], line["item"]


def run(
    pair: Pair,
    task: Task,
    items: Sequence[Item],
    methods: Sequence[Method],
    seeds: Sequence[int],
    settings: dict[str, Any],
    folder: Path,
    processes: Processes | None = None,
    track: Track = untracked,
    batch_size: int = 1,
) -> list[dict[str, Any]]:
    """Generate and mark whatever is not finished yet; the lines of all units, in order.

    Args:
        pair: target, draft, tokenizer.
        settings: of ``generate`` (sampling, ``max_new_tokens``), the same for every method.
        folder: gets a line for every finished unit at once, so that a kill loses the batch in flight and no other.
        processes: this one works on every n-th of the open batches.
        track: shows progress.
        batch_size: items of a method that are generated together, those whose prompts are about as long.
    """
    processes = processes or Alone()
    units = [Unit(method, seed, item) for method in methods for seed in seeds for item in items]
    done = {key_of(line) for line in read_lines(folder, ITEMS)}
    processes.wait_for_everyone()  # everybody has read what was there before anybody adds to it
    batches = in_batches(pair, [unit for unit in units if unit.key not in done], batch_size)
    mine = batches[processes.process_index :: processes.num_processes]
    part = f".part{processes.process_index}.jsonl"
    with _appending(folder / f"items{part}") as items_file, _appending(folder / f"times{part}") as times_file:
        progress = iter(track([unit for batch in mine for unit in batch], f"{pair.name}: {task.name}"))
        for batch in mine:
            next(progress)
            results = generate_and_mark(pair, task, batch, settings)
            for i, (unit, (line, seconds)) in enumerate(zip(batch, results, strict=True)):
                if i:
                    next(progress)
                for file, value in ((times_file, {**_named(unit), **seconds}), (items_file, {**_named(unit), **line})):
                    file.write(json.dumps(value, ensure_ascii=False) + "\n")
                    file.flush()
        next(progress, None)  # lets the display end
    processes.wait_for_everyone()
    if processes.process_index == 0:
        for name in (ITEMS, TIMES):
            _merge(folder, name, [unit.key for unit in units])
    processes.wait_for_everyone()
    return read_lines(folder, ITEMS)


def in_batches(pair: Pair, units: Sequence[Unit], size: int) -> list[list[Unit]]:
    """Units of one method and seed, by the length of their prompts."""
    groups: dict[tuple[str, int], list[Unit]] = {}
    for unit in units:
        groups.setdefault((unit.method.key, unit.seed), []).append(unit)
    if size > 1:
        known = {unit.item.id: len(pair.tokenizer(pair.chat(unit.item.prompt))["input_ids"]) for unit in units}
        groups = {key: sorted(group, key=lambda unit: known[unit.item.id]) for key, group in groups.items()}
    return [group[i : i + size] for group in groups.values() for i in range(0, len(group), size)]


def generate_and_mark(
    pair: Pair, task: Task, batch: Sequence[Unit], settings: dict[str, Any]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Generate and mark the texts of a batch, which is of one method: for each its line, and its share of the time."""
    inputs = pair.inputs(*(pair.chat(unit.item.prompt) for unit in batch))
    length, method = inputs["input_ids"].shape[1], batch[0].method
    seeds = [item_seed(unit.seed, task.name, unit.item.id) for unit in batch]
    stops = {"stop_strings": list(task.stop), "tokenizer": pair.tokenizer} if task.stop else {}
    stats = VerificationStats()
    began = time.perf_counter()
    if method.law is None:
        model = alone(pair, method)
        devices = [model.device] if model.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(seeds[0])  # the one generator that transformers draws from, for all rows
            out = model.generate(**inputs, **settings, **stops)
    else:
        out = generate(
            pair.target,
            **inputs,
            **{**pair.drafting(**method.options), **settings, **stops},
            verification=method.law,
            accounting=True,
            generator=[torch.Generator(pair.target.device).manual_seed(seed) for seed in seeds],
            verification_stats=stats,
        )
    seconds = time.perf_counter() - began
    times = {"seconds": seconds / len(batch)}
    times |= {name: stats.seconds[name] / len(batch) for name in ("target_forward", "draft_forward") if method.law}
    rows: list[VerificationStats | None] = [None] * len(batch)
    if method.law is not None:
        rows = [VerificationStats(rows=[row]) for row in stats.rows]
    found, ends = [], eos(pair).tolist()
    for unit, ids, row in zip(batch, out[:, length:].tolist(), rows, strict=True):
        tokens = ids[: row.emitted] if row else until_end(ids, ends, pair.target.generation_config.pad_token_id)
        text = pair.tokenizer.decode(tokens, skip_special_tokens=not pair.arithmetic)
        score = task.score(unit.item.record, text)
        line: dict[str, Any] = {"correct": score.correct, "parsed": score.parsed, "tokens": len(tokens), "text": text}
        found.append((line | (figures(row) if row else {}), times))
    return found


def alone(pair: Pair, method: Method) -> PreTrainedModel:
    """The model that decodes without the other."""
    if method.model == "target":
        return pair.target
    if pair.draft is None or pair.head is not None:
        raise LossyError(f"{pair.name} has no draft model that could decode alone: leave 'draft' out of the methods")
    return pair.draft


def until_end(ids: list[int], ends: Collection[int], padding: int | None) -> list[int]:
    """A row of transformers' output up to its end, without what fills a batch up."""
    end = next((i for i, token in enumerate(ids, start=1) if token in ends), len(ids))
    while end and ids[end - 1] == padding and padding not in ends:
        end -= 1
    return ids[:end]


def figures(stats: VerificationStats) -> dict[str, Any]:
    """What a text's line says of its speculation."""
    totals = stats.accounting or {}
    return {
        "rounds": len(stats.rounds),
        "drafting_rounds": sum(r.drafted > 0 for r in stats.rounds),
        "accepted": stats.accepted,
        "drafted": stats.drafted,
        "kept": [r.accepted for r in stats.rounds],
        **{name: totals.get(name) for name in ("tv", "kl", "max_log_ratio", "acceptance", "wasted_distortion")},
    }


def _named(unit: Unit) -> dict[str, Any]:
    return {"method": unit.method.key, "name": unit.method.name, "seed": unit.seed, "item": unit.item.id}


@contextmanager
def _appending(path: Path) -> Iterator[TextIO]:
    """A file to append lines to; what a kill cut off at its end is ended first."""
    before = path.read_bytes() if path.is_file() else b""
    with path.open("a", encoding="utf-8") as file:
        if before and not before.endswith(b"\n"):
            file.write("\n")
        yield file


def _merge(folder: Path, name: str, order: Sequence[tuple[str, int, str]]) -> None:
    """Put the parts into one file, in the order of the configuration, whole or not at all."""
    lines = {key_of(line): line for line in read_lines(folder, name)}
    temporary = folder / f".{name}.{os.getpid()}"
    with temporary.open("w", encoding="utf-8") as file:
        for key in order:
            if key in lines:
                file.write(json.dumps(lines[key], ensure_ascii=False) + "\n")
    temporary.replace(folder / name)
    for path in folder.glob(f"{name.removesuffix('.jsonl')}.part*.jsonl"):
        path.unlink()


def by_method(lines: Iterable[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The lines of each method, in order of appearance."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        found.setdefault(line["method"], []).append(line)
    yield from found.items()
