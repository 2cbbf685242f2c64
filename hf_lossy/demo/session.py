"""What belongs to one visitor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .models import DEFAULT
from .runs import Run


@dataclass
class Session:
    """One visitor's state; gradio keeps one for each open page and hands it to nobody else.

    Attributes:
        models: key of the chosen models.
        run: the last comparison.
        started: how many comparisons were started; an older one ends when a newer one begins.
        stopping: the stop button was pressed.
        row: what the law tab shows, (run, column, position, p, q).
    """

    models: str = DEFAULT
    run: Run | None = None
    started: int = 0
    stopping: bool = False
    row: tuple[Run, int, int, Any, Any] | None = None
