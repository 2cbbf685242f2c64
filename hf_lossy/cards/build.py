"""A card: its sections, its metadata, and the files that both were read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..errors import LossyError
from .figures import File, Prose, fill

TEMPLATE = Path(__file__).with_name("template.md")
SECTIONS = (
    "summary",
    "description",
    "sources",
    "direct_use",
    "downstream_use",
    "out_of_scope",
    "limitations",
    "recommendations",
    "start",
    "training",
    "testing_data",
    "factors",
    "metrics",
    "results",
    "environment",
    "specifications",
    "citation",
    "contact",
)
"""What a card has to say, the sections of the Hub's template."""
PAPERS = {
    "laws": "“Revisiting Lossy Verification in Speculative Decoding”, arXiv:2607.26627",
    "heads": (
        "“EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test”, arXiv:2503.01840"
    ),
}
CONTACT = fill("The issues of the repository that hf_lossy comes from.")


@dataclass(frozen=True)
class Card:
    """A finished card.

    Attributes:
        card: of ``huggingface_hub``.
        files: what its figures were read from.
    """

    card: ModelCard
    files: tuple[File, ...]

    def __str__(self) -> str:
        return str(self.card).rstrip() + "\n"


def build(title: str, data: ModelCardData, sections: Mapping[str, Prose]) -> Card:
    """A card from its sections; each is followed by the names of the files that its figures were read from.

    Raises:
        LossyError: a section that is missing, unknown or no :class:`Prose`; a result in the metadata that
            :func:`measured` did not make.
    """
    if wrong := sections.keys() ^ set(SECTIONS):
        raise LossyError(
            f"a card has the sections {', '.join(SECTIONS)}: missing or unknown {', '.join(sorted(wrong))}"
        )
    for name, section in sections.items():
        if not isinstance(section, Prose):
            raise LossyError(f"section {name!r} must be made by fill, table or code, got {type(section).__name__}")
    files = {file.label: file for section in sections.values() for file in section.files}
    for result in data.eval_results or []:
        if not isinstance(result, _Measured):
            raise LossyError(
                f"the result {result.metric_name or result.metric_type!r} names no file: make it with measured"
            )
        files[result.file.label] = result.file
    texts = {name: _with_files(section) for name, section in sections.items()}
    card = ModelCard.from_template(
        data, template_path=str(TEMPLATE), title=title, files=_listed([*files.values()]), **texts
    )
    return Card(card, tuple(files.values()))


class _Measured(EvalResult):
    """A result of the metadata that was read from a file."""

    file: File


def measured(file: File, *keys: str | int, interval: list[float] | None = None, **fields: Any) -> EvalResult:
    """A result for the metadata. Its ``metric_args`` say where its value stands: ``file``, and the ``key`` in it.

    Args:
        file, keys: where its value stands.
        interval: its 95 % interval.
        **fields: of ``EvalResult``.
    """
    where: dict[str, Any] = {"file": file.label, "key": "/".join(map(str, keys))}
    if interval is not None:
        where["interval_95"] = interval
    result = _Measured(task_type="text-generation", metric_value=file.get(*keys), metric_args=where, **fields)
    result.file = file
    return result


def _with_files(section: Prose) -> str:
    if not section.files:
        return section.text
    names = ", ".join(f"`{file.label}`" for file in section.files)
    return f"{section.text}\n\n*Figures: {names}.*"


def _listed(files: list[File]) -> str:
    if not files:
        return "This card has no figures."
    lines = ["| file | part | command | date | commit |", "|---|---|---|---|---|"]
    for file in files:
        known = file.provenance() or [("", {})]
        for part, made in known:
            command = f"`{made['command']}`" if "command" in made else "not recorded"
            date, commit = made.get("date", "not recorded"), made.get("commit") or "not recorded"
            lines.append(f"| `{file.label}` | {part} | {command.replace('|', chr(92) + '|')} | {date} | {commit} |")
    return "\n".join(lines)
