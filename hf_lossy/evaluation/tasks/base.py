"""What a task is, the registry, and how records become items."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import LossyError, needs, unknown

Record = dict[str, Any]
"""One row of a data set."""
Prompt = str | list[dict[str, str]]
"""A text, or chat messages with ``role`` and ``content`` for the model's chat template."""


@dataclass(frozen=True)
class Score:
    """How an answer was marked.

    Attributes:
        correct: whether it is right.
        parsed: whether an answer was found in the text at all; one that was not is wrong.
        detail: what was found, or why nothing was.
    """

    correct: bool
    parsed: bool
    detail: str = ""

    @classmethod
    def unparsed(cls, why: str) -> Score:
        """Of a text without an answer."""
        return cls(False, False, why)


@dataclass(frozen=True)
class Item:
    """One thing to ask. ``id`` is unique within the task and the same however many items are loaded."""

    id: str
    prompt: Prompt
    record: Record


@dataclass(frozen=True)
class Task:
    """What is asked and how an answer is marked.

    Attributes:
        name: the registered name.
        dataset: its Hub id; None where the items are made and not loaded.
        subset, split, revision: of the data set.
        license: of the data.
        fields: the columns that are used; a record without one of them is refused.
        prompt: what the model is asked, with the form that the answer is to have.
        item_id: what tells the record from all others.
        score: marks a model's text.
        gold: a text that is right, in the form asked for.
        max_new_tokens: how long an answer may be, in tokens.
        stop: strings that end an answer, besides the model's own end of sequence.
        default_limit: how many items :func:`load` gives unless told; None: all.
        read: where records come from: :func:`read` unless the data set needs something else.
        file: a pattern for this task's files where ``data`` is a folder; ``<name>.jsonl`` unless given.
    """

    name: str
    dataset: str | None
    license: str
    fields: tuple[str, ...]
    prompt: Callable[[Record], Prompt]
    item_id: Callable[[Record], str]
    score: Callable[[Record, str], Score]
    gold: Callable[[Record], str]
    max_new_tokens: int
    subset: str | None = None
    split: str = "test"
    revision: str | None = None
    stop: tuple[str, ...] = ()
    default_limit: int | None = None
    read: Callable[[Task, Path | None], Iterable[Record]] | None = None
    file: str | None = None


_REGISTRY: dict[str, Task] = {}


def register(new: Task) -> Task:
    """Make a task known by its name."""
    if new.name in _REGISTRY:
        raise LossyError(f"the task {new.name!r} is registered already: give the new one another name")
    _REGISTRY[new.name] = new
    return new


def names() -> list[str]:
    """The registered tasks."""
    return sorted(_REGISTRY)


def task_named(name: str) -> Task:
    """A task by its name."""
    if name not in _REGISTRY:
        raise unknown("task", name, _REGISTRY)
    return _REGISTRY[name]


def load(task: Task, data: Path | str | None = None, limit: int | None = None) -> list[Item]:
    """A task's items, always in the same order.

    Args:
        data: a JSON Lines file with the data set's columns, or a folder that holds one under the task's name; None takes
            the data set from the Hub.
        limit: at most so many, from the start; the task's ``default_limit`` unless given.

    Raises:
        LossyError: a file that is missing or not JSON Lines, a record without a field that the task needs, no records.
    """
    if limit is not None and limit < 1:
        raise LossyError(f"limit must be at least 1, got {limit}")
    limit = limit or task.default_limit
    path = None if data is None else Path(data).expanduser()
    items: list[Item] = []
    seen: Counter[str] = Counter()
    for number, record in enumerate((task.read or read)(task, path)):
        if limit is not None and number == limit:
            break
        for field in task.fields:
            if field not in record:
                raise LossyError(
                    f"record {number} of {path or task.dataset} has no field {field!r}, which {task.name} needs; it has "
                    f"{', '.join(map(repr, record))}: give data with the columns of {task.dataset or task.name}"
                )
        name = task.item_id(record)
        seen[name] += 1  # a record that comes twice is another item, with other random numbers
        items.append(Item(name if seen[name] == 1 else f"{name}#{seen[name]}", task.prompt(record), record))
    if not items:
        raise LossyError(f"{path or task.dataset} has no records for {task.name}")
    return items


def read(task: Task, path: Path | None) -> Iterable[Record]:
    """The records of a file, of a folder's file, or of the data set's split on the Hub, in their order."""
    if path is not None:
        return [record for file in files(task, path) for record in read_lines(file)]
    return hub(task, task.subset)


def hub(task: Task, subset: str | None) -> Iterable[Record]:
    """The records of one subset of the data set, by ``datasets``."""
    needs("datasets", f"loading {task.dataset}", "eval")
    from datasets import load_dataset

    with reaching(task):
        return load_dataset(task.dataset, subset, split=task.split, revision=task.revision)


@contextmanager
def reaching(task: Task, what: str = "", local: str = "") -> Iterator[None]:
    """One sentence for whatever keeps the Hub from giving a task's data: no network, no such revision, ...

    Args:
        what: which part of the data set, where it is not the whole.
        local: what has to lie beside a local file.
    """
    try:
        yield
    except Exception as error:  # whatever it is; the cause is chained
        reason = " ".join(str(error).split())[:300]
        raise LossyError(
            f"{what and f'{what} of '}the data set {task.dataset} can't be loaded ({type(error).__name__}: {reason}): check "
            f"the network, or give {task.name} a local JSON Lines file with the same columns as data{local}"
        ) from error


def files(task: Task, path: Path) -> list[Path]:
    """The task's files at a path: itself, or those of its name in a folder."""
    if path.is_file():
        return [path]
    pattern = task.file or f"{task.name}.jsonl"
    found = sorted(path.glob(pattern)) if path.is_dir() else []
    if not found:
        state = f"holds no {pattern}" if path.is_dir() else "does not exist"
        raise LossyError(f"{path} {state}: give {task.name} a JSON Lines file, or a folder with {pattern}")
    return found


def read_lines(path: Path) -> list[Record]:
    """The records of a JSON Lines file."""
    records = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise LossyError(
                    f"{path}, line {number}, is not JSON ({error}): give one JSON object a line"
                ) from error
            if not isinstance(record, dict):
                raise LossyError(
                    f"{path}, line {number}, is a {type(record).__name__}: it must be an object, {{...}}, with the fields "
                    "of a record"
                )
            records.append(record)
    return records


def interleaved(groups: Iterable[Iterable[Record]]) -> list[Record]:
    """The first record of each group, then the second of each, and so on, so that a limit stays balanced."""
    lists = [list(group) for group in groups]
    return [group[i] for i in range(max(map(len, lists), default=0)) for group in lists if i < len(group)]


def fingerprint(*parts: str) -> str:
    """A short name for a record that has none: 12 hexadecimal digits of what it says."""
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()[:12]


def ask(*parts: str, system: str | None = None) -> list[dict[str, str]]:
    """Chat messages: one of the user, with blank lines between its parts, after a system message where there is one."""
    first: Sequence[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": "\n\n".join(parts)}]
