"""HumanEval: Python functions to complete from signature and docstring, with tests."""

from __future__ import annotations

import re
from functools import partial

from .base import Record, Task, ask, register
from .scorers.code import INSTRUCTION, fenced, score_code


def program(record: Record, code: str) -> str:
    """An answer with the prompt's imports and helpers before it and the tests behind it."""
    entry = record["entry_point"]
    before = re.split(rf"^def {entry}\b", record["prompt"], maxsplit=1, flags=re.MULTILINE)[0]
    return f"{before}{code}\n{record['test']}\ncheck({entry})\n"


register(
    Task(
        name="humaneval",
        dataset="openai/openai_humaneval",
        license="MIT",
        fields=("task_id", "prompt", "entry_point", "canonical_solution", "test"),
        prompt=lambda record: ask(
            "Complete this Python function.", fenced(record["prompt"]), f"Write the whole function. {INSTRUCTION}"
        ),
        item_id=lambda record: record["task_id"],
        score=lambda record, text: score_code(text, partial(program, record)),
        gold=lambda record: fenced(record["prompt"] + record["canonical_solution"]),
        max_new_tokens=2048,
    )
)
