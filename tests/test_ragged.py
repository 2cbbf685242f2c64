"""Rows of different lengths in one tensor, and in one cache."""

from __future__ import annotations

import random

import pytest
import torch

from hf_lossy.cached_model import CachedModel
from hf_lossy.compat import default_cache
from hf_lossy.ragged import columns, put, window

from .models import target


@pytest.mark.parametrize("rest", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("starts", [[2, 2, 2], [0, 3, 1]], ids=str)
def test_windows(starts, rest):
    x = torch.randn(3, 6, *rest)
    for row, start in enumerate(starts):
        assert torch.equal(window(x, starts, 2)[row], x[row, start : start + 2])
    new = torch.randn(3, 2, *rest)
    expected = x.clone()
    for row, start in enumerate(starts):
        expected[row, start : start + 2] = new[row]
    put(x, starts, new)
    assert torch.equal(x, expected)
    assert columns(starts, 2, x.device).tolist() == [[start, start + 1] for start in starts]


def test_a_window_past_the_end_repeats_the_last_column():
    assert window(torch.arange(5)[None], [3], 4).tolist() == [[3, 4, 4, 4]]


@pytest.mark.parametrize("padding", [[0, 0, 0], [3, 0, 1]], ids=["no padding", "left padding"])
def test_a_cache_whose_rows_come_and_go_holds_what_each_row_alone_would(padding):
    """Feed, roll back by different amounts, drop rows, feed again: logits as of the row alone, without a cache, in
    double."""
    big = target().double()
    try:
        _walk(big, padding)
    finally:
        big.float()


def _walk(big, padding):
    rng = random.Random(0)
    rows, width = 3, 5
    mask = torch.tensor([[0] * gap + [1] * (width - gap) for gap in padding])
    texts = [[rng.randrange(32) for _ in range(width)] for _ in range(rows)]
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    padded = any(padding)
    cached = CachedModel(
        big,
        default_cache(big),
        "target",
        rows=rows,
        attention_mask=mask if padded else None,
        position_ids=positions if padded else None,
        taps=[1],
    )
    going = list(range(rows))
    with torch.no_grad():
        for step in range(14):
            # one to four tokens more for every row, the settled ones that the cache lacks before them
            missing = cached.missing([len(texts[row]) for row in going])
            extra = {row: [rng.randrange(32) for _ in range(rng.randrange(1, 2) + step % 4)] for row in going}
            fed = torch.tensor([texts[row][len(texts[row]) - missing :] + extra[row] for row in going])
            count = fed.shape[1] - missing + 1
            logits = cached(fed, logits=count).logits[:, -count:]
            keep = {}
            for i, row in enumerate(going):
                whole = texts[row] + extra[row]
                alone = big(torch.tensor([whole[padding[row] :]]), output_hidden_states=True)
                assert torch.allclose(logits[i], alone.logits[0, -count:], atol=1e-10, rtol=0), (step, row)
                keep[row] = rng.randrange(len(extra[row]) + 1)
                texts[row] = [*whole[: len(texts[row]) + keep[row]], rng.randrange(32)]
                held = len(texts[row]) - 1
                assert cached.held[i] >= held
            cached.crop([len(texts[row]) - 1 for row in going])
            starts = [max(len(texts[row]) - 4, padding[row]) for row in going]
            taps = cached.tapped([0] * len(going), max(cached.held))
            for i, row in enumerate(going):
                text = torch.tensor([texts[row][padding[row] : -1]])
                states = big(text, output_hidden_states=True).hidden_states[1][0]
                here = taps[i, starts[i] : len(texts[row]) - 1]
                assert torch.allclose(here, states[starts[i] - padding[row] :], atol=1e-10, rtol=0), (step, row)
            if step in (5, 9):  # the longest row leaves, then another
                longest = max(range(len(going)), key=lambda i: len(texts[going[i]]))
                stay = [i for i in range(len(going)) if i != longest]
                cached.select(stay)
                going = [going[i] for i in stay]
    assert len(going) == 1
