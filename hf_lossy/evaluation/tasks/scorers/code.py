"""Python code, run with tests behind it in the sandbox."""

from __future__ import annotations

import ast
import os
import re
import textwrap
import warnings
from collections.abc import Callable

from ....errors import LossyError
from ..base import Score

INSTRUCTION = "Give the code in one ```python block."
UNPARSABLE = (SyntaxError, ValueError, MemoryError, RecursionError)
"""What parsing raises: wrong syntax, null bytes, too deep nesting."""
PYTHON = ("", "python", "python3", "py")
"""What a block of Python is called, in small letters."""
_BLOCK = re.compile(r"```[ \t]*([\w+#.-]*)[^\n`]*\n(.*?)(?:(?:^|\n)[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)


def fenced(code: str) -> str:
    """Code in a block."""
    return f"```python\n{code.strip(chr(10))}\n```"


def code_in(text: str) -> str | None:
    """The code of an answer, or None: its blocks one after the other, or the whole text where it has none.

    All blocks, since a helper may stand in one of its own; those of another language (a shell command) are left out, and so
    is one that is no Python (an output) where others are. A block that is not closed goes to the end of the text; one that
    is indented, in a list, is read without its indentation.
    """
    blocks = [
        textwrap.dedent(code) if code[:1].isspace() else code
        for language, code in _BLOCK.findall(text)
        if language.lower() in PYTHON and code.strip()
    ]
    if not blocks:
        return text if text.strip() and syntax_error(text) is None else None
    good = [block for block in blocks if syntax_error(block) is None]
    return "\n\n".join(good or blocks[-1:])


def parse(code: str) -> ast.Module:
    """``ast.parse`` without its warnings, which concern nobody here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)


def syntax_error(code: str) -> str | None:
    """What keeps a text from being Python, or None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(code, "<answer>", "exec", dont_inherit=True)  # notices more than parsing does: a return outside
    except UNPARSABLE as error:
        return f"{type(error).__name__}: {error}"
    return None


def score_code(text: str, program: Callable[[str], str]) -> Score:
    """Run an answer's code with its tests.

    Args:
        text: what the model wrote; code that is no Python counts as not parsed.
        program: puts the tests around the code.
    """
    if os.name != "posix":
        raise LossyError("running code needs Linux or macOS: the sandbox sets its limits with POSIX calls")
    from ...sandbox import run

    code = code_in(text)
    if code is None:
        return Score.unparsed("no code")
    if error := syntax_error(code):
        return Score.unparsed(error)
    result = run(program(code))
    last = result.stderr.strip().splitlines()[-1:] if result.status != "passed" else []
    return Score(result.passed, True, ": ".join([result.status, *last])[:300])
