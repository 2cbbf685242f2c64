"""GSM8K: grade-school word problems with a number as the answer."""

from __future__ import annotations

import re

from ...errors import LossyError
from .base import Record, Score, Task, ask, fingerprint, register
from .scorers.math_answer import INSTRUCTION, boxed, score_math

_MARK = "####"
_NUMBER = r"[\s*$\\]*(-?\$?\d[\d.,]*)"
_MARKED = re.compile(_MARK + _NUMBER)
_WITH_UNIT = re.compile(rf"\A{_NUMBER}\s+[A-Za-z][A-Za-z .]*\Z")


def number(record: Record) -> str:
    """The number after ``####``."""
    _, mark, after = record["answer"].rpartition(_MARK)
    if not mark:
        raise LossyError(f"the answer {record['answer'][-60:]!r} does not end in '#### N': give openai/gsm8k's column")
    return str(after.strip())


def score(record: Record, text: str) -> Score:
    """Marks the last ``\\boxed``, of which a number may have its unit beside it ("18 dollars", which would be read as a
    product of letters); a text without one may end in ``#### N``, as in the data set."""
    inside = boxed(text)
    numbers = _MARKED.findall(text) if inside is None else _WITH_UNIT.findall(inside)
    if numbers:
        text = rf"\boxed{{{numbers[-1].replace('$', '').strip('.,')}}}"
    return score_math(number(record), text)


def gold(record: Record) -> str:
    """The data set's working, with the answer in a box."""
    working = re.sub(r"<<.*?>>", "", record["answer"].rpartition(_MARK)[0])
    return rf"{working.strip()} The answer is \boxed{{{number(record)}}}."


register(
    Task(
        name="gsm8k",
        dataset="openai/gsm8k",
        subset="main",
        license="MIT",
        fields=("question", "answer"),
        prompt=lambda record: ask(record["question"], INSTRUCTION),
        item_id=lambda record: fingerprint(record["question"]),
        score=score,
        gold=gold,
        max_new_tokens=1024,
    )
)
