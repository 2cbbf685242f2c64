"""EAGLE-3 heads: the model, and reading and writing checkpoints of five producers."""

from __future__ import annotations

from .config import Eagle3Config
from .formats import detect, is_head_config, load_head, save_speculators
from .head import Eagle3Head, HeadCache

__all__ = ["Eagle3Config", "Eagle3Head", "HeadCache", "detect", "is_head_config", "load_head", "save_speculators"]
