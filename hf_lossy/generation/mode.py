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
    # one of transformers' processors calls a function of the user's
    if not all(_is_known(one) and not isinstance(one, PrefixConstrainedLogitsProcessor) for one in called):
        return False
    return all(_is_plain(module) for model in models for module in model.modules())


def _is_known(what: Any) -> bool:
    """By the package that an object's class, or a function, comes from."""
    return (what.__module__ or "").partition(".")[0] in KNOWN


def _is_plain(module: nn.Module) -> bool:
    """Known code, with nothing hung onto it: no other hooks, nor a forward of its own, as ``accelerate`` gives one."""
    own = vars(module)
    if "forward" in own or not _is_known(module):
        return False
    groups = own["_forward_hooks"], own["_forward_pre_hooks"]
    return not any(groups) or all(_is_known(hook) for group in groups for hook in group.values())
