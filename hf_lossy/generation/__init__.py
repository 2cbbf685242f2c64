"""The integration into transformers' ``generate``."""

from __future__ import annotations

from .api import Decoder, decoder, disable, enable, enabled, generate, is_enabled
from .options import Options, configure
from .outputs import LossyDecoderOnlyOutput
from .statistics import Round, RowStats, VerificationStats

__all__ = [
    "Decoder",
    "LossyDecoderOnlyOutput",
    "Options",
    "Round",
    "RowStats",
    "VerificationStats",
    "configure",
    "decoder",
    "disable",
    "enable",
    "enabled",
    "generate",
    "is_enabled",
]
