"""A stopwatch that waits for accelerators."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def timed(call: Callable[[], T], device: torch.device) -> tuple[T, float]:
    """What a call returns, and its wall-clock seconds with all its work on a device done."""
    _synchronise(device)
    began = time.perf_counter()
    result = call()
    _synchronise(device)
    return result, time.perf_counter() - began


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
