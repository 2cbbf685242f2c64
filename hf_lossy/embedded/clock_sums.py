"""Clock sums: the task of the embedded models, small enough for two cores and easy to mark.

Add five numbers modulo 32, in any order, with written-out working. Every word is one token::

    <bos> 14 4 1 1 21 : from 21 also 14 = 3 also 1 makes 4 plus 1 = 5 add 4 gives 9 so 9 <eos>

The wording and the order are free, which gives a model a distribution worth keeping; the arithmetic is not, so a
verification rule that distorts the distribution shows up as a wrong digit. A legal *double step*,
``both n m <verb> total``, adds two numbers at once and is harder to get right.

This module imports nothing but the standard library: the corpus, the words and the marking in one place.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MODULUS = 32
OPERANDS = 5
PAD, BOS, EOS, COLON, BOTH = "<pad>", "<bos>", "<eos>", ":", "both"
OPENINGS = ("start", "from")
CONNECTORS = ("add", "then", "plus", "next", "also", "with", "now", "and")
VERBS = ("=", "gives", "makes", "is")
CLOSINGS = ("so", "total", "answer")
NUMBERS = tuple(str(n) for n in range(MODULUS))
WORDS = (PAD, BOS, EOS, COLON, *NUMBERS, *OPENINGS, *CONNECTORS, *VERBS, BOTH, *CLOSINGS)
"""The vocabulary, in token-id order: 54 words."""

MAX_NEW_TOKENS = 24
"""Enough for the longest correct working (21 tokens and ``<eos>``)."""

_OPERAND_WEIGHTS = [1 / (n + 6) for n in range(1, MODULUS)]


@dataclass(frozen=True)
class Corpus:
    """How a writer words the working: Zipf-like word frequencies and the rate of double steps.

    Args:
        double_rate: probability that a step takes two numbers at once, where two are left.
        reverse_wording: the rarest words become the commonest.
    """

    double_rate: float = 0.05
    reverse_wording: bool = False

    def _word(self, words: Sequence[str], rng: random.Random) -> str:
        weights = [1 / (rank + 1) for rank in range(len(words))]
        return rng.choices(words, weights[::-1] if self.reverse_wording else weights)[0]

    def working(self, operands: Sequence[int], rng: random.Random) -> list[str]:
        """A correct working of the sum, ending in ``<eos>``."""
        left = list(operands)
        rng.shuffle(left)
        total = left.pop()
        words = [self._word(OPENINGS, rng), str(total)]
        while left:
            taken = [left.pop()]
            if left and rng.random() < self.double_rate:
                taken.append(left.pop())
            total = (total + sum(taken)) % MODULUS
            lead = self._word(CONNECTORS, rng) if len(taken) == 1 else BOTH
            words += [lead, *map(str, taken), self._word(VERBS, rng), str(total)]
        return [*words, self._word(CLOSINGS, rng), str(total), EOS]


TARGET_CORPUS = Corpus()
SHORTCUT_CORPUS = Corpus(double_rate=0.25, reverse_wording=True)
"""Error-free as well, but fond of a risky legal short cut: a bias planted to make distortion visible."""


def problem(rng: random.Random) -> list[int]:
    """Five operands in 1..31, small ones likelier: P(n) ∝ 1/(n + 6)."""
    return rng.choices(range(1, MODULUS), _OPERAND_WEIGHTS, k=OPERANDS)


def problems(count: int, seed: int = 0) -> list[list[int]]:
    """``count`` problems, the same for the same seed."""
    rng = random.Random(seed)
    return [problem(rng) for _ in range(count)]


def prompt(operands: Sequence[int]) -> str:
    """The prompt text, ``"14 4 1 1 21 :"``; the tokenizer adds ``<bos>``."""
    return " ".join([*map(str, operands), COLON])


def operands_of(text: str) -> list[int] | None:
    """The numbers of a prompt, or None when the text is not a clock sum."""
    words = [w for w in text.split() if w != BOS]
    if len(words) < 2 or words[-1] != COLON or not all(w in NUMBERS for w in words[:-1]):
        return None
    return [int(w) for w in words[:-1]]


def answer(working: str) -> int | None:
    """The number just before the first ``<eos>`` (or the end), or None when there is no number there."""
    words = working.split(EOS)[0].split()
    return int(words[-1]) if words and words[-1] in NUMBERS else None


def is_correct(operands: Sequence[int], working: str) -> bool:
    """Right iff the working ends in the sum modulo 32."""
    return answer(working) == sum(operands) % MODULUS


Mistake = Literal["pick", "slip", "sum", "form"]


def first_mistake(operands: Sequence[int], working: str) -> tuple[int, Mistake] | None:
    """Where the working first goes wrong, as (word index, kind), or None.

    Kinds: ``pick`` a number repeated, left out or invented; ``slip`` a wrong double step; ``sum`` a wrong single step or
    a wrong final number; ``form`` words in an order that is no working at all.
    """
    words = working.split(EOS)[0].split()
    left, i = Counter(operands), 0

    def number_at(position: int) -> int | None:
        return int(words[position]) if position < len(words) and words[position] in NUMBERS else None

    def take(position: int) -> Mistake | None:
        n = number_at(position)
        if n is None:
            return "form"
        if not left[n]:
            return "pick"
        left[n] -= 1
        return None

    if not words or words[0] not in OPENINGS:
        return 0, "form"
    if kind := take(1):
        return 1, kind
    total, i = int(words[1]), 2
    while i < len(words) and words[i] not in CLOSINGS:
        count = 2 if words[i] == BOTH else 1
        if count == 1 and words[i] not in CONNECTORS:
            return i, "form"
        for position in range(i + 1, i + 1 + count):
            if kind := take(position):
                return position, kind
            total = (total + int(words[position])) % MODULUS
        i += 1 + count
        if i >= len(words) or words[i] not in VERBS:
            return i, "form"
        stated = number_at(i + 1)
        if stated != total:
            return i + 1, "form" if stated is None else ("slip" if count == 2 else "sum")
        i += 2
    if i >= len(words):
        return i, "form"
    if sum(left.values()):
        return i, "pick"
    if number_at(i + 1) != total:
        return i + 1, "sum"
    return None if i + 2 == len(words) else (i + 2, "form")
