"""Drafts with quantised weights, by ``optimum-quanto``."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from .errors import LossyError, needs, unknown

Model = TypeVar("Model", bound=nn.Module)

WEIGHTS = ("int8",)
"""Kinds of quantised weights. (Quanto's int4 tensors can't be used in inference mode, which the loop runs in.)"""


def quantize_draft(model: Model, weights: str = "int8") -> Model:
    """Quantise the weights of a draft's linear layers, in place, and return it.

    Whatever the draft is, a coupling emits the law of its q: with the lossless law the text is the target's, and only how
    much of the draft is accepted changes. Lossy laws depend on q, so that theirs is another one than with the float draft.

    Args:
        model: a draft model or an EAGLE-3 head, in float weights; an embedding that a head borrows from its target is left
            as it is.
        weights: ``"int8"``, one scale for each output row.

    Raises:
        LossyError: an unknown kind of weights, a model that is quantised already, or optimum-quanto is missing.
    """
    if weights not in WEIGHTS:
        raise unknown("kind of draft weights", weights, WEIGHTS)
    needs("optimum.quanto", "quantising a draft", "quanto", package="optimum-quanto")
    from optimum.quanto import QModuleMixin, freeze, quantize

    config = getattr(model, "config", None)
    if getattr(config, "quantization_config", None) or any(isinstance(part, QModuleMixin) for part in model.modules()):
        raise LossyError(
            f"the weights of this {type(model).__name__} are quantised already: give a draft in float weights"
        )
    quantize(model, weights=f"q{weights}")
    freeze(model)
    return model
