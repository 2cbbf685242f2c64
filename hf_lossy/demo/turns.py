"""Turns: who may use the models now."""

from __future__ import annotations

import threading
import time
from collections import deque


class Turns:
    """A fair lock. Whoever asks waits until all who asked before have had their turn.

    Columns that are decoded at the same time take turns token by token, so that all of them are seen to grow, none slows
    another one down while its own clock runs, and no two forwards of one model run at once (the hidden states that an
    EAGLE-3 head reads are kept by hooks on its target).
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._taken = False

    def __enter__(self) -> None:
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            self._changed.wait_for(lambda: not self._taken and self._waiting[0] is ticket)
            self._waiting.popleft()
            self._taken = True

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._taken = False
            self._changed.notify_all()

    def pass_on(self) -> None:
        """Let everybody who is waiting have a turn, and go on after them."""
        if self._waiting:
            self.__exit__()
            self.__enter__()


class StopWatch:
    """Adds up the time between :meth:`start` and :meth:`stop`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began: float | None = None

    def start(self) -> None:
        """Go on."""
        self._began = time.perf_counter()

    def stop(self) -> None:
        """Pause; nothing where it is paused already."""
        if self._began is not None:
            self.seconds += time.perf_counter() - self._began
            self._began = None
