"""Serves the demo for the browser tests, in a process of its own: ``python -m tests.demo_server PORT``.

Its backend has the embedded models, and the same ones made slow, so that there is something to stop.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
import time
from pathlib import Path

from hf_lossy.demo import Backend, build_demo, launch

SLOW = "Slow"


class Slowed(Backend):
    """A backend that also offers slow models."""

    def choices(self) -> list[tuple[str, str]]:
        return [*super().choices(), (SLOW, SLOW)]


def main(port: int) -> None:
    backend = Slowed(results=[Path(__file__).parents[1] / "docs/results"])
    models = backend.models("arithmetic")
    target = copy.deepcopy(models.first.target)
    target.register_forward_pre_hook(lambda *_: time.sleep(0.1))
    pairs = {name: dataclasses.replace(pair, target=target) for name, pair in models.pairs.items()}
    backend.add(SLOW, dataclasses.replace(models, title=SLOW, pairs=pairs))
    launch(build_demo(backend), server_port=port, quiet=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
