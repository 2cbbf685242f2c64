"""INCLUDE: multiple-choice questions from exams in 44 languages; five of each unless told, which makes 220."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...errors import needs
from .base import Record, Task, ask, fingerprint, hub, interleaved, reaching, read, register
from .scorers.choice import INSTRUCTION, LETTERS, score_choice

_OPTIONS = ("option_a", "option_b", "option_c", "option_d")


def balanced(task: Task, path: Path | None) -> list[Record]:
    """The questions ordered so that a limit takes the same number of each language: the first of each, the second, ..."""
    groups: dict[str, list[Record]] = {}
    for record in _everything(task) if path is None else read(task, path):
        groups.setdefault(str(record.get("language")), []).append(record)
    return interleaved(groups[language] for language in sorted(groups))


def _everything(task: Task) -> Iterable[Record]:
    """On the Hub every language is a subset of its own."""
    needs("datasets", f"loading {task.dataset}", "eval")
    from datasets import get_dataset_config_names

    with reaching(task):
        languages = get_dataset_config_names(task.dataset, revision=task.revision)
    for language in languages:
        yield from hub(task, language)


def question(record: Record) -> str:
    """The question with its options."""
    options = [f"{letter}. {record[name]}" for letter, name in zip(LETTERS, _OPTIONS, strict=True)]
    return "\n".join([record["question"], "", *options])


register(
    Task(
        name="include",
        dataset="CohereLabs/include-base-44",
        license="Apache-2.0",
        fields=("language", "question", *_OPTIONS, "answer"),
        prompt=lambda record: ask(question(record), INSTRUCTION),
        item_id=lambda record: f"{record['language']}/{fingerprint(question(record))}",
        score=lambda record, text: score_choice(LETTERS[record["answer"]], text),
        gold=lambda record: f"Answer: {LETTERS[record['answer']]}",
        max_new_tokens=2048,
        default_limit=220,
        read=balanced,
    )
)
