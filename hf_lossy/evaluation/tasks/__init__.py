"""Tasks: what is asked and how an answer is marked. One file a task, each registering itself.

``task_named("gsm8k")`` is a task, ``names()`` lists them, ``load(task)`` gives its items. A file put into this folder that
calls ``register`` is found by itself. How answers are read and compared stands in ``scorers``.
"""

from __future__ import annotations

import importlib
import pkgutil

from .base import Item, Prompt, Record, Score, Task, load, names, register, task_named

for _module in sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.ispkg):
    importlib.import_module(f"{__name__}.{_module}")

__all__ = ["Item", "Prompt", "Record", "Score", "Task", "load", "names", "register", "task_named"]
