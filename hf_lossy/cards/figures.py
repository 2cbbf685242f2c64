"""Text for cards in which every figure names the file it was read from.

A :class:`File` gives :class:`Figure` objects, :func:`fill` and :func:`table` put them into :class:`Prose`, and a card is
made of prose only. A number that comes from anywhere else is refused: as an argument, and as digits in the text itself.
Digits inside a name (``Qwen2.5``, ``arXiv:2607.26627``) are part of the name.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

import yaml

from ..errors import LossyError

WIDTH = 120
CONVENTIONS = ("95 %",)
"""Digits that are no measurement: the level of every interval of this package."""
_WORD = re.compile(r"[^\s()\[\]{}<>`|,;*\"'’“”]+")
_NAME = re.compile(r"[A-Za-z_][\w./:+-]*")


class File:
    """A file of results, JSON or YAML.

    Args:
        path: where it lies.
        label: how cards call it, a path with ``/``.

    Raises:
        LossyError: no such file, or not an object.
    """

    def __init__(self, path: Path, label: str | None = None) -> None:
        self.path, self.label = path, label or path.name
        try:
            text = path.read_text(encoding="utf-8")
            self.data: dict[str, Any] = yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise LossyError(f"{path} can't be read ({error}): give a file of results") from error
        if not isinstance(self.data, dict):
            raise LossyError(f"{path} holds a {type(self.data).__name__}: it must be an object with results")

    def get(self, *keys: str | int) -> Any:
        """The value at a path of keys.

        Raises:
            LossyError: there is none.
        """
        value: Any = self.data
        for key in keys:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError) as error:
                raise LossyError(f"{self.label} has nothing at {'/'.join(map(str, keys))}: no {key!r}") from error
        return value

    def figure(self, *keys: str | int, form: str | Callable[[Any], str] = "") -> Figure:
        """The value at a path of keys as text.

        Args:
            form: a format specification, or what turns the value into text.
        """
        value = self.get(*keys)
        if value is None and not callable(form):
            raise LossyError(f"{self.label} holds null at {'/'.join(map(str, keys))}, which is no figure")
        return Figure(form(value) if callable(form) else format(value, form), self)

    def indices(self, *keys: str | int) -> range:
        """The indices of a list."""
        return range(len(self.get(*keys)))

    def provenance(self) -> list[tuple[str, dict[str, Any]]]:
        """Part and provenance of each part; of the whole file, or of the ``provenance.json`` beside it, under no name."""
        beside = self.path.with_name("provenance.json")
        if "provenance" not in self.data and self.path.name in ("summary.json", "config.yaml") and beside.is_file():
            return [("", File(beside).data)]
        if "command" in self.data:
            return [("", self.data)]
        own = [("", self.data["provenance"])] if "provenance" in self.data else []
        parts = [(name, part) for name, part in self.data.items() if isinstance(part, dict)]
        return [*own, *((name, part["provenance"]) for name, part in parts if "provenance" in part)]


@dataclass(frozen=True)
class Figure:
    """A value as a card prints it, and the file that it was read from. :meth:`File.figure` makes them.

    Raises:
        LossyError: there is no file.
    """

    text: str
    file: File

    def __post_init__(self) -> None:
        if not isinstance(self.file, File):
            raise LossyError(
                f"the figure {self.text!r} has no file it came from, got {self.file!r}: read it with File(path).figure(...)"
            )


@dataclass(frozen=True)
class Prose:
    """Markdown, and the files that its figures were read from. :func:`fill`, :func:`table` and :func:`code` make it."""

    text: str
    files: tuple[File, ...] = ()

    def __add__(self, other: Prose) -> Prose:
        """One block after the other."""
        texts = [text for text in (self.text, other.text) if text]
        return Prose("\n\n".join(texts), _different(*self.files, *other.files))


Value = Figure | Prose | str


def fill(template: str, **values: Value) -> Prose:
    """Paragraphs with figures in them, wrapped; a template's ``{name}`` is replaced by the value of that name.

    Raises:
        LossyError: a value that is a number, or text with a number in it, whose file nobody knows.
    """
    pieces: list[str] = []
    files: list[File] = []
    for literal, name, _, _ in Formatter().parse(template):
        pieces.append(_checked(literal))
        if name is not None:
            text, sources = _said(values[name])
            pieces.append(text)
            files += sources
    return Prose("\n\n".join(map(_wrapped, "".join(pieces).strip().split("\n\n"))), _different(*files))


def table(header: Sequence[Value], rows: Sequence[Sequence[Value]]) -> Prose:
    """A Markdown table.

    Raises:
        LossyError: as :func:`fill` does, and rows of another length than the header.
    """
    lines: list[str] = []
    files: list[File] = []
    for row in (header, *rows):
        if len(row) != len(header):
            raise LossyError(f"a row of {len(row)} cells under a header of {len(header)}: {row!r}")
        cells = [_said(value) for value in row]
        lines.append("| " + " | ".join(text.replace("|", "\\|") for text, _ in cells) + " |")
        files += [file for _, sources in cells for file in sources]
    return Prose("\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]]), _different(*files))


def code(source: str) -> Prose:
    """A block of Python, which has to compile; its digits are no figures."""
    compile(source, "<card>", "exec")
    return Prose(f"```python\n{source.strip()}\n```")


def bullets(*items: Prose) -> Prose:
    """A list."""
    text = "\n".join(textwrap.indent(item.text, "  ").replace("  ", "- ", 1) for item in items)
    return Prose(text, _different(*(file for item in items for file in item.files)))


def hardware(file: File, *keys: str | int) -> Figure:
    """What a result was measured on, from the provenance of a part: ``2 threads of …``, or the GPU."""

    def text(machine: dict[str, Any]) -> str:
        threads = machine["torch_threads"]
        return str(machine["gpu"] or f"{threads} thread{'s' * (threads > 1)} of {machine['cpu']}")

    return file.figure(*keys, "provenance", "machine", form=text)


def _said(value: Value) -> tuple[str, tuple[File, ...]]:
    if isinstance(value, Figure):
        return value.text, (value.file,)
    if isinstance(value, Prose):
        return value.text, value.files
    if isinstance(value, str):
        return _checked(value), ()
    raise LossyError(
        f"a card can't hold {value!r}, a {type(value).__name__} without a file it came from: read it with "
        "File(path).figure(...)"
    )


def _checked(text: str) -> str:
    bare = text
    for convention in CONVENTIONS:
        bare = bare.replace(convention, "")
    for found in _WORD.findall(bare):
        word = found.strip(".:?!")
        if any(c.isdigit() for c in word) and not _NAME.fullmatch(word):
            raise LossyError(
                f"the text {text.strip()[:80]!r} says {word!r}, and no file it came from: read it with "
                "File(path).figure(...)"
            )
    return text


def _wrapped(block: str) -> str:
    return textwrap.fill(block, WIDTH, break_long_words=False, break_on_hyphens=False)


def _different(*files: File) -> tuple[File, ...]:
    return tuple({file.label: file for file in files}.values())
