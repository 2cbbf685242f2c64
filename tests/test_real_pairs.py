"""Greedy lossless output on real models, token by token in float32: slow, and skipped where the models are not installed."""

from __future__ import annotations

import pytest
import torch

import hf_lossy
from hf_lossy.loading import load_pair

TOKENS = {
    "arithmetic": 24,
    "arithmetic-shortcut": 24,
    "arithmetic-eagle3": 24,
    "smollm2": 48,
    "smollm2-eagle3": 32,
    "qwen-coder": 24,
}
MORE_PROMPTS = [
    "Name a colour.",
    "What is 17 + 25?",
    "Write a haiku.",
    "Define entropy.",
    "Translate 'dog' into French.",
]


SHAPES = [{}, {"draft_mode": "tree", "tree_size": 60, "tree_depth": 5, "tree_top_k": 10}]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, shape) for name in TOKENS for shape in SHAPES if not shape or name.endswith("eagle3")],
    ids=str,
)
def test_greedy_lossless_is_plain_greedy_on_twenty_prompts(name, shape):
    try:
        pair = load_pair(name)
    except hf_lossy.LossyError as missing:
        pytest.skip(str(missing))
    torch.set_num_threads(1 if pair.arithmetic else 2)
    prompts = (pair.prompts + [pair.chat(f"{p} {i}") for i in (1, 2, 3) for p in MORE_PROMPTS])[:20]
    assert len(prompts) == 20
    same = []
    for prompt in prompts:
        inputs = pair.inputs(prompt)
        settings = {"do_sample": False, "max_new_tokens": TOKENS[name], "repetition_penalty": 1.0}
        plain = pair.target.generate(**inputs, **settings)
        ours = hf_lossy.generate(
            pair.target, **inputs, **{**pair.drafting(**shape), **settings}, verification="lossless"
        )
        same.append(torch.equal(plain, ours))
    assert sum(same) == 20
