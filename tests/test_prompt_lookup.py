"""What a prompt lookup finds, against its definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hf_lossy
from hf_lossy.drafting import PromptLookupDraft
from hf_lossy.drafting.schedule import Schedule

from .models import lossy, plain, scripted, target


def found(tokens, gamma, longest=None):
    """The candidates after some tokens."""
    draft = PromptLookupDraft(Schedule(gamma), longest)
    return draft.propose(torch.tensor([tokens]), [len(tokens)], gamma).tokens[0].tolist()


def wanted(tokens, gamma, longest=16):
    """By definition: every end of the text, the longest first, at every place before, the last first."""
    for n in range(min(longest, len(tokens) - 1), 0, -1):
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == tokens[-n:]:
                text = list(tokens)
                for _ in range(gamma if n == longest else min(gamma, 2 * n)):
                    text.append(text[len(text) - (len(tokens) - n - start)])  # as far on as the occurrence lies back
                return text[len(tokens) :]
    return []


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.integers(1, 12),
    st.sampled_from([None, 1, 2, 3]),
)
def test_the_candidates_are_those_of_the_definition(tokens, gamma, longest):
    assert found(tokens, gamma, longest) == wanted(tokens, gamma, longest or 16)


@pytest.mark.parametrize(
    ("tokens", "gamma", "longest", "expected"),
    [
        ([1, 2, 3], 5, None, []),
        ([1], 5, None, []),
        ([1, 5, 6, 7, 1], 7, None, [5, 6]),  # one token: two candidates
        ([1, 2, 5, 6, 7, 8, 9, 1, 2], 7, None, [5, 6, 7, 8]),
        ([1, 2, 5, 6, 7, 8, 9, 1, 2], 3, None, [5, 6, 7]),
        ([1, 2, 5, 6, 7, 8, 9, 1, 2], 6, 2, [5, 6, 7, 8, 9, 1]),  # no longer end was looked for
        ([1, 2, 5, 9, 2, 6, 1, 2], 1, None, [5]),  # the longer end, not the later one
        ([1, 5, 9, 1, 6, 9, 1], 1, None, [6]),  # of the same length the later
        ([3, 4, 3, 4, 3, 4], 6, None, [3, 4, 3, 4, 3, 4]),  # a text that repeats itself
    ],
)
def test_by_hand(tokens, gamma, longest, expected):
    assert found(tokens, gamma, longest) == expected


def test_each_row_of_a_batch_finds_its_own():
    """Padding is no text, and a row that finds less is filled up."""
    draft = PromptLookupDraft(Schedule(4))
    rows = torch.tensor([[0, 0, 0, 1, 5, 1], [2, 6, 7, 8, 2, 6]])
    assert draft.propose(rows, [6, 6], 4).tokens.tolist() == [[5, 1, 0, 0], [7, 8, 2, 6]]
    assert draft.propose(torch.tensor([[0, 0, 3], [4, 4, 4]]), [3, 3], 4).tokens.tolist() == [[0] * 4, [4] * 4]


def test_a_law_at_its_strict_setting_needs_no_q():
    options = {"prompt_lookup_num_tokens": 4, "max_new_tokens": 12}
    ids = torch.tensor([[5, 3, 8, 1, 5, 3, 8]])
    assert torch.equal(
        lossy(target(), ids, verification=hf_lossy.Lenience(1.0), **options), plain(target(), ids, **options)
    )
    with pytest.raises(hf_lossy.LossyError, match="needs the draft's probabilities"):
        lossy(target(), ids, verification=hf_lossy.Lenience(0.9), **options)


def test_a_lookup_bound_in_a_decoder():
    loop = hf_lossy.decoder(prompt_lookup_num_tokens=4, verification="lossless")
    ids = torch.tensor([[5, 3, 8, 1, 5, 3, 8]])
    how = {"max_new_tokens": 12, "do_sample": True, "top_k": 1}  # transformers has one greedy text a prompt only
    text = target().generate(ids, custom_generate=loop, num_return_sequences=2, **how)
    assert torch.equal(text, plain(target(), ids, max_new_tokens=12).repeat(2, 1))


@pytest.mark.parametrize("end", [-1, 500, [-1, 5]])
def test_an_end_that_is_no_token_fills_no_row(end):
    """How callers say that nothing ends a text, or a token of a tokenizer that has more of them than the model."""
    rows = torch.tensor([[5, 3, 8, 4, 9, 7], [7, 3, 9, 7, 3, 9]])  # the first finds nothing
    options = {"eos_token_id": end, "pad_token_id": 0, "max_new_tokens": 12}
    assert torch.equal(lossy(target(), rows, prompt_lookup_num_tokens=7, **options), plain(target(), rows, **options))


def test_a_text_that_repeats_itself_is_drafted_whole():
    model = scripted([5, 6, 7] * 20, prompt=6)
    out = lossy(
        model,
        torch.tensor([[5, 6, 7, 5, 6, 7]]),
        prompt_lookup_num_tokens=7,
        max_new_tokens=40,
        return_dict_in_generate=True,
    )
    assert [r.accepted for r in out.verification.rounds] == [6, 7, 7, 7, 7, 0]
