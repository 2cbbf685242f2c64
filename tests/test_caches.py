"""Caches: what comes back can be passed on, whatever the layers, and what can't be rolled back is refused by name."""

from __future__ import annotations

import copy
import functools

import accelerate
import pytest
import torch
from transformers import DynamicCache, Lfm2Config, Lfm2ForCausalLM, MambaConfig, MambaForCausalLM, StaticCache
from transformers.cache_utils import Cache, QuantizedLayer

import hf_lossy
from hf_lossy.cached_model import CachedModel
from hf_lossy.compat import CACHE_NAME, default_cache
from hf_lossy.errors import LossyError

from .models import PROMPT, SIZES, SPECIAL, draft, gemma3, lossy, mistral, plain, scripted, sibling, target

LONG = torch.randint(1, 32, (1, 30), generator=torch.Generator().manual_seed(0))
TARGETS = {"full": target, "sliding": mistral, "hybrid": gemma3}
each_target = pytest.mark.parametrize("model", TARGETS.values(), ids=TARGETS)


def cache_of(out) -> Cache:
    return getattr(out, CACHE_NAME)


# --- every kind of layer -----------------------------------------------------------------------------------------------


@each_target
@pytest.mark.parametrize("ids", [PROMPT, LONG], ids=["prompt in the window", "prompt past the window"])
@pytest.mark.parametrize("drafted", ["sibling", "itself", "prompt lookup"])
def test_greedy_text_is_plain_greedys(model, ids, drafted):
    """The text is longer than the sliding windows, so that they roll over within and between rounds."""
    big = model()
    options = {
        "sibling": lambda: {"assistant_model": sibling(big)},
        "itself": lambda: {"assistant_model": big},
        "prompt lookup": lambda: {"prompt_lookup_num_tokens": 5},
    }[drafted]()
    ours = lossy(big, ids, max_new_tokens=40, **options)
    assert torch.equal(ours, plain(big, ids, max_new_tokens=40))


@each_target
def test_the_draft_may_have_other_layers_than_the_target(model):
    ours = lossy(target(), LONG, assistant_model=sibling(model()), max_new_tokens=30)
    assert torch.equal(ours, plain(target(), LONG, max_new_tokens=30))


@pytest.mark.parametrize("model", [mistral, gemma3])
def test_the_windows_matter(model):
    """Else the tests above would not notice a window that is rolled back wrongly."""
    wide = type(model())(model(window=128).config).eval()
    wide.load_state_dict(model().state_dict())
    assert not torch.equal(plain(model(), LONG, max_new_tokens=40), plain(wide, LONG, max_new_tokens=40))


@each_target
def test_a_prefill_in_chunks(model):
    ours = lossy(model(), LONG, assistant_model=sibling(model()), prefill_chunk_size=4, max_new_tokens=20)
    assert torch.equal(ours, plain(model(), LONG, max_new_tokens=20))


@pytest.mark.parametrize("drafted", [draft, target], ids=["D", "S"])
def test_a_static_cache(drafted):
    out = lossy(target(), assistant_model=drafted(), cache_implementation="static", return_dict_in_generate=True)
    assert torch.equal(out.sequences, plain(target(), cache_implementation="static"))
    assert isinstance(cache_of(out), StaticCache)
    assert int(cache_of(out).get_seq_length()) == out.sequences.shape[1] - 1


# --- continuing --------------------------------------------------------------------------------------------------------


@each_target
@pytest.mark.parametrize("drafted", ["sibling", "itself"])
@pytest.mark.parametrize("count", range(1, 13))
def test_the_cache_holds_all_tokens_but_the_last_and_continues(model, drafted, count):
    big = model()
    small = sibling(big) if drafted == "sibling" else big
    options = {"assistant_model": small, "num_assistant_tokens": 3, "return_dict_in_generate": True}
    first = lossy(big, max_new_tokens=count, **options)
    assert cache_of(first).get_seq_length() == first.sequences.shape[1] - 1
    second = lossy(big, first.sequences, max_new_tokens=9, **{CACHE_NAME: cache_of(first)}, **options)
    assert torch.equal(second.sequences, plain(big, max_new_tokens=count + 9))
    assert cache_of(second) is cache_of(first)
    assert cache_of(second).get_seq_length() == second.sequences.shape[1] - 1


@each_target
def test_plain_generate_continues_from_our_cache_and_we_from_its(model):
    big, asked = model(), {"return_dict_in_generate": True}
    expected = plain(big, max_new_tokens=24)
    ours = lossy(big, assistant_model=sibling(big), max_new_tokens=12, **asked)
    theirs = plain(big, ours.sequences, max_new_tokens=12, **{CACHE_NAME: cache_of(ours)})
    assert torch.equal(theirs, expected)
    if model is target:  # a sliding window that did not record its past can't be rolled back
        theirs = plain(big, max_new_tokens=12, **asked)
        ours = lossy(
            big, theirs.sequences, assistant_model=sibling(big), max_new_tokens=12, **{CACHE_NAME: cache_of(theirs)}
        )
        assert torch.equal(ours, expected)


def test_a_second_turn_adds_several_tokens_to_the_cache():
    options = {"assistant_model": draft(), "return_dict_in_generate": True}
    first = lossy(target(), max_new_tokens=7, **options)
    ids = torch.cat([first.sequences, torch.tensor([[9, 4, 2]])], 1)
    second = lossy(target(), ids, **{CACHE_NAME: cache_of(first)}, **options)
    assert torch.equal(second.sequences, plain(target(), ids))


