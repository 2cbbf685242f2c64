"""The letter of a multiple-choice answer."""

from __future__ import annotations

import re

from ..base import Score

LETTERS = "ABCD"
INSTRUCTION = (
    "Think it through briefly, then end with the line\n\nAnswer: X\n\nwhere X is the letter of the right option."
)

_ANNOUNCED = re.compile(
    r"""\\boxed\{\s*(?:\\text(?:bf)?\{)?\s*\(?([A-D])\b             # \boxed{B}, \boxed{\text{B}}
    |(?i:\banswer|\boption|\bchoice)\b(?:\s+(?i:is|option|choice|would\s+be)\b)*  # the correct answer is option
     [\s:*_("'`$\\{]*([A-D])(?![\w'])                                # : **B**""",
    re.VERBOSE,
)
_ALONE = re.compile(r"[\W_]*([A-D])[\W_]*")
_FIRST = re.compile(r"[*_(\s]*([A-D])[*_]*[).:]")


def letter(text: str) -> str | None:
    """The letter that a text gives as its answer, or None.

    The last one announced ("Answer: B", "the correct option is B", ``\\boxed{B}``); else a letter that is the whole text
    or its last line; else one at the start with a mark behind it ("B. Tirana").
    """
    found = [match.group(1) or match.group(2) for match in _ANNOUNCED.finditer(text)]
    if found:
        return found[-1]
    lines = text.strip().splitlines() or [""]
    alone = _ALONE.fullmatch(lines[-1])
    match = alone or _FIRST.match(text)
    return match.group(1) if match else None


def score_choice(answer: str, text: str) -> Score:
    """Compare a text's letter with the right one; nothing is guessed where there is none."""
    found = letter(text)
    return Score.unparsed("no letter") if found is None else Score(found == answer, True, found)
