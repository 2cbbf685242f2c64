"""hf_lossy: lossy speculative decoding for transformers, as draft × law × coupling, with the bill attached.

Importing this package imports neither torch nor transformers; names are loaded when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import embedded as embedded
    from . import laws as laws
    from .eagle3 import Eagle3Head as Eagle3Head
    from .errors import LossyError as LossyError
    from .generation import LossyDecoderOnlyOutput as LossyDecoderOnlyOutput
    from .generation import Options as Options
    from .generation import VerificationStats as VerificationStats
    from .generation import configure as configure
    from .generation import decoder as decoder
    from .generation import disable as disable
    from .generation import enable as enable
    from .generation import enabled as enabled
    from .generation import generate as generate
    from .laws import Law as Law
    from .laws import law as law
    from .quantization import quantize_draft as quantize_draft

_FROM = {
    "Eagle3Head": "eagle3",
    "LossyError": "errors",
    **dict.fromkeys(
        [
            "LossyDecoderOnlyOutput",
            "Options",
            "VerificationStats",
            "configure",
            "decoder",
            "disable",
            "enable",
            "enabled",
            "generate",
        ],
        "generation",
    ),
    **dict.fromkeys(["Law", "law"], "laws"),
    "quantize_draft": "quantization",
}
_MODULES = ("accounting", "couplings", "drafting", "eagle3", "embedded", "generation", "laws", "processors")


def __getattr__(name: str) -> Any:
    if name in _FROM:
        return getattr(importlib.import_module(f".{_FROM[name]}", __name__), name)
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    laws = importlib.import_module(".laws", __name__)
    if hasattr(laws, name):  # the laws' classes, hf_lossy.Lenience and whatever else is registered
        return getattr(laws, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_FROM, *_MODULES])