def test_a_left_padded_prompt_continues():
    ids = torch.cat([torch.zeros(1, 3, dtype=torch.long), PROMPT], 1)
    options = {"assistant_model": draft(), "return_dict_in_generate": True}
    first = lossy(target(), ids, attention_mask=(ids != 0).long(), max_new_tokens=7, **options)
    mask = torch.cat([(ids != 0).long(), torch.ones(1, 7, dtype=torch.long)], 1)
    second = lossy(target(), first.sequences, attention_mask=mask, **{CACHE_NAME: cache_of(first)}, **options)
    assert torch.equal(second.sequences[:, 3:], plain(target(), max_new_tokens=31))


def test_a_cache_of_ones_own_is_filled():
    cache = DynamicCache()
    out = lossy(target(), assistant_model=draft(), return_dict_in_generate=True, **{CACHE_NAME: cache})
    assert cache_of(out) is cache
    assert cache.get_seq_length() == out.sequences.shape[1] - 1
    assert torch.equal(out.sequences, plain(target()))


def test_nothing_new_to_feed_is_refused():
    first = lossy(target(), assistant_model=draft(), return_dict_in_generate=True)
    with pytest.raises(LossyError, match=r"cache already holds 28 tokens but only 20 input_ids"):
        lossy(target(), first.sequences[:, :20], assistant_model=draft(), **{CACHE_NAME: cache_of(first)})


def test_the_cache_ends_where_the_text_was_stopped():
    script = [7, 8, 9, 3, 10, 11]
    options = {"assistant_model": scripted(script), "eos_token_id": 9, "return_dict_in_generate": True}
    out = lossy(scripted(script), **options)
    assert out.sequences[0, 5:].tolist() == [7, 8, 9]
    assert cache_of(out).get_seq_length() == 7
    assert cache_of(out).layers[0].keys[0, 0, :, 0].tolist() == [*PROMPT[0].tolist(), 7, 8]


# --- rolling back ------------------------------------------------------------------------------------------------------


# transformers#47433: crop(0) and an oversized crop
@torch.no_grad()
@each_target
@pytest.mark.parametrize("refused", [0, 1, 4, 5])
def test_rolling_back_nothing_some_or_a_whole_block(model, refused):
    big = model()
    cached = CachedModel(big, default_cache(big), "target")
    cached(LONG[:, :20])
    cached.crop([20])
    cached(LONG[:, 20:25])
    cached.crop([25 - refused])
    assert cached.held == [cached.cache.get_seq_length()] == [25 - refused]
    logits = cached(LONG[:, 25 - refused :], logits=5 + refused).logits[:, -5:]
    torch.testing.assert_close(logits, big(LONG).logits[:, -5:], rtol=1e-4, atol=1e-4)


# --- caches that can't be rolled back ----------------------------------------------------------------------------------


class PlainQuantizedLayer(QuantizedLayer):
    """A real quantised layer whose code book is exact."""

    def _quantize(self, tensor, axis):
        return tensor

    def _dequantize(self, tensor):
        return tensor


def test_a_quantised_cache_is_refused():
    cache = Cache(layers=[PlainQuantizedLayer(residual_length=4) for _ in range(2)])
    with pytest.raises(LossyError, match=r"PlainQuantizedLayer.*dynamic cache.*cache_implementation unset"):
        lossy(target(), assistant_model=draft(), **{CACHE_NAME: cache})


@functools.cache
def recurrent():
    config = MambaConfig(vocab_size=32, hidden_size=32, state_size=4, num_hidden_layers=2, **SPECIAL)
    return MambaForCausalLM(config).eval()


@functools.cache
def convolutional():
    config = Lfm2Config(vocab_size=32, num_hidden_layers=2, layer_types=["conv", "full_attention"], **SIZES, **SPECIAL)
    return Lfm2ForCausalLM(config).eval()


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_recurrent_state_is_refused(role):
    big, small = (recurrent(), draft()) if role == "target" else (target(), recurrent())
    with pytest.raises(LossyError, match=rf"the {role}'s cache can't be rolled back.*LinearAttentionLayer"):
        lossy(big, assistant_model=small)


@pytest.mark.parametrize("role", ["target", "draft", "both"])
def test_a_convolution_state_works_or_is_refused(role):
    """Since is_croppable these can be rolled back."""
    small = draft() if role == "target" else convolutional()
    big = target() if role == "draft" else convolutional()
    if hasattr(Cache, "is_croppable"):
        assert torch.equal(lossy(big, assistant_model=small), plain(big))
    else:
        with pytest.raises(LossyError, match=r"cache can't be rolled back.*LinearAttentionLayer"):
            lossy(big, assistant_model=small)


# transformers#35099, #33257, #31401
@pytest.mark.filterwarnings("ignore:You are calling .generate")  # of transformers before 5.16 or so, for meta devices
def test_offloaded_weights():
    """Models on the meta device, whose weights come when they are needed."""
    big, small = (accelerate.cpu_offload(copy.deepcopy(m), torch.device("cpu")) for m in (target(), draft()))
    assert torch.equal(lossy(big, assistant_model=small), plain(target()))
    texts = [
        lossy(t, assistant_model=d, verification="cos", do_sample=True, generator=torch.Generator().manual_seed(0))
        for t, d in [(big, small), (target(), draft())]
    ]
    assert torch.equal(*texts)


def test_a_static_ring_that_is_shorter_than_the_text_is_refused():
    with pytest.raises(LossyError, match=r"StaticSlidingWindowLayer.*dynamic cache"):
        lossy(mistral(), assistant_model=sibling(mistral()), cache_implementation="static")


def test_statistics_survive_without_a_cache_in_the_output():
    stats = hf_lossy.VerificationStats()
    lossy(target(), assistant_model=draft(), verification_stats=stats)
    assert stats.emitted == 24
