"""What a target and a draft cost here and how well they agree: measured once, before the first call that goes by it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from ..compiling import Compiling
from ..drafting.schedule import Costs, Expected, ExpectedTree
from ..timing import forward_seconds, head_seconds
from .options import is_head, position_limit
from .statistics import Round

PROMPT, SECONDS = 64, 0.5
"""Tokens of the prompt that forwards are timed after, and how long small models are timed: theirs vary most."""
TEXT = 32
"""Tokens of the text that shows how much the target keeps of what is drafted."""
_known: WeakKeyDictionary[PreTrainedModel, dict[Any, Costs]] = WeakKeyDictionary()
_measuring = threading.Lock()


def costs(
    target: PreTrainedModel,
    draft: PreTrainedModel | None,
    prompt: Int[Tensor, "batch length"],
    write: Callable[[], Sequence[Round]],
    top_k: int | None = None,
    compiled: Compiling | None = None,
) -> Costs:
    """Forward times and acceptance of a target and a draft (None: a lookup), measured at the first call for them, a number
    of rows and a kind of draft; later calls get the same, so that a seed makes the same choices.

    Args:
        prompt: of the call.
        write: the rounds of a short greedy text after it, with a draft of fixed length.
        top_k: candidates that a level of a tree expands; None: chains.
        compiled: how the call's forwards are compiled; None: they aren't.
    """
    key = (None if draft is None else weakref.ref(draft), len(prompt), top_k, compiled is not None)
    if key not in _known.get(target, {}):  # who finds it waits for nobody's measurement
        with _measuring:
            known = _known.setdefault(target, {})
            if key not in known:
                known[key] = measured(target, draft, prompt[:, -PROMPT:], write, top_k, compiled)
    return _known[target][key]


def measured(
    target: PreTrainedModel,
    draft: PreTrainedModel | None,
    prompt: Int[Tensor, "batch length"],
    write: Callable[[], Sequence[Round]],
    top_k: int | None,
    compiled: Compiling | None = None,
) -> Costs:
    """As :func:`costs`, measured now."""
    # a CPU may read three tokens in the time of one, and take half as long again for four
    sizes = [1, 2, 3, 4, 8, *([Expected.READS] if top_k is None else [16, 32, ExpectedTree.READS])]
    effort: dict[str, Any] = {"repeats": 3, "budget": SECONDS}
    if (limit := position_limit(target, draft)) is not None:
        sizes = [n for n in sizes if n < limit]
        prompt = prompt[:, sizes[-1] - limit :]
    verify = forward_seconds(target, prompt, sizes, **effort, trees=top_k is not None, compiled=compiled)
    step = {1: 0.0}
    if draft is not None and is_head(draft):
        if prompt.shape[1] < 2:
            prompt = prompt.expand(-1, 2)  # a head needs two tokens
        step = head_seconds(target, draft, prompt, sorted({1, top_k or 1}), **effort)
    elif draft is not None:
        step = forward_seconds(draft, prompt, [1], **effort, compiled=compiled)
    # (how much is kept of what a lookup finds depends on what it finds)
    return Costs(verify, step, () if draft is None else tuple((r.accepted, r.levels) for r in write()))
