"""Whether a call may run in torch's inference mode.

Inference mode makes a small model's forward an eighth cheaper than ``no_grad``. But what is made in it can never take part
in training, nor be written into outside; and a processor that asks for gradients gets none. So it is for calls of which
nothing but token ids is left, and whose code is torch's, transformers' and ours throughout: other code may keep a tensor
for later.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from transformers import PrefixConstrainedLogitsProcessor

KNOWN = frozenset({"torch", "transformers", "hf_lossy"})


def may_infer(models: Iterable[nn.Module], called: Iterable[Any]) -> bool:
    """Whether all modules of the models, their hooks, and what else is called (processors, criteria) is known code."""
    return all(map(_is_known, called)) and all(map(_is_plain, (m for model in models for m in model.modules())))


def _is_known(what: Any) -> bool:
    """By the package that an object's class, or a function, comes from."""
    return (what.__module__ or "").partition(".")[0] in KNOWN and not isinstance(what, PrefixConstrainedLogitsProcessor)


def _is_plain(module: nn.Module) -> bool:
    """Known code, with nothing hung onto it: no other hooks, nor a forward of its own, as ``accelerate`` gives one."""
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return _is_known(module) and "forward" not in vars(module) and all(map(_is_known, hooks))
