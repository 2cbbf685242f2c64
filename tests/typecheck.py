"""What jaxtyping's import hook puts around the package's functions in tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

_checked = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float


def shapes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check shapes and dtypes of tensors. Functions without tensors say themselves what they refuse: let alone."""
    has_tensors = any("Tensor" in str(a) for a in function.__annotations__.values())
    return _checked(function) if has_tensors else function
