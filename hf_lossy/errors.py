"""Errors that say what is wrong, what was given, what is allowed and how to fix it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LossyError(ValueError):
    """A wrong argument or an impossible combination. The message names the argument, the value, the allowed and the fix."""


def unknown(what: str, got: object, allowed: Iterable[str]) -> LossyError:
    """An error for a name that is not in a list, with the nearest one that is."""
    names = sorted(allowed)
    near = difflib.get_close_matches(str(got), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return LossyError(f"unknown {what} {got!r}: it must be one of {', '.join(map(repr, names))}.{hint}")
