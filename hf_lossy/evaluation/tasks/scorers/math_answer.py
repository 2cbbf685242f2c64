"""Mathematical answers in LaTeX, compared by ``math-verify``."""

from __future__ import annotations

import re
import threading
from functools import lru_cache
from typing import Any

from ....errors import needs
from ..base import Score

INSTRUCTION = r"Reason step by step, and put the final answer in \boxed{}."
SECONDS = 5
"""Limit for reading an answer and for each comparison; ``math-verify`` keeps it by SIGALRM, in the main thread only."""


_THIN_SPACE = re.compile(r"(?<=\d)\\[,;:]\s*(?=\d{3}(?!\d))")
"""Between thousands: ``math-verify`` knows ``1,000`` and ``1{,}000``, but reads ``1\\,000`` as two numbers."""


def boxed(text: str) -> str | None:
    r"""What the last closed ``\boxed{...}`` holds, or None."""
    pieces = text.split(r"\boxed{")
    for piece in reversed(pieces[1:]):
        depth = 1
        for i, character in enumerate(piece):
            depth += (character == "{") - (character == "}")
            if depth == 0:
                return piece[:i]
    return None


def score_math(answer: str, text: str) -> Score:
    r"""Compare the last ``\boxed{...}`` of a text with an answer; where there is none, what is announced as the answer.

    Args:
        answer: the right one, in LaTeX without dollars; it is parsed first and decides how the other one is read.
        text: what the model wrote. A number that merely stands in it is no answer.
    """
    needs("math_verify", "marking mathematical answers", "eval", package="math-verify")
    from math_verify import verify

    seconds = SECONDS if threading.current_thread() is threading.main_thread() else None
    right = _parse(rf"\boxed{{{answer}}}", seconds)
    inside = boxed(text)
    found = _parse(text if inside is None else rf"\boxed{{{_THIN_SPACE.sub('', inside)}}}", seconds)
    if not found:
        return Score.unparsed("no answer" if inside is None else f"can't be read: {inside[:100]}")
    equal = bool(right) and bool(verify(right, found, timeout_seconds=seconds))
    # not str() of an expression, which can take forever
    read = inside or next((one for one in found if isinstance(one, str)), "")
    return Score(equal or inside == answer, True, read[:100])


def _parse(text: str, seconds: int | None) -> list[Any]:
    from math_verify import parse

    found: list[Any] = parse(text, _extraction(), parsing_timeout=seconds)
    return found


@lru_cache(maxsize=1)
def _extraction() -> tuple[Any, ...]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig

    return (
        LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False),
        ExprExtractionConfig(try_extract_without_anchor=False),
    )
