"""The letter of a multiple-choice answer."""

from __future__ import annotations

import re

from ..base import Score

LETTERS = "ABCD"
INSTRUCTION = (
    "Think it through briefly, then end with the line\n\nAnswer: X\n\nwhere X is the letter of the right option."
)

_LETTER = r"""(?:\s+(?i:is|option|choice|would\s+be)\b)*[\s:：*_(（"'`$\\{]*([A-D])(?![\w'])"""  # is: **B**
_ANSWER = re.compile(
    r"\\boxed\{\s*(?:\\text(?:bf)?\{)?\s*\(?([A-D])\b"  # \boxed{B}, \boxed{\text{B}}
    rf"|(?i:\banswer|\b(?:correct|right|best)\s+(?:option|choice)){_LETTER}"
)
_OPTION = re.compile(rf"(?i:\boption|\bchoice){_LETTER}")
_ALONE = re.compile(r"[\W_]*([A-D])[\W_]*")
_FIRST = re.compile(r"^[*_(\s]*([A-D])[*_]*[).:]", re.MULTILINE)


def letter(text: str) -> str | None:
    """The letter that a text gives as its answer, or None.

    The last one announced ("Answer: B", "the correct option is B", ``\\boxed{B}``); else a letter that is the whole text
    or its last line; else the only option that is spoken of ("I choose option B"), or that a line begins with
    ("B. Tirana"). Of several options nothing is guessed.
    """
    announced = [match.group(1) or match.group(2) for match in _ANSWER.finditer(text)]
    if announced:
        return announced[-1]
    alone = _ALONE.fullmatch((text.strip().splitlines() or [""])[-1])
    if alone:
        return alone.group(1)
    for pattern in (_OPTION, _FIRST):
        spoken_of = set(pattern.findall(text))
        if spoken_of:
            return spoken_of.pop() if len(spoken_of) == 1 else None
    return None


def score_choice(answer: str, text: str) -> Score:
    """Compare a text's letter with the right one; nothing is guessed where there is none."""
    found = letter(text)
    return Score.unparsed("no letter") if found is None else Score(found == answer, True, found)
