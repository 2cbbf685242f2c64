"""MATH-500: competition problems with an answer in LaTeX."""

from __future__ import annotations

from .base import Task, ask, register
from .scorers.math_answer import INSTRUCTION, score_math

register(
    Task(
        name="math500",
        dataset="HuggingFaceH4/MATH-500",
        license="MIT",
        fields=("problem", "answer", "solution", "unique_id"),
        prompt=lambda record: ask(record["problem"], INSTRUCTION),
        item_id=lambda record: record["unique_id"],
        score=lambda record, text: score_math(record["answer"], text),
        gold=lambda record: record["solution"],
        max_new_tokens=2048,
    )
)
