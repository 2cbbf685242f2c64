"""What the commands share: options, parsing of laws, quiet loading."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Annotated, Any

import typer
from rich.console import Console

from ..errors import LossyError
from ..laws import Law, law, law_class
from ..loading import CHAT_PROMPTS, Pair, load_model, load_pair

console = Console()
status = Console(stderr=True)

PairOption = Annotated[
    str, typer.Option(help="A named pair: arithmetic, arithmetic-shortcut (embedded), qwen-coder, smollm2.")
]
TargetOption = Annotated[str | None, typer.Option(help="Target: a Hub id, a folder or a .gguf file.")]
DraftOption = Annotated[str | None, typer.Option(help="Draft for --target: a Hub id, a folder or a .gguf file.")]
DtypeOption = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, … or auto (device_map).")]
ThreadsOption = Annotated[int | None, typer.Option(help="Torch threads (default: 1 for embedded pairs, else all).")]


def open_pair(pair: str, target: str | None, draft: str | None, dtype: str, device: str, threads: int | None) -> Pair:
    """The pair that the options name, with transformers kept quiet and the threads set."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    embedded = target is None and pair.startswith("arithmetic")
    torch.set_num_threads(threads or (1 if embedded else os.cpu_count() or 1))
    if target is None:
        if draft is not None:
            raise LossyError(f"--draft {draft} needs --target as well: give both, or a named --pair")
        with status.status(f"loading {pair}"):
            return load_pair(pair, dtype)
    with status.status(f"loading {target}"):
        model, tokenizer = load_model(target, dtype, device)
    if draft is None:
        lookup: dict[str, Any] = {"prompt_lookup_num_tokens": 7}
        loaded = Pair(f"{target} (prompt lookup)", model, None, tokenizer, [], lookup)
    else:
        with status.status(f"loading {draft}"):
            small, other = load_model(draft, dtype, device)
        both = {"tokenizer": tokenizer, "assistant_tokenizer": other}
        loaded = Pair(f"{target} with {draft}", model, small, tokenizer, [], both)
    return dataclasses.replace(loaded, prompts=[loaded.chat(p) for p in CHAT_PROMPTS])


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
