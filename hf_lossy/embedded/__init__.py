"""Tiny real models that ship inside the package, so that everything can be tried without the Hub.

``arithmetic``: a target that adds five numbers modulo 32 with written-out working, and two drafts for it (see
:mod:`hf_lossy.embedded.clock_sums`). ``natural`` learnt the target's own corpus, only with one layer. ``shortcut`` learnt a
corpus that likes a risky legal short cut: a planted bias, whose effects are large and show the mechanism, not the size.
:func:`head` is an EAGLE-3 head for the target.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import unknown

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..eagle3 import Eagle3Head

_ROOT = Path(__file__).parent / "models"


def names() -> list[str]:
    """The embedded pairs."""
    return sorted(folder.name for folder in _ROOT.iterdir() if (folder / "target").is_dir())


def drafts(name: str = "arithmetic") -> list[str]:
    """The drafts of a pair."""
    return sorted(folder.name.removeprefix("draft-") for folder in (_ROOT / name).glob("draft-*"))


def path(name: str, part: str = "target") -> Path:
    """The folder of a part: ``"target"``, ``"draft-natural"``, ``"draft-shortcut"`` or ``"eagle3"``."""
    if name not in names():
        raise unknown("embedded pair", name, names())
    return _ROOT / name / part


def load(
    name: str = "arithmetic", draft: str = "natural", dtype: torch.dtype | None = None
) -> tuple[PreTrainedModel, PreTrainedModel, PreTrainedTokenizerBase]:
    """The target, a draft and their tokenizer, as ``from_pretrained`` gives them.

    Args:
        name: the pair, ``"arithmetic"``.
        draft: ``"natural"`` or ``"shortcut"``.
        dtype: of both models, float32 unless given.

    Raises:
        LossyError: an unknown pair or draft.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = path(name)
    if draft not in drafts(name):
        raise unknown(f"draft of {name!r}", draft, drafts(name))
    dtype = dtype or torch.float32
    target = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    small = AutoModelForCausalLM.from_pretrained(path(name, f"draft-{draft}"), dtype=dtype)
    return target, small, AutoTokenizer.from_pretrained(folder)


def head(name: str, target: PreTrainedModel) -> Eagle3Head:
    """The EAGLE-3 head of a pair, for the target that :func:`load` gives.

    Raises:
        LossyError: an unknown pair, or another target.
    """
    from ..eagle3 import load_head

    return load_head(path(name, "eagle3"), target)
