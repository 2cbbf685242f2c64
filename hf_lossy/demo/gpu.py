"""ZeroGPU, where a Space runs on it: functions that need the GPU run in a process of their own."""

from __future__ import annotations

import importlib.util
import os
from typing import Any, TypeVar

F = TypeVar("F")
ZERO = bool(os.environ.get("SPACES_ZERO_GPU"))
"""Whether this is a ZeroGPU Space."""


def on_gpu(function: F) -> F:
    """The function with a GPU while it runs, where the ``spaces`` package is installed; else as it is."""
    if importlib.util.find_spec("spaces") is None:
        return function
    import spaces

    decorated: Any = spaces.GPU(function)
    return decorated
