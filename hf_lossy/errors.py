"""Errors that say what is wrong, what was given, what is allowed and how to fix it."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterable


class LossyError(ValueError):
    """A wrong argument or an impossible combination. The message names the argument, the value, the allowed and the fix."""


def unknown(what: str, got: object, allowed: Iterable[str]) -> LossyError:
    """An error for a name that is not in a list, with the nearest one that is."""
    names = sorted(allowed)
    near = difflib.get_close_matches(str(got), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return LossyError(f"unknown {what} {got!r}: it must be one of {', '.join(map(repr, names))}.{hint}")


def needs(module: str, what: str, extra: str, package: str | None = None) -> None:
    """Raise unless the package of an optional extra is installed.

    Args:
        module: what would be imported, ``"optimum.quanto"``.
        what: who needs it, the subject of the sentence.
        extra: the extra of ``hf-lossy`` that brings it.
        package: its name for ``pip`` where that is not the module's.
    """
    try:
        found = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it
        found = False
    if not found:
        raise LossyError(f"{what} needs the package {package or module}: pip install 'hf-lossy[{extra}]'")
