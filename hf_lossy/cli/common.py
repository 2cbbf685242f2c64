"""What the commands share: options, parsing of laws, quiet loading."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..errors import LossyError
from ..laws import Law, law, law_class
from ..loading import PAIRS, Pair, load_pair, pair_of, with_draft, with_quantised_draft
from ..quantization import WEIGHTS

T = TypeVar("T")
console = Console()
status = Console(stderr=True)

DEFAULT_PAIR = "arithmetic"
PairOption = Annotated[
    str | None, typer.Option(help=f"A named pair: {', '.join(PAIRS)} (default: {DEFAULT_PAIR}).", show_default=False)
]
TargetOption = Annotated[str | None, typer.Option(help="Target: a Hub id, a folder or a .gguf file.")]
DraftOption = Annotated[
    str | None,
    typer.Option(
        help="Draft for --target, or in place of --pair's: a Hub id, a folder or a .gguf file; EAGLE-3 heads too."
    ),
]
DtypeOption = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, … or auto (device_map).")]
DraftWeightsOption = Annotated[
    str | None, typer.Option(help=f"Quantise the draft's weights to {', '.join(WEIGHTS)} (extra quanto).")
]
ThreadsOption = Annotated[int | None, typer.Option(help="Torch threads (default: 1 for embedded pairs, else all).")]


def open_pair(
    pair: str | None,
    target: str | None,
    draft: str | None,
    dtype: str,
    device: str,
    threads: int | None,
    draft_quantization: str | None = None,
) -> Pair:
    """The pair that the options name, with transformers kept quiet and the threads set."""
    import torch
    import transformers

    if pair is not None and target is not None:
        raise LossyError(f"--pair {pair} and --target {target} both name a target: give one of them")
    if draft is not None and pair is None and target is None:
        raise LossyError(
            f"--draft {draft} needs --target as well, the model it drafts for, or a --pair to take it from"
        )
    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    named = pair or DEFAULT_PAIR
    embedded = target is None and named.startswith("arithmetic")
    torch.set_num_threads(threads or (1 if embedded else os.cpu_count() or 1))
    with status.status(f"loading {target or named}"):
        if target is not None:
            loaded = pair_of(target, draft, dtype, device)
        else:
            loaded = load_pair(named, dtype, device)
            loaded = loaded if draft is None else with_draft(loaded, draft, dtype, device)
        return loaded if draft_quantization is None else with_quantised_draft(loaded, draft_quantization)


def parse_law(text: str) -> Law:
    """A law from the command line: ``lenience``, ``lenience=0.4`` (its knob), ``speccascade=0.3,fallback=target``."""
    name, _, rest = text.partition("=")
    cls = law_class(name.strip())
    if not rest:
        return cls()
    parameters: dict[str, Any] = {}
    for i, part in enumerate(rest.split(",")):
        key, given, value = part.partition("=")
        if not given:
            if i or cls.knob is None:
                raise LossyError(f"--law {text}: {part!r} must be parameter=value")
            key, value = cls.knob, part
        parameters[key.strip()] = _value(value.strip())
    return law(cls.name, **parameters)


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return float(text)
    except ValueError:
        return text


def number(value: float | None, digits: int = 2) -> str:
    """A number for a table; a dash where there is none."""
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def interval(found: dict[str, Any] | None, digits: int) -> str:
    """A mean with half of its 95 % interval, for a table."""
    if found is None:
        return "–"
    half = found["half_width"]
    return number(found["mean"], digits) + ("" if half is None else f" ± {half:.{digits}f}")


def track(items: Sequence[T], description: str) -> Iterator[T]:
    """Go through items with a progress bar and the time left. It is redrawn between measurements only: a thread that redraws
    it would run during them."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=status, auto_refresh=False, transient=True) as progress:
        task = progress.add_task(description, total=len(items))
        progress.refresh()
        for item in items:
            yield item
            progress.advance(task)
            progress.refresh()
