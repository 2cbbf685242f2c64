from __future__ import annotations

from dataclasses import dataclass

from .base import Law, register


@register
@dataclass(frozen=True)
class Lossless(Law):
    """The target's own distribution.

        π = p

    Source: Leviathan et al. 2211.17192, Chen et al. 2302.01318.
    """

    name = "lossless"
    family = "lossless"
    uses_draft = False
    strict_at = "always"
    peers = "speculative sampling in vLLM, SGLang, TensorRT-LLM, transformers"
    reference = "2211.17192"

    @property
    def is_strict(self) -> bool:
        return True
