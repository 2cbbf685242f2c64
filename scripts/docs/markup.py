"""From the docstrings' notation to that of the site: formulas in Unicode to TeX, arXiv numbers to links."""

from __future__ import annotations

import re
from collections.abc import Collection

SYMBOLS = {
    "π": r"\pi ", "λ": r"\lambda ", "ℓ": r"\ell ", "ε": r"\varepsilon ", "δ": r"\delta ", "α": r"\alpha ", "γ": r"\gamma ",
    "Δ": r"\Delta ", "Σ": r"\textstyle\sum ", "√": r"\sqrt ", "·": r"\cdot ", "−": "-", "≥": r"\ge ", "≤": r"\le ",
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∝": r"\propto ", "½": r"\tfrac12 ", "∞": r"\infty ",
    "{": r"\{", "}": r"\}", "%": r"\%", "#": r"\#", "&": r"\&",
}  # fmt: skip
OPERATORS = {"min", "max", "exp", "log", "argmax", "TV", "KL"}
GREEK = {"alpha", "beta", "gamma", "delta", "epsilon", "lambda", "mu", "nu", "rho", "sigma", "tau"}
ARXIV = re.compile(r"(?<![\w./])(\d{4}\.\d{5})(?!\d)")
RELATION = re.compile(r"[=∝≤≥]")
COMMA = r",\ "
TOKEN = re.compile(
    r"""(?P<quoted>"[^"]*")|(?P<indicator>1_[A-Z])|(?P<number>\d+(?:\.\d+)?(?:e[-+]?\d+)?)|(?P<word>[A-Za-z]\w*)"""
    r"""|(?P<power>\^\()|(?P<positive>\)\+)|(?P<close>\))|(?P<open>\()|(?P<space>\s+)|(?P<other>.)""",
    re.VERBOSE,
)


def linked(text: str) -> str:
    """Text with its arXiv numbers as links."""
    return ARXIV.sub(r"[\1](https://arxiv.org/abs/\1)", text)


def display(lines: Collection[str], parameters: Collection[str] = ()) -> str:
    """A block of formulas, one a line, as one display.

    Two spaces or more part a line into columns, as in the docstrings. Where no line has columns, all are aligned at their
    first relation.

    Args:
        lines: the formulas, without the indentation of the block.
        parameters: names that stand for quantities; other words are prose.
    """
    rows = [re.split(r"\s{2,}", line) for line in lines]
    if all(len(row) == 1 for row in rows):
        body = r" \\ ".join(aligned(row[0], parameters) for row in rows)
        return rf"\begin{{aligned}} {body} \end{{aligned}}"
    width = max(len(row) for row in rows)
    padded = [[""] * (width - len(row)) + row for row in rows]
    body = r" \\ ".join(r" &\quad ".join(inline(cell, parameters) for cell in row) for row in padded)
    return rf"\begin{{array}}{{{'l' * width}}} {body} \end{{array}}"


def aligned(line: str, parameters: Collection[str]) -> str:
    """A formula with an alignment mark before its first relation."""
    relation = RELATION.search(line)
    if relation is None:
        return "& " + inline(line, parameters)
    return inline(line[: relation.start()], parameters) + "& " + inline(line[relation.start() :], parameters)


def inline(text: str, parameters: Collection[str] = ()) -> str:
    """One formula. A character that is not known is left as it is."""
    out: list[str] = []
    prose: list[str] = []  # words that follow one another become one \text, with the spaces around them
    closing: list[str] = []  # what each open parenthesis ends with
    spaced = False

    def flush(after: str) -> None:
        if prose:
            out.append(rf"\text{{{''.join(prose)}{after}}}")
            prose.clear()

    for match in TOKEN.finditer(text):
        kind, token, gap = match.lastgroup, match.group(), " " if spaced else ""
        spaced = kind == "space"
        if spaced:
            continue
        if kind == "word" and _is_prose(token, parameters):
            first = not prose and (not out or out[-1] == COMMA)
            prose.append(("" if first else gap) + token.replace("_", r"\_"))
            continue
        flush(gap)
        if kind == "quoted":
            out.append(rf"\text{{“{token[1:-1]}”}}")
        elif kind == "number":
            mantissa, _, exponent = token.partition("e")
            out.append(f"{'' if mantissa == '1' else mantissa}10^{{{exponent}}}" if exponent else token)
        elif kind == "indicator":
            out.append(rf"\mathbf{{1}}_{{{token[2:]}}}")
        elif kind == "word":
            out.append(_symbol(token))
        elif kind == "power":
            out.append("^{")
            closing.append("}")
        elif kind == "open":
            out.append("(")
            closing.append(")")
        elif kind in ("close", "positive"):
            out.append(closing.pop() if closing else ")")
            out.append("_{+}" if kind == "positive" else "")
        elif token == ",":
            out.append(COMMA)
        else:
            out.append(SYMBOLS.get(token, token))
    flush("")
    return "".join(out)


def _is_prose(word: str, parameters: Collection[str]) -> bool:
    return len(word) > 1 and word not in OPERATORS and word not in parameters and word not in GREEK


def _symbol(word: str) -> str:
    if word in ("min", "max", "exp", "log"):
        return rf"\{word} "
    if word in OPERATORS:
        return rf"\operatorname{{{word}}} "
    if word in GREEK:
        return rf"\{word} "
    if len(word) == 1:
        return word
    head, _, tail = word.partition("_")
    name = head if len(head) == 1 else rf"\textit{{{head}}}"
    return f"{name}_{{\\text{{{tail}}}}}" if tail else name
