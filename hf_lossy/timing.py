"""A stopwatch that waits for accelerators, and how long a model's forwards take here: medians, interleaved, after a
warm-up."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from .cached_model import CachedModel
from .compat import default_cache
from .compiling import Compiling, cache_for
from .drafting import HeadRunner
from .eagle3 import Eagle3Head
from .errors import LossyError

T = TypeVar("T")


def timed(call: Callable[[], T], device: torch.device) -> tuple[T, float]:
    """What a call returns, and its wall-clock seconds with all its work on a device done."""
    _synchronise(device)
    began = time.perf_counter()
    result = call()
    _synchronise(device)
    return result, time.perf_counter() - began


@torch.no_grad()
def forward_seconds(
    model: PreTrainedModel,
    prefix: Int[Tensor, "batch length"],
    lengths: Sequence[int],
    repeats: int = 9,
    budget: float = 0.0,
    trees: bool = False,
    compiled: Compiling | None = None,
) -> dict[int, float]:
    """Median seconds of a forward over n new tokens a row after ``prefix``, for each n, repeats interleaved.

    Args:
        repeats, budget: so many repeats, and more until so many seconds are spent.
        trees: the tokens are the nodes of a tree, where there is more than one.
        compiled: how the forwards are compiled; None: they aren't.
    """
    rows = len(prefix)
    if compiled is not None:
        compiled = replace(compiled, size=max(compiled.size, prefix.shape[1] + max(lengths)))
    cached = CachedModel(model, cache_for(model, compiled), "model", rows=rows, compiled=compiled)
    cached(prefix)

    def forward(n: int) -> None:
        seen = torch.ones(rows, n, n, dtype=torch.bool).tril() if trees and n > 1 else None
        cached(prefix[:, -1:].expand(-1, n), logits=n, seen=seen)

    return _medians(lengths, forward, lambda: cached.crop([prefix.shape[1]] * rows), model.device, repeats, budget)


@torch.no_grad()
def head_seconds(
    target: PreTrainedModel,
    head: Eagle3Head,
    prefix: Int[Tensor, "batch length"],
    rows: Sequence[int],
    repeats: int = 9,
    budget: float = 0.0,
) -> dict[int, float]:
    """Median seconds of a head's step over n candidates of one level after ``prefix``, its logits included, for each n;
    repeats and budget as in :func:`forward_seconds`."""
    head.borrow_embedding(target)
    batch = len(prefix)
    cached = CachedModel(target, default_cache(target), "target", rows=batch, taps=head.config.taps)
    cached(prefix)
    runner = HeadRunner(head, cached, [0] * batch)
    y = runner.read(prefix, [prefix.shape[1]] * batch)
    if y is None:
        raise LossyError("a head needs two tokens at least, and the prompt has one: give a longer prompt")
    feature = head.feedback(y)

    def step(n: int) -> None:
        alone = torch.eye(n, dtype=torch.bool, device=head.device)
        head.logits(runner.step(feature.expand(-1, n, -1), prefix[:, -1:].expand(-1, n), 0, alone))

    return _medians(rows, step, lambda: runner.cache.crop(max(runner.stable)), head.device, repeats, budget)


def _medians(
    sizes: Sequence[int],
    call: Callable[[int], None],
    undo: Callable[[], None],
    device: torch.device,
    repeats: int,
    budget: float,
) -> dict[int, float]:
    """Median seconds of a call for each size, in turn, with what it left behind undone after each."""
    times: dict[int, list[float]] = {n: [] for n in sizes}
    for repeat in itertools.count():
        if repeat > repeats and sum(map(sum, times.values())) >= budget:
            break
        for n in sizes:
            _, seconds = timed(partial(call, n), device)
            if repeat:  # the first round is a warm-up
                times[n].append(seconds)
            undo()
    return {n: statistics.median(t) for n, t in times.items()}


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
