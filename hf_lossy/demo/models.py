"""The models that the page offers: what is installed here, and what a user names."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from ..eagle3 import Eagle3Head
from ..embedded import clock_sums
from ..errors import LossyError, unknown
from ..fit import Check, checks, head_checks
from ..generation.options import position_limit
from ..loading import (
    CHAT_PROMPTS,
    CODE_PROMPTS,
    Pair,
    draft_outline,
    installed,
    load_pair,
    outline,
    pair_of,
    with_draft,
)
from .turns import Turns

LOOKUP = "prompt lookup"
DEFAULT = "arithmetic"
KEPT = 2
"""How many of the models that users named stay in memory."""


@dataclass(frozen=True)
class Family:
    """A target that comes with several drafts: what it is called, and the named pair of each draft."""

    title: str
    pairs: dict[str, str]
    prompts: Sequence[str]


FAMILIES = {
    "arithmetic": Family(
        "Clock sums (embedded, tiny)",
        {"natural": "arithmetic", "shortcut": "arithmetic-shortcut", "EAGLE-3 head": "arithmetic-eagle3"},
        [clock_sums.prompt(s) for s in clock_sums.problems(4, seed=1)],
    ),
    "smollm2": Family("SmolLM2-135M-Instruct", {"EAGLE-3 head": "smollm2-eagle3"}, CHAT_PROMPTS[1:5]),
    "qwen-coder": Family("Qwen2.5-Coder-1.5B-Instruct", {"0.5B": "qwen-coder"}, CODE_PROMPTS[:4]),
}


@dataclass(frozen=True)
class Models:
    """A target with its drafts, loaded.

    Attributes:
        title: what it is called on the page.
        pairs: the pair of each draft, by what the draft is called; all have the same target.
        code: Python that loads the same pair, by draft.
        prompts: examples.
        threads: torch threads that suit it.
    """

    title: str
    pairs: dict[str, Pair]
    code: dict[str, str]
    prompts: Sequence[str]
    threads: int

    @property
    def first(self) -> Pair:
        """The pair of the first draft."""
        return next(iter(self.pairs.values()))

    @property
    def arithmetic(self) -> bool:
        """Whether prompts are clock sums, whose answers can be checked."""
        return self.first.arithmetic

    def inspected(self) -> dict[str, list[Check]]:
        """Whether each draft fits the target, as ``hf-lossy inspect`` tells it; prompt lookup has nothing to fit."""
        found = {}
        for name, pair in self.pairs.items():
            if pair.draft is not None:
                other = pair.generate.get("assistant_tokenizer", pair.tokenizer)
                found[name] = _checked(pair.target, pair.draft, pair.tokenizer, other)
        return found

    def limit(self, draft: str) -> int | None:
        """The most tokens that target and draft take, prompt included; None where neither says."""
        pair = self.pairs[draft]
        return position_limit(pair.target, pair.draft)


class Backend:
    """What the page works with: loaded models, shared by all sessions, and the turns in which they are used.

    Args:
        first: the models a session begins with.
        dtype, device: of the models that are installed here, as in :func:`hf_lossy.loading.load_pair`.
        results: folders of ``hf-lossy evaluate``, or folders of such folders.
        local: whether users may name files of this machine; not where strangers are let in.
    """

    def __init__(
        self,
        first: str = DEFAULT,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        results: Sequence[Path] = (),
        local: bool = True,
    ) -> None:
        self.first, self.dtype, self.device, self.local = first, dtype, device, local
        self.results = [Path(folder) for folder in results]
        self.turns = Turns()
        self._families: dict[str, Models] = {}
        self._named: OrderedDict[str, Models] = OrderedDict()
        self._loading = threading.Lock()
        transformers.utils.logging.disable_progress_bar()

    def choices(self) -> list[tuple[str, str]]:
        """Titles and keys of the models that can be had without naming any."""
        return [(f.title, key) for key, f in FAMILIES.items() if all(installed(name) for name in f.pairs.values())]

    def add(self, key: str, models: Models) -> None:
        """Offer models that were made elsewhere."""
        self._families[key] = models

    def models(self, key: str) -> Models:
        """The models of a key from :meth:`choices` or :meth:`name`, loaded when they are first asked for.

        Raises:
            LossyError: models that can't be loaded.
        """
        with self._loading:
            if key in self._families:
                return self._families[key]
            if key in FAMILIES:
                self._families[key] = self._family(FAMILIES[key])
                return self._families[key]
            if key.count("\n") != 2:
                raise unknown("models", key, [*FAMILIES, *self._families])
            if key not in self._named:
                self._named[key] = self._load(*_split(key))
            self._named.move_to_end(key)
            while len(self._named) > KEPT:
                self._named.popitem(last=False)
            return self._named[key]

    def name(self, target: str, draft: str, dtype: str) -> str:
        """The key of models that a user names by Hub ids or folders; without a draft the prompt is looked up.

        Raises:
            LossyError: no target, or a file of this machine where that is not allowed.
        """
        target, draft = target.strip(), draft.strip()
        if not target:
            raise LossyError("no target: give a Hub id such as HuggingFaceTB/SmolLM2-360M-Instruct, or a folder")
        if not self.local:
            for name in filter(None, (target, draft)):
                if Path(name).expanduser().exists() or name.startswith((".", "/", "~")):
                    raise LossyError(f"{name} is a path on this machine, which is not open here: give a Hub id")
        return "\n".join((target, draft, dtype))

    def check(self, key: str) -> list[Check]:
        """Whether a target and a draft that a user named fit, from their configurations and tokenizers: no weights of
        either are read, except those of an EAGLE-3 head.

        Raises:
            LossyError: a source that can't be read.
        """
        source, draft, dtype = _split(key)
        target, tokenizer = outline(source, dtype)
        if not draft:
            return [Check("size", f"{_size(target)} / no draft: the prompt is looked up", True)]
        small, other = draft_outline(draft, target, dtype)
        return _checked(target, small, tokenizer, other)

    def _family(self, family: Family) -> Models:
        target = None
        pairs = {}
        for draft, name in family.pairs.items():
            pair = load_pair(name, self.dtype, self.device)
            target = target or pair.target
            pairs[draft] = dataclasses.replace(pair, target=target)
        code = {draft: _call("load_pair", name, self.dtype, self.device) for draft, name in family.pairs.items()}
        # the embedded models are so small that more threads only wait for one another
        threads = 1 if pair.arithmetic else os.cpu_count() or 1
        return self._ready(Models(family.title, *_with_lookup(pairs, code), family.prompts, threads))

    def _load(self, source: str, draft: str, dtype: str) -> Models:
        base = pair_of(source, None, dtype, self.device)
        code = _call("pair_of", source, dtype, self.device)
        title = source.rstrip("/").split("/")[-1]
        pairs, calls = {}, {}
        if draft:
            name = draft.rstrip("/").split("/")[-1]
            pairs[name] = with_draft(base, draft, dtype, self.device)
            calls[name] = _call("with_draft", "base", draft, dtype, self.device).replace("'base'", code, 1)
        pairs[LOOKUP], calls[LOOKUP] = base, code
        return self._ready(Models(title, pairs, calls, CHAT_PROMPTS[1:5], os.cpu_count() or 1))

    def _ready(self, models: Models) -> Models:
        """The same models after a first forward, which is slower than those after it."""
        with self.turns, torch.inference_mode():
            for pair in models.pairs.values():
                token = torch.zeros(1, 2, dtype=torch.long)
                pair.target(input_ids=token.to(pair.target.device))
                if pair.draft is not None and pair.head is None:
                    pair.draft(input_ids=token.to(pair.draft.device))
        return models


def _checked(target: PreTrainedModel, draft: PreTrainedModel, tokenizer: Any, other: Any) -> list[Check]:
    """Sizes, and the checks of a draft model or of a head."""
    sizes = Check("size", f"{_size(target)} / {_size(draft)}", True)
    if isinstance(draft, Eagle3Head):
        return [sizes, *head_checks(target, draft)]
    return [sizes, *checks(target, draft, tokenizer, other)]


def _split(key: str) -> tuple[str, str, str]:
    target, draft, dtype = key.split("\n")
    return target, draft, dtype


def _with_lookup(pairs: dict[str, Pair], code: dict[str, str]) -> tuple[dict[str, Pair], dict[str, str]]:
    """Prompt lookup beside the other drafts."""
    first = next(iter(pairs))
    base = pairs[first]
    kept = {name: value for name, value in base.generate.items() if name == "max_new_tokens"}
    lookup = dataclasses.replace(base, draft=None, generate={**kept, "prompt_lookup_num_tokens": 7})
    return {**pairs, LOOKUP: lookup}, {**code, LOOKUP: code[first]}


def _call(function: str, *arguments: str) -> str:
    """A call as Python writes it, without float32 on a CPU, which needs no saying."""
    *named, dtype, device = arguments
    said = [f"{k}={v!r}" for k, v, default in (("dtype", dtype, "float32"), ("device", device, "cpu")) if v != default]
    return f"{function}({', '.join([*map(repr, named), *said])})"


def _size(model: torch.nn.Module) -> str:
    count = sum(p.numel() for p in model.parameters())
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    shown = f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
    return f"{count / 1e6:,.1f} M parameters, {shown}"
