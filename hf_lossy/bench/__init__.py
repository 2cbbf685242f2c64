"""Side-by-side measurements, used by ``hf-lossy bench``: every figure is a ratio of things run in turn in one process.

``throughput``: tokens/s against transformers' own assisted generation and plain decoding, and the share of a round that
is spent outside the models. ``coupling``: the time of one coupling in units of two softmaxes. ``efficiency``: tokens a
round of the block, token and reference couplings at equal law. ``trees``: what an EAGLE-3 head is worth: acceptance and
speed of chains and trees, and the laws on a tree. ``batches``: batches against one at a time, and the schedule ``expected``
against fixed draft lengths. ``compiled``: ``torch.compile`` on every side. ``memory``: what a long text takes beside its
caches. ``report``: which of them on which pair, and the files.
"""

from __future__ import annotations

from .batches import measure_batches, measure_schedule
from .compiled import measure_compiled
from .coupling import measure_coupling
from .efficiency import expected_tokens, measure_efficiency
from .memory import measure_memory
from .outside import outside_forwards
from .report import PARTS, RESULTS, Settings, defaults, measure_pair, save, with_provenance
from .throughput import measure_throughput
from .trees import measure_trees

__all__ = [
    "PARTS",
    "RESULTS",
    "Settings",
    "defaults",
    "expected_tokens",
    "measure_batches",
    "measure_compiled",
    "measure_coupling",
    "measure_efficiency",
    "measure_memory",
    "measure_pair",
    "measure_schedule",
    "measure_throughput",
    "measure_trees",
    "outside_forwards",
    "save",
    "with_provenance",
]
