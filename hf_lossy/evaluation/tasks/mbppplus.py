"""MBPP+: short Python functions with EvalPlus' tests, which are many more than MBPP's."""

from __future__ import annotations

from functools import partial

from .base import Record, Task, ask, register
from .scorers.code import INSTRUCTION, fenced, score_code


def program(record: Record, code: str) -> str:
    """An answer with the base tests and the plus tests behind it."""
    return "\n".join([code, *record["test_imports"], *record["test_list"], record["test"]])


register(
    Task(
        name="mbppplus",
        dataset="evalplus/mbppplus",
        license="CC-BY-4.0 (MBPP), Apache-2.0 (EvalPlus)",
        fields=("task_id", "code", "prompt", "test_imports", "test_list", "test"),
        prompt=lambda record: ask(
            record["prompt"], f"It must satisfy this assertion:\n\n{fenced(record['test_list'][0])}", INSTRUCTION
        ),
        item_id=lambda record: str(record["task_id"]),
        score=lambda record, text: score_code(text, partial(program, record)),
        gold=lambda record: fenced(record["code"]),
        max_new_tokens=4000,
    )
)
