"""What can't be done as asked is refused in one sentence: the argument, the value, what is allowed and the fix."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    SynthIDTextWatermarkingConfig,
    SynthIDTextWatermarkLogitsProcessor,
    T5Config,
    T5ForConditionalGeneration,
    TextStreamer,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
    WatermarkingConfig,
)

import hf_lossy
from hf_lossy.errors import LossyError

from .models import PROMPT, char_tokenizer, draft, lossy, plain, random_rule, sibling, table, target

TWO = torch.cat([PROMPT, PROMPT])
LOOKUP = {"prompt_lookup_num_tokens": 3, "assistant_model": None}


def encoder_decoder():
    config = T5Config(
        vocab_size=32,
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=None,
    )
    return T5ForConditionalGeneration(config).eval()


def refused(message_has, model=None, ids=PROMPT, error=LossyError, **kwargs):
    """The call raises one sentence (no line break) that has all the pieces; returns the message."""
    with pytest.raises(error) as caught:
        lossy(model or target(), ids, **{"assistant_model": draft(), **kwargs})
    message = str(caught.value)
    missing = [piece for piece in message_has if piece not in message]
    assert not missing, f"{missing} not in: {message}"
    assert "\n" not in message
    return message


# --- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "pieces"),
    [
        ({"verification": "lenient"}, ["verification", "'lenient'", "must be one of", "'lossless'", "mean 'lenience'"]),
        ({"verification": "speccascades"}, ["verification", "mean 'speccascade'"]),
        ({"verification": "wibble"}, ["verification", "'wibble'", "must be one of", "'typical'"]),
        ({"verification": 0.4}, ["verification", "float", "name", "Law"]),
        ({"verification": {"lenience": 0.4}}, ["verification", "'method'", "lenience"]),
        (
            {"verification": "cos", "verification_config": {"lenience": 0.4}},
            ["cos has no parameter 'lenience'", "0.4", "'draft_weight'", "'lenience' belongs to"],
        ),
        ({"verification": "lossless", "verification_config": {"mu": 1}}, ["no parameters", "belongs to contrastive"]),
        ({"verification": "lenience", "verification_config": {"lenience": 0.0}}, ["lenience", "(0, 1]", "got 0.0"]),
        ({"verification": "lenience", "verification_config": {"lenience": 1.5}}, ["lenience", "(0, 1]", "got 1.5"]),
        ({"verification": "lenience", "verification_config": {"lenience": "0.5"}}, ["lenience", "(0, 1]", "got '0.5'"]),
        ({"verification": "cos", "verification_config": {"draft_weight": -0.1}}, ["draft_weight", "[0, 1]", "-0.1"]),
        ({"verification": "typical", "verification_config": {"epsilon": 1}}, ["epsilon", "(0, 1)", "got 1"]),
        (
            {"verification": "speccascade", "verification_config": {"fallback": "both"}},
            ["fallback", "'draft' or 'target'", "got 'both'"],
        ),
        (
            {"verification": hf_lossy.Cos(0.3), "verification_config": {"draft_weight": 0.2}},
            ["verification_config", "draft_weight", "cos(0.3)", "instance"],
        ),
        (
            {"verification": {"method": "cos", "draft_weight": 0.3}, "verification_config": {"draft_weight": 0.2}},
            ["verification", "verification_config", "'draft_weight'", "leave one"],
        ),
        ({"verification": None, "verification_config": {"lenience": 0.4}}, ["verification_config", "name the law"]),
        ({"coupling": "blok"}, ["coupling", "'blok'", "'block', 'reference', 'token'", "mean 'block'"]),
        (
            {"coupling": "tree"},
            ["coupling='tree'", "function of the prefix", "leave it out", "'block', 'reference', 'token'"],
        ),
        ({"coupling": "greedy"}, ["coupling='greedy'", "nothing is sampled", "leave it out"]),
        (
            {"verification": "lenience", "coupling": "reference"},
            ["coupling='reference'", "lenience", "use coupling='token' or 'block'"],
        ),
        ({"bonus": "targets"}, ["bonus", "'targets'", "'induced', 'target'"]),
        ({"draft_probs": "pointmass"}, ["draft_probs", "'pointmass'", "'head', 'point_mass'"]),
        ({"draft_probs": "point_mass"}, ["draft_probs='point_mass'", "deterministic", "draft_temperature=0"]),
        ({"num_assistant_tokens": 0}, ["num_assistant_tokens", "at least 1", "got 0"]),
        ({"num_assistant_tokens": 2.5}, ["num_assistant_tokens", "at least 1", "got 2.5"]),
        (
            {"num_assistant_tokens_schedule": "dynamic"},
            ["num_assistant_tokens_schedule", "'constant', 'expected', 'heuristic'"],
        ),
        ({"assistant_confidence_threshold": 1.1}, ["assistant_confidence_threshold", "[0, 1]", "1.1"]),
        ({"draft_temperature": -1.0}, ["draft_temperature", "at least 0", "-1.0"]),
        ({"verification_stats": {}}, ["verification_stats", "VerificationStats", "dict"]),
        ({"assistant_model": "org/draft"}, ["assistant_model", "str", "from_pretrained"]),
        ({"assistant_model": None}, ["assistant_model", "prompt_lookup_num_tokens", "neither"]),
        ({"prompt_lookup_num_tokens": 3}, ["assistant_model", "prompt_lookup_num_tokens", "both"]),
        ({**LOOKUP, "prompt_lookup_num_tokens": 0}, ["prompt_lookup_num_tokens", "at least 1", "got 0"]),
    ],
    ids=str,
)
def test_options_that_are_wrong(given, pieces):
    refused(pieces, **given)


def test_an_option_that_does_not_exist():
    with pytest.raises(LossyError, match=r"option 'couplin'.*must be one of.*mean 'coupling'"):
        hf_lossy.decoder(assistant_model=draft(), verification="cos", couplin="token")
    with pytest.raises(ValueError, match="couplin"):
        lossy(target(), assistant_model=draft(), couplin="token")


# --- what does not go together -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "pieces"),
    [
        ({"num_beams": 2}, ["num_beams=2", "verification", "use num_beams=1"]),
        ({"num_beams": 3, "do_sample": True}, ["num_beams=3", "use num_beams=1"]),
        ({"use_cache": False}, ["use_cache=False", "rolls a cache back", "leave it on"]),  # hf blog#1146
        ({"cache_implementation": "paged"}, ["cache_implementation='paged'", "continuous batching", "leave it out"]),
        ({"synced_gpus": True}, ["synced_gpus=True", "device_map"]),
        ({"custom_generate": print}, ["custom_generate", "verification", "one of them"]),
        ({"assistant_ensemble_weight": 0.5}, ["assistant_ensemble_weight=0.5", "verification='cos'", "1 - weight"]),
        ({"assistant_early_exit": 1, "assistant_model": None}, ["assistant_early_exit=1", "assistant_model"]),
        ({"guidance_scale": 1.5}, ["guidance_scale=1.5", "state", "rolled back"]),
        ({"watermarking_config": WatermarkingConfig()}, ["watermarking_config", "state", "rolled back"]),
        ({"penalty_alpha": 0.6, "top_k": 4}, ["penalty_alpha=0.6", "another decoding method"]),
        ({"dola_layers": "high"}, ["dola_layers='high'", "another decoding method"]),
        ({"token_healing": True, "tokenizer": char_tokenizer()}, ["token_healing=True", "heal_tokens(input_ids"]),
        (
            {**LOOKUP, "verification": "lenience"},
            ["'lenience'", "needs the draft's prob", "prompt lookup", "point_mass"],
        ),
        ({**LOOKUP, "verification": "cos"}, ["'cos'", "a draft model", "lossless, min_p, eta"]),  # vLLM#40149
        ({**LOOKUP, "draft_temperature": 0.5}, ["draft_temperature=0.5", "prompt lookup"]),
        ({"draft_temperature": 0.5, "do_sample": False}, ["draft_temperature=0.5", "do_sample=False", "sample"]),
        ({**LOOKUP, "assistant_confidence_threshold": 0.5}, ["assistant_confidence_threshold=0.5", "prompt lookup"]),
        ({"stop_strings": "a"}, ["stop_strings='a'", "tokenizer"]),
        (
            {"ids": TWO, "streamer": TextStreamer(char_tokenizer())},
            ["streamer", "batch of 2", "once for each sequence"],
        ),
        (
            {"ids": TWO, "return_dict_in_generate": True, "output_hidden_states": True},
            ["output_hidden_states=True", "batch of 2"],
        ),
        ({"ids": TWO, "prefix_allowed_tokens_fn": lambda row, ids: [1, 2]}, ["prefix_allowed_tokens_fn", "batch of 2"]),
        ({"ids": TWO, "generator": [torch.Generator()]}, ["1 generators", "batch of 2", "one a row"]),
        ({"ids": TWO, "cache_implementation": "static"}, ["batch of 2", "dynamic cache", "StaticLayer"]),
        ({"ids": TWO, "pad_token_id": None}, ["batch of 2", "pad_token_id"]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_combinations_that_are_not_possible(given, pieces):
    given = dict(given)
    given.pop("input_ids", None)
    refused(pieces, **given)


def test_settings_of_the_generation_config_are_checked_too():
    for name, value, pieces in [
        ("num_beams", 2, ["num_beams=2"]),
        ("use_cache", False, ["use_cache=False"]),
        ("cache_implementation", "paged", ["paged"]),
        ("assistant_ensemble_weight", 0.3, ["assistant_ensemble_weight=0.3"]),
    ]:
        own = copy.deepcopy(target())
        setattr(own.generation_config, name, value)
        refused(pieces, own)
        config = type(own.generation_config)(max_new_tokens=4)
        setattr(config, name, value)
        with pytest.raises(LossyError, match=pieces[0]):
            hf_lossy.generate(
                target(), PROMPT, generation_config=config, assistant_model=draft(), verification="lossless"
            )


def test_input_embeddings_and_other_tensors():
    embeddings = target().get_input_embeddings()(PROMPT)
    with pytest.raises(LossyError, match=r"inputs_embeds.*input_ids"):
        hf_lossy.generate(target(), inputs_embeds=embeddings, assistant_model=draft(), verification="lossless")
    with pytest.raises(LossyError, match=r"inputs_embeds.*input_ids"), hf_lossy.enabled():
        target().generate(inputs_embeds=embeddings, assistant_model=draft(), verification="lossless")


def test_encoder_decoder_models():
    pieces = ["T5ForConditionalGeneration", "encoder-decoder", "model.generate"]
    refused(pieces, encoder_decoder())
    refused(["T5ForConditionalGeneration", "encoder-decoder", "decoder-only draft"], assistant_model=encoder_decoder())


class Guidance(UnbatchedClassifierFreeGuidanceLogitsProcessor):
    """A subclass keeps state as well."""


@pytest.mark.parametrize(
    "processor",
    [
        lambda: UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, target()),
        lambda: Guidance(1.5, target()),
        lambda: SynthIDTextWatermarkLogitsProcessor(
            5, [654, 400, 836], sampling_table_size=64, sampling_table_seed=0, context_history_size=16, device="cpu"
        ),
    ],
    ids=["guidance", "a subclass", "SynthID"],
)
def test_processors_that_keep_state(processor):
    processor = processor()
    name = type(processor).__name__
    refused([name, "state", "rolled back"], logits_processor=LogitsProcessorList([processor]))


def test_a_synthid_configuration():
    config = SynthIDTextWatermarkingConfig(5, [654, 400, 836])
    refused(["watermarking_config", "rolled back"], watermarking_config=config)


# --- vocabularies ------------------------------------------------------------------------------------------------------


# transformers#30728, #46124, #35029, #33383
def test_different_tokenizers():
    one, other = char_tokenizer("abcdefgh"), char_tokenizer("abcxefgh")
    given = {"tokenizer": one, "assistant_tokenizer": other}
    refused(["different tokenizers", "token 3 is 'd'", "'x' in the draft's", "same model family"], **given)
    given["assistant_tokenizer"] = char_tokenizer("abcdefghi")
    refused(["different tokenizers", "token 8 is None", "'i' in the draft's"], **given)
    given["assistant_tokenizer"] = char_tokenizer("abcdefgh")
    assert torch.equal(lossy(target(), assistant_model=draft(), **given), plain(target()))


def test_vocabularies_too_different_to_be_padding():
    big = table(random_rule(2000, 0), 2000)
    refused(["2000", "32", "same model family", "tokenizer="], big)
    refused(["2000", "32", "same model family", "tokenizer="], assistant_model=big)


def test_a_tokenizer_that_does_not_fit():
    tokenizer = char_tokenizer("".join(map(chr, range(48, 110))))  # 62 tokens
    refused(
        ["62 tokens", "the draft only 60"], target(64), assistant_model=sibling(target(64), 60), tokenizer=tokenizer
    )
    refused(
        ["62 tokens", "the target only 60"], target(60), assistant_model=sibling(target(60), 64), tokenizer=tokenizer
    )


# --- scores that are no distribution -----------------------------------------------------------------------------------


class Break(LogitsProcessor):
    """Makes the scores at one length NaN or -inf."""

    def __init__(self, length, value):
        self.length, self.value = length, value

    def __call__(self, input_ids, scores):
        return scores * self.value if input_ids.shape[1] == self.length else scores


def broken_rule(length, value):
    """Logits that are a point mass on the next token id, and broken at one length."""

    def rule(prefix):
        logits = torch.full((16,), -torch.inf)
        logits[(prefix[-1] + 1) % 16] = 0.0
        return torch.full((16,), value) if len(prefix) == length else logits

    return rule


@pytest.mark.parametrize("value", [float("nan"), -float("inf")], ids=["NaN", "-inf"])
@pytest.mark.parametrize("law", ["lossless", "lenience", "min_p"])
@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("length", [5, 6, 7, 8, 9, 12])
def test_a_target_whose_scores_are_broken(length, sample, law, value):
    """The position is the one with that many tokens before it: the first, within a block, the bonus, a later round."""
    right, broken = (table(broken_rule(n, value), 16) for n in (-1, length))
    pieces = ["the target's scores", f"position {length}", "NaN", "-inf", "processors in use: none", "check"]
    refused(pieces, broken, assistant_model=right, verification=law, do_sample=sample, num_assistant_tokens=3, top_k=0)


@pytest.mark.parametrize("value", [float("nan"), -float("inf")], ids=["NaN", "-inf"])
@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("length", [5, 6, 7, 12])
def test_a_draft_whose_scores_are_broken(length, sample, value):
    right, broken = (table(broken_rule(n, value), 16) for n in (-1, length))
    pieces = ["the draft's scores", f"position {length}", "processors in use: TopKLogitsWarper" if sample else "none"]
    options = {"top_k": 3} if sample else {}
    refused(
        pieces,
        right,
        assistant_model=broken,
        verification="lenience",
        do_sample=sample,
        num_assistant_tokens=3,
        **options,
    )


def test_a_draft_whose_scores_are_broken_at_the_bonus_position():
    right, broken = (table(broken_rule(n, float("nan")), 16) for n in (-1, 8))
    options = {"verification": "cos", "do_sample": True, "num_assistant_tokens": 3, "top_k": 0}
    refused(["the draft's scores", "position 8"], right, assistant_model=broken, **options)
    assert lossy(right, assistant_model=broken, bonus="target", max_new_tokens=4, **options).shape[1] == 9


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
def test_a_processor_that_forbids_everything_is_named(sample):
    processor = Break(7, float("nan"))
    pieces = ["scores at position 7", "processors in use: Break", "processors that forbid every token"]
    refused(pieces, logits_processor=[processor], do_sample=sample, top_k=0)


def test_what_is_broken_past_the_stop_does_no_harm():
    """A position that plain generation never sees."""
    right, broken = (table(broken_rule(n, float("nan")), 16) for n in (-1, 9))
    ours = lossy(broken, assistant_model=right, max_new_tokens=4, num_assistant_tokens=7)
    assert torch.equal(ours, plain(right, max_new_tokens=4))


def test_a_prompt_that_is_too_long_is_transformers_error():
    with pytest.raises(ValueError, match="max_length"):
        lossy(target(), assistant_model=draft(), max_new_tokens=None, max_length=4)
