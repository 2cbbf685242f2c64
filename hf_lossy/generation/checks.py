"""What an option's value may be: each check returns the value to use, or raises an error that names the option."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

from ..errors import LossyError, unknown

Check = Callable[[str, Any], Any]
"""From an option's name and the value that was given to the value that is used."""


def among(*allowed: str) -> Check:
    """One of some names."""

    def check(name: str, value: Any) -> Any:
        if value not in allowed:
            raise unknown(name, value, allowed)
        return value

    return check


def whole(low: int) -> Check:
    """A whole number of at least ``low``."""

    def check(name: str, value: Any) -> int:
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < low:
            raise LossyError(f"{name} must be a whole number of at least {low}, got {value!r}")
        return int(value)

    return check


def number(high: float = math.inf) -> Check:
    """A finite number from 0 to ``high``."""

    def check(name: str, value: Any) -> Any:
        sound = isinstance(value, numbers.Real) and not isinstance(value, bool) and 0 <= float(value) <= high
        if not (sound and math.isfinite(value)):
            raise LossyError(f"{name} must be {'at least 0' if high > 1 else 'in [0, 1]'}, got {value!r}")
        return value

    return check


def instance(kind: type, also: Callable[[Any], bool] = lambda value: False) -> Check:
    """An instance of a class, or what does as well."""

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kind) and not also(value):
            raise LossyError(f"{name} must be a {kind.__name__}, got the {type(value).__name__} {value!r}")
        return value

    return check
