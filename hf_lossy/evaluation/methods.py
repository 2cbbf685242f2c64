"""What is compared: laws at strengths, each beside its matched baseline, lossless speculation and the target alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import LossyError, unknown
from ..laws import Law, law, law_class

OPTIONS = (
    "coupling",
    "bonus",
    "draft_probs",
    "draft_mode",
    "tree_size",
    "tree_depth",
    "tree_top_k",
    "draft_temperature",
    "num_assistant_tokens",
)
"""Options of ``generate`` that a method may set besides its law."""


@dataclass(frozen=True)
class Method:
    """One way of decoding.

    Attributes:
        law: None decodes with one model alone.
        options: of ``generate``, from :data:`OPTIONS`.
        model: which one then, ``"target"`` or ``"draft"``.
    """

    law: Law | None
    options: dict[str, Any] = field(default_factory=dict)
    model: str = "target"

    def __post_init__(self) -> None:
        for name in self.options:
            if name not in OPTIONS:
                raise unknown("option of a method", name, OPTIONS)

    @property
    def name(self) -> str:
        """The law with its parameters, and its options."""
        return self.label({})

    def label(self, common: dict[str, Any]) -> str:
        """The name in a table whose methods have some options in common, which it leaves out."""
        if self.law is None:
            return f"{self.model} alone"
        own = sorted((name, value) for name, value in self.options.items() if common.get(name) != value)
        return ", ".join([str(self.law), *(f"{name}={value}" for name, value in own)])

    @property
    def key(self) -> str:
        """The same for the same settings, wherever and whenever it is made."""
        text = json.dumps({"law": None if self.law is None else self.law.to_dict(), **self.options}, sort_keys=True)
        return f"{self.model if self.law is None else self.law.name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    def baseline(self) -> Method | None:
        """What a lossy method has to beat, under the same draft and coupling; None for a baseline itself."""
        if self.law is None or self.law.is_strict:
            return None
        matched = self.law.matched_baseline()
        if matched == self.law:  # plain truncation: beside lossless
            matched = law("lossless")
        # the baseline's law is emitted exactly: neither as first published, nor with candidates that count as q = 1
        options = {k: v for k, v in self.options.items() if (k, v) != ("coupling", "reference") and k != "draft_probs"}
        return Method(matched, options)

    def to_dict(self) -> dict[str, Any]:
        """For configuration files; :func:`method` reads it."""
        return {"law": None, "model": self.model} if self.law is None else {"law": self.law.to_dict(), **self.options}


def methods(entries: Iterable[Any]) -> list[Method]:
    """Methods from a configuration, with the baselines they need; no two the same.

    Args:
        entries: each ``"target"`` or ``"draft"`` (alone), a law's name, or a dict ``{"law": name or settings, "grid":
            [strengths], **options}``, of which ``grid`` runs over the law's knob and ``options`` are those of
            :data:`OPTIONS`.
    """
    found: dict[str, Method] = {}
    for entry in [*entries]:
        for one in _expanded(entry):
            found.setdefault(one.key, one)
    for one in [Method(None), *found.values()]:
        found.setdefault(one.key, one)
        baseline = one.baseline()
        while baseline is not None:
            found.setdefault(baseline.key, baseline)
            baseline = baseline.baseline()
    return sorted(found.values(), key=lambda m: m.law is not None and (1 if m.law.is_strict else 2))


def _expanded(entry: Any) -> Sequence[Method]:
    if entry in ("target", "draft"):
        return [Method(None, model=entry)]
    if isinstance(entry, str):
        entry = {"law": entry}
    if not isinstance(entry, dict) or "law" not in entry:
        raise LossyError(f"a method must be 'target', 'draft', a law's name or a dict with 'law', got {entry!r}")
    settings = {k: v for k, v in entry.items() if k not in ("law", "grid")}
    given = entry["law"]
    if given is None:
        return [Method(None, model=settings.get("model", "target"))]
    given = {"method": given} if isinstance(given, str) else dict(given)
    name = given.pop("method")
    grid = entry.get("grid")
    if grid is None:
        return [Method(law(name, **given), settings)]
    cls = law_class(name)
    if cls.knob is None:
        raise LossyError(f"{name} has no strength, so that grid={grid!r} means nothing: leave it out")
    values = cls.grid if grid == "default" else grid
    return [Method(law(name, **{**given, cls.knob: value}), settings) for value in values]
