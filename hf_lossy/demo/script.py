"""A column as Python: the call of ``generate`` that it made."""

from __future__ import annotations

from typing import Any

from .models import Models
from .runs import TARGET, Request, Way

_PAIR = {"assistant_model": "pair.draft", "tokenizer": "pair.tokenizer"}


def script(models: Models, request: Request, way: Way) -> str:
    """A program that writes the text of a column: loading, prompt, call, decoding."""
    pair = models.pairs[way.draft]
    text = f"pair.chat({quoted(request.prompt)})" if request.chat else quoted(request.prompt)
    plain = way.law == TARGET
    load = models.code[way.draft]
    functions = ", ".join(name for name in ("load_pair", "pair_of", "with_draft") if f"{name}(" in load)
    seed = [f"torch.manual_seed({request.seed})"] if plain else []
    arguments = {name: _written(name, value) for name, value in request.arguments(pair, way).items()}
    if not plain:
        where = "" if pair.target.device.type == "cpu" else "pair.target.device"
        arguments["generator"] = f"torch.Generator({where}).manual_seed({request.seed})"
    call = "pair.target.generate(" if plain else "hf_lossy.generate(\n    pair.target,"
    lines = [
        "import torch",
        *([] if plain else ["", "import hf_lossy"]),
        f"from hf_lossy.loading import {functions}",
        "",
        f"pair = {load}",
        f"inputs = pair.inputs({text})",
        *seed,
        f"out = {call}",
        "    **inputs,",
        *(f"    {name}={value}," for name, value in arguments.items()),
        ")",
        'print(pair.tokenizer.decode(out[0, inputs["input_ids"].shape[1] :]))',
    ]
    return "\n".join(lines) + "\n"


def _written(name: str, value: Any) -> str:
    if name == "assistant_tokenizer":
        return 'pair.generate["assistant_tokenizer"]'
    return _PAIR.get(name) or quoted(value)


def quoted(value: Any) -> str:
    """A value as Python, with double quotes as the formatters have it."""
    written = repr(value)
    return written if '"' in written else written.replace("'", '"')
