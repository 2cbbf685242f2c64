"""Tiny real models that ship inside the package, so that everything can be tried without the Hub.

``arithmetic``: a target that adds five numbers modulo 32 with written-out working, and two drafts for it (see
:mod:`hf_lossy.embedded.clock_sums`). ``natural`` learnt the target's own corpus, only with one layer. ``shortcut`` learnt a
corpus that likes a risky legal short cut: a planted bias, whose effects are large and show the mechanism, not the size.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import unknown

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_ROOT = Path(__file__).parent / "models"


def names() -> list[str]:
    """The embedded pairs."""
    return sorted(folder.name for folder in _ROOT.iterdir() if (folder / "target").is_dir())


def drafts(name: str = "arithmetic") -> list[str]:
    """The drafts of a pair."""
    return sorted(folder.name.removeprefix("draft-") for folder in (_ROOT / name).glob("draft-*"))


def path(name: str, part: str = "target") -> Path:
    """The folder of a model, for ``from_pretrained``: ``"target"`` or ``"draft-natural"``, ``"draft-shortcut"``."""
    if name not in names():
        raise unknown("embedded pair", name, names())
    return _ROOT / name / part


def load(
    name: str = "arithmetic", draft: str = "natural"
) -> tuple[PreTrainedModel, PreTrainedModel, PreTrainedTokenizerBase]:
    """The target, a draft and their tokenizer, in float32, as ``from_pretrained`` gives them.

    Args:
        name: the pair, ``"arithmetic"``.
        draft: ``"natural"`` or ``"shortcut"``.

    Raises:
        LossyError: an unknown pair or draft.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = path(name)
    if draft not in drafts(name):
        raise unknown(f"draft of {name!r}", draft, drafts(name))
    target = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    small = AutoModelForCausalLM.from_pretrained(path(name, f"draft-{draft}"), dtype=torch.float32)
    return target, small, AutoTokenizer.from_pretrained(folder)
