"""Whether memory stays flat through a long text, the models' caches apart."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Iterator
from typing import Any

import psutil
import torch
from transformers import PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from ..generation import generate
from ..loading import Pair
from .estimates import Track, untracked
from .throughput import SAMPLED, setting

TOKENS, EVERY = 10_000, 500


class Watch(BaseStreamer):
    """Notes the process's memory every so many tokens."""

    def __init__(self, device: torch.device, steps: Iterator[int]) -> None:
        self.device, self.steps = device, steps
        self.seen, self.found = -1, list[tuple[int, int]]()  # the first thing streamed is the prompt

    def put(self, value: torch.Tensor) -> None:
        self.seen += 1
        if self.seen % EVERY == 0:
            next(self.steps, None)
            held = psutil.Process().memory_info().rss
            if self.device.type == "cuda":
                held = torch.cuda.memory_allocated(self.device)
            self.found.append((self.seen, held))

    def end(self) -> None:
        """Nothing to finish."""


def cache_bytes(model: PreTrainedModel) -> int:
    """What a token takes in a model's cache."""
    config = model.config.get_text_config(decoder=True)
    size: int = config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return 2 * size * model.dtype.itemsize


def measure_memory(pair: Pair, tokens: int = TOKENS, seed: int = 0, track: Track = untracked) -> dict[str, Any]:
    """One sampled text of so many tokens, lossless, with accounting off; nothing ends it early.

    Returns:
        ``settings``; ``points``: tokens and bytes held; ``bytes_per_token``: the slope of a line through those of the second
        half; ``cache_bytes_per_token``: what the caches grow by.
    """
    if not pair.arithmetic or pair.draft is None or pair.head is not None:
        return {"left_out": "a text of so many tokens is for the embedded models"}
    config = copy.deepcopy(pair.target.generation_config)
    config.eos_token_id = -1
    watch = Watch(pair.target.device, iter(track(range(tokens // EVERY), f"{pair.name}: {tokens:,} tokens")))
    generate(
        pair.target,
        **pair.inputs(pair.prompts[0]),
        **{**pair.drafting(), **SAMPLED, "max_new_tokens": tokens},
        generation_config=config,
        verification="lossless",
        generator=torch.Generator(pair.target.device).manual_seed(seed),
        streamer=watch,
    )
    late = watch.found[len(watch.found) // 2 :]
    slope = statistics.linear_regression(*zip(*late, strict=True)).slope
    return {
        "settings": setting(pair, seed, tokens=tokens),
        "points": watch.found,
        "bytes_per_token": slope,
        "cache_bytes_per_token": cache_bytes(pair.target) + cache_bytes(pair.draft),
    }
