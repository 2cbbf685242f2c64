"""Greedy decoding: strict settings give transformers' own text token by token, lossy ones argmax π of the formulas.

Rows of shared/spec/user_reports.md are named in comments.
"""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    DeepseekV3Config,
    GPT2Config,
    GptOssConfig,
    LogitsProcessor,
    LogitsProcessorList,
    Phi3Config,
)

import hf_lossy
from hf_lossy import laws
from hf_lossy.laws import law_class

from . import oracle
from .models import (
    PROMPT,
    SIZES,
    char_tokenizer,
    draft,
    head,
    lossy,
    plain,
    random_rule,
    scripted,
    sibling,
    table,
    target,
)

STRICT = [
    hf_lossy.Lossless(),
    hf_lossy.Lenience(1.0),
    hf_lossy.Cos(0.0),
    hf_lossy.Contrastive(0.0, plausibility=0.0),
    hf_lossy.AdaptiveEnsemble(1.0),
    hf_lossy.CappedEnsemble(draft_weight=0.0),
    hf_lossy.CappedEnsemble(lenience=1.0),
    hf_lossy.MinP(0.0),
]
LOSSY = [
    hf_lossy.Lenience(0.3),
    hf_lossy.Cos(0.7),
    hf_lossy.Contrastive(0.6),
    hf_lossy.AdaptiveEnsemble(0.3),
    hf_lossy.CappedEnsemble(0.8, 0.3),
    hf_lossy.GatedCeiling(0.3, 0.5),
    hf_lossy.SpecCascade(0.2),
    hf_lossy.SpecCascade(0.2, "target"),
    hf_lossy.SpecCascade(0.8, rule="opt"),
    hf_lossy.Typical(0.15),
    hf_lossy.Typical(0.15, fallback="target"),
    hf_lossy.MinP(0.5),
    hf_lossy.Eta(0.2),
]
DRAFTS = {
    "D": lambda: {"assistant_model": draft()},
    "S": lambda: {"assistant_model": target()},
    "prompt lookup": lambda: {"prompt_lookup_num_tokens": 4},
    "head": lambda: {"assistant_model": head(target()), "draft_mode": "chain"},
}
each_draft = pytest.mark.parametrize("drafted", DRAFTS.values(), ids=DRAFTS)


def test_every_law_with_a_strict_setting_is_tested_here():
    assert {law.name for law in STRICT} == {name for name in laws.names() if law_class(name).strict_at != "never"}
    assert {law.name for law in LOSSY} == set(laws.names()) - {"lossless"}


def test_the_draft_is_sometimes_right_and_sometimes_wrong():
    """What makes the tests below tests: whole, partial and empty acceptance all occur."""
    stats = hf_lossy.VerificationStats()
    lossy(target(), assistant_model=draft(), num_assistant_tokens=3, verification_stats=stats)
    assert set(stats.acceptance_histogram) == {0, 1, 2, 3}


# --- strict settings are plain greedy decoding -------------------------------------------------------------------------


# transformers#39421, #30413, #30042, openvino.genai#4476: assisted greedy differs from greedy
@pytest.mark.parametrize("coupling", ["token", "block"])
@pytest.mark.parametrize("law", STRICT, ids=str)
def test_strict_settings_are_plain_greedy(law, coupling):
    ours = lossy(target(), assistant_model=draft(), verification=law, coupling=coupling)
    assert torch.equal(ours, plain(target()))


@each_draft
@pytest.mark.parametrize("gamma", range(1, 8))
def test_for_every_draft_and_draft_length(drafted, gamma):
    assert torch.equal(lossy(target(), num_assistant_tokens=gamma, **drafted()), plain(target()))


@each_draft
@pytest.mark.parametrize("count", [1, 2, 3, 8, 9])
def test_for_every_length(drafted, count):
    """The last rounds draft less, so that exactly this many tokens come out."""
    ours = lossy(target(), max_new_tokens=count, **drafted())
    assert ours.shape[1] == PROMPT.shape[1] + count
    assert torch.equal(ours, plain(target(), max_new_tokens=count))


@pytest.mark.parametrize("ids", [PROMPT[:, :1], torch.arange(30)[None]], ids=["one token", "thirty tokens"])
@each_draft
def test_for_short_and_long_prompts(drafted, ids):
    assert torch.equal(lossy(target(), ids, **drafted()), plain(target(), ids))


def test_max_length_counts_the_prompt():
    ours = lossy(target(), assistant_model=draft(), max_new_tokens=None, max_length=12)
    assert ours.shape[1] == 12
    assert torch.equal(ours, plain(target(), max_new_tokens=None, max_length=12))


def test_a_heuristic_schedule_and_a_confidence_threshold_change_nothing():
    for option in ({"num_assistant_tokens_schedule": "heuristic"}, {"assistant_confidence_threshold": 0.5}):
        assert torch.equal(lossy(target(), assistant_model=draft(), **option), plain(target()))


@pytest.mark.parametrize("chunk", [2, 3, 29])
def test_a_prefill_in_chunks_changes_nothing(chunk):
    ids = torch.arange(30)[None]
    ours = lossy(target(), ids, assistant_model=draft(), prefill_chunk_size=chunk)
    assert torch.equal(ours, plain(target(), ids))


ARCHITECTURES = {
    "gpt2": lambda: GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=128),
    "bloom": lambda: BloomConfig(hidden_size=32, n_layer=2, n_head=4),  # no positions at all
    "phi3": lambda: Phi3Config(num_hidden_layers=2, **SIZES),  # prepares its inputs itself
    "gpt-oss": lambda: GptOssConfig(
        num_hidden_layers=2, head_dim=8, sliding_window=8, num_local_experts=4, num_experts_per_tok=2, **SIZES
    ),
    "deepseek": lambda: DeepseekV3Config(
        num_hidden_layers=2,
        moe_intermediate_size=16,
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        kv_lora_rank=8,
        q_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
        first_k_dense_replace=1,
        **{**SIZES, "num_key_value_heads": 4},
    ),
}


@pytest.mark.parametrize("config", ARCHITECTURES.values(), ids=ARCHITECTURES)
@pytest.mark.parametrize("padding", [0, 3])
def test_for_other_architectures(config, padding):
    """Whatever a model does about positions, masks and caches; the draft is the target with noise on its weights."""
    config = config()
    config.vocab_size, config.initializer_range = 32, 0.25
    config.bos_token_id, config.eos_token_id, config.pad_token_id = None, None, 0
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        big = AutoModelForCausalLM.from_config(config).eval()
        small = copy.deepcopy(big)
        for parameter in small.parameters():
            parameter += 0.03 * torch.randn_like(parameter)
    ids = torch.nn.functional.pad(PROMPT, (padding, 0))
    options = {"attention_mask": (ids != 0).long(), "max_new_tokens": 20}
    out = lossy(big, ids, assistant_model=small, return_dict_in_generate=True, **options)
    assert torch.equal(out.sequences, plain(big, ids, **options))
    assert 0 < out.verification.accepted < out.verification.drafted


# --- padding, positions, precision, vocabularies -----------------------------------------------------------------------


@each_draft
@pytest.mark.parametrize("given", [True, False], ids=["mask given", "mask inferred"])
def test_a_left_padded_prompt(drafted, given):
    ids = torch.cat([torch.zeros(1, 3, dtype=torch.long), PROMPT], 1)
    mask = {"attention_mask": (ids != 0).long() if given else None}
    ours = lossy(target(), ids, **mask, **drafted())
    assert torch.equal(ours, plain(target(), ids, **mask))
    if drafted is not DRAFTS["prompt lookup"]:  # which may look into the padding
        assert torch.equal(ours[:, 3:], plain(target()))


def test_positions_of_ones_own():
    positions = torch.tensor([[3, 4, 9, 10, 11]])
    ours = lossy(target(), assistant_model=draft(), position_ids=positions)
    assert torch.equal(ours, plain(target(), position_ids=positions))
    assert not torch.equal(ours, plain(target()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_draft_in_another_precision(dtype):
    # transformers#35099, #33257, #31401: draft and target need not be alike
    small = copy.deepcopy(draft()).to(dtype)
    assert torch.equal(lossy(target(), assistant_model=small), plain(target()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_texts_part_only_where_two_tokens_tie(dtype):
    big = copy.deepcopy(target()).to(dtype)
    ours = lossy(big, assistant_model=draft(), max_new_tokens=60)[0]
    theirs = plain(big, max_new_tokens=60)[0]
    apart = (ours != theirs).nonzero().flatten().tolist()
    if apart:
        with torch.no_grad():
            logits = big(theirs[None, : apart[0]]).logits[0, -1].float()
        gap = (logits[theirs[apart[0]]] - logits[ours[apart[0]]]).abs()
        assert gap <= 8 * torch.finfo(dtype).eps * logits.abs().max()
    assert len(apart) < 60  # the first token at least is the same
    assert ours[PROMPT.shape[1]] == theirs[PROMPT.shape[1]]


# transformers#45307: padded vocabularies crash when sampling
@pytest.mark.parametrize(("rows", "draft_rows"), [(64, 60), (60, 64), (64, 64)])
def test_rows_past_the_shorter_vocabulary_are_left_out(rows, draft_rows):
    ours = lossy(target(rows), assistant_model=sibling(target(rows), draft_rows))
    missing = list(range(min(rows, draft_rows), rows)) or None
    assert torch.equal(ours, plain(target(rows), suppress_tokens=missing))


@pytest.mark.parametrize(("rows", "draft_rows"), [(64, 60), (60, 64)])
def test_rows_that_the_tokenizer_cannot_produce_are_left_out(rows, draft_rows):
    """A tokenizer of 50 tokens; the rows past it are padding."""
    big, tokenizer = target(rows), char_tokenizer("".join(map(chr, range(48, 98))))
    given = {"assistant_model": sibling(big, draft_rows), "tokenizer": tokenizer}
    ours = lossy(big, **given)
    assert torch.equal(ours, plain(big, suppress_tokens=list(range(50, rows))))
    assert not torch.equal(ours, plain(big))
    sampled = lossy(big, do_sample=True, temperature=5.0, top_k=0, max_new_tokens=100, **given)
    assert int(sampled.max()) < 50
    assert int(plain(big, do_sample=True, temperature=5.0, top_k=0, max_new_tokens=100).max()) >= 50


# --- processors that look at the prefix --------------------------------------------------------------------------------


class LengthDependent(LogitsProcessor):
    """Writes into what it is given, a different token each time."""

    def __call__(self, input_ids, scores):
        scores[:, (7 * input_ids.shape[1]) % scores.shape[1]] += 6
        return scores


def alternating(_, ids):
    return [t for t in range(32) if (t + len(ids)) % 2]


PROCESSORS = {
    "repetition_penalty": {"repetition_penalty": 1.8},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "bad_words_ids": {"bad_words_ids": [[2], [18, 24], [24, 24, 24]]},
    "min_new_tokens": {"min_new_tokens": 9, "eos_token_id": 18},
    "min_length": {"min_length": 13, "eos_token_id": 18},
    "forced_eos_token_id": {"forced_eos_token_id": 7},
    "suppress_tokens": {"suppress_tokens": [24, 30]},
    "begin_suppress_tokens": {"begin_suppress_tokens": [31]},
    "sequence_bias": {"sequence_bias": [[[31, 24], -9.0], [[18, 5], 9.0]]},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (3, 1.4), "eos_token_id": 7},
    "prefix_allowed_tokens_fn": {"prefix_allowed_tokens_fn": alternating},
    "logits_processor": {"logits_processor": [LengthDependent()]},
    "several": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "suppress_tokens": [24], "min_new_tokens": 4},
}


@each_draft
@pytest.mark.parametrize("options", PROCESSORS.values(), ids=PROCESSORS)
def test_processors_see_the_right_prefix(drafted, options):
    expected = plain(target(), **options)
    assert torch.equal(lossy(target(), **options, **drafted()), expected)
    assert not torch.equal(expected, plain(target(), eos_token_id=options.get("eos_token_id")))


def test_a_prompt_lookup_of_what_the_processors_forbid():
    """No processor is called with a prefix that the processors themselves would never have let arise."""

    class Rising(LogitsProcessor):
        """Tokens that follow each other; a grammar that has no answer to a broken prefix."""

        def __call__(self, input_ids, scores):
            for row, ids in enumerate(input_ids.tolist()):
                assert all(b == (a + 1) % 32 for a, b in itertools.pairwise(ids[PROMPT.shape[1] :]))
                scores[row, torch.arange(32) != (ids[-1] + 1) % 32] = -torch.inf
            return scores

    ids = torch.tensor([[6, 3, 6, 3, 5]])  # 6 will be followed by 7, and is in the prompt before a 3
    more = torch.cat([ids, torch.tensor([[7, 8, 9, 10, 6]])])  # the second finds more than the first, and nothing ends
    for rows in (ids, more):
        grammar = LogitsProcessorList([Rising()])
        ours = lossy(target(), rows, prompt_lookup_num_tokens=3, logits_processor=grammar, max_new_tokens=6)
        assert ours[:, 5:].tolist() == [[6, 7, 8, 9, 10, 11], [7, 8, 9, 10, 11, 12]][: len(rows)]


@pytest.mark.parametrize("verification", ["lossless", "lenience"])
@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
def test_no_processor_sees_an_ended_text(sample, verification):
    """A grammar has no answer to what comes after the end: plain generation never asks."""
    script, end = [7, 8, 9, 10, 11, 12], 9

    def grammar(_, ids):
        new = ids[PROMPT.shape[1] :].tolist()
        assert end not in new
        return script[len(new) : len(new) + 1]

    options = {
        "prefix_allowed_tokens_fn": grammar,
        "eos_token_id": end,
        "do_sample": sample,
        "verification": verification,
    }
    for drafted in (
        {"assistant_model": scripted(script)},
        {"assistant_model": scripted(script), "num_assistant_tokens": 3},
    ):
        assert lossy(scripted(script), **options, **drafted)[0, PROMPT.shape[1] :].tolist() == [7, 8, 9]
    ids = torch.tensor([[5, 7, 8, 9, 10, 5]])
    big = scripted(script, prompt=6)
    if verification == "lossless":
        options["prefix_allowed_tokens_fn"] = lambda _, ids: grammar(_, ids[1:])
        assert lossy(big, ids, prompt_lookup_num_tokens=4, **options)[0, 6:].tolist() == [7, 8, 9]


# --- lossy laws are argmax π -------------------------------------------------------------------------------------------


@torch.no_grad()
def distributions(prefix):
    """p and q at a prefix, from whole forwards."""
    return [m(prefix[None]).logits[0, -1].double().softmax(-1).numpy() for m in (target(), draft())]


def greedy_by_formula(law, sources):
    """Argmax π token by token; argmax p at bonus positions that follow the target."""
    ids, parameters = PROMPT[0], law.to_dict()
    method = parameters.pop("method")
    for source in sources:
        p, q = distributions(ids)
        pi = p if source == "bonus" else oracle.induced(method, p, q, **parameters)
        ids = torch.cat([ids, torch.tensor([int(np.argmax(pi))])])
    return ids[None]


@pytest.mark.parametrize("law", LOSSY, ids=str)
def test_lossy_laws_emit_their_argmax(law):
    ours = lossy(target(), assistant_model=draft(), verification=law, max_new_tokens=16)
    assert torch.equal(ours, greedy_by_formula(law, ["any"] * 16))


@pytest.mark.parametrize("law", LOSSY[:8], ids=str)
def test_with_the_targets_bonus_they_emit_its_argmax_there(law):
    out = lossy(
        target(),
        assistant_model=draft(),
        verification=law,
        bonus="target",
        num_assistant_tokens=1,
        max_new_tokens=16,
        return_dict_in_generate=True,
    )
    sources = out.verification.rows[0].sources
    assert "bonus" in sources
    assert torch.equal(out.sequences, greedy_by_formula(law, sources))


def test_the_lossy_laws_above_are_lossy():
    texts = {str(law): greedy_by_formula(law, ["any"] * 16) for law in LOSSY}
    changed = {name for name, text in texts.items() if not torch.equal(text, plain(target(), max_new_tokens=16))}
    assert changed >= {str(law) for law in LOSSY if law_class(law.name).family != "baseline"}


# transformers#45865, #45979: its ensemble is cos with λ = 1 − w, and the target's bonus
@pytest.mark.parametrize("weight", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("gamma", [1, 3])
def test_cos_is_transformers_ensemble(weight, gamma):
    """The draft looks at the last token only: 5.15.0 leaves it with a wrong cache after a refusal."""
    big, small, ids = table(random_rule(8, 0), 8), table(random_rule(8, 1), 8, order=1), PROMPT % 8
    small.generation_config.num_assistant_tokens = gamma
    small.generation_config.num_assistant_tokens_schedule = "constant"
    small.generation_config.assistant_confidence_threshold = 0.0
    theirs = plain(big, ids, assistant_model=small, assistant_ensemble_weight=weight)
    options = {"verification": hf_lossy.Cos(1 - weight), "bonus": "target", "num_assistant_tokens": gamma}
    assert torch.equal(lossy(big, ids, assistant_model=small, **options), theirs)
    assert not torch.equal(theirs, plain(big, ids))


@pytest.mark.parametrize("law", [hf_lossy.Typical(0.1), hf_lossy.SpecCascade(0.3)], ids=str)
@pytest.mark.parametrize("fallback", ["draft", "target"])
def test_the_reference_coupling_is_greedy_alike(law, fallback):
    law = type(law)(**{**law.parameters(), "fallback": fallback})
    one, other = (
        lossy(target(), assistant_model=draft(), verification=law, coupling=c) for c in ("reference", "block")
    )
    assert torch.equal(one, other)


# Medusa#56: typical acceptance at a temperature near zero is greedy
@pytest.mark.parametrize("fallback", ["draft", "target"])
def test_typical_acceptance_near_temperature_zero_is_greedy(fallback):
    config = {"epsilon": 0.3, "fallback": fallback}
    ours = lossy(
        target(),
        assistant_model=draft(),
        verification="typical",
        verification_config=config,
        do_sample=True,
        temperature=1e-4,
    )
    assert torch.equal(ours, plain(target()))


# --- what else comes back ----------------------------------------------------------------------------------------------


@each_draft
@pytest.mark.parametrize("ids", [PROMPT, PROMPT[:, :1]], ids=["prompt", "one-token prompt"])
def test_scores_logits_states_and_attentions_are_plain_greedys(drafted, ids):
    big = target(attention="eager")
    asked = {
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
        "output_hidden_states": True,
        "output_attentions": True,
        "repetition_penalty": 1.3,
        "num_assistant_tokens": 3,
    }
    ours = lossy(big, ids, **asked, **drafted())
    del asked["num_assistant_tokens"]
    theirs = plain(big, ids, **asked)
    assert torch.equal(ours.sequences, theirs.sequences)
    for name in ("scores", "logits"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert len(mine) == len(other) == 24
        torch.testing.assert_close(torch.stack(mine), torch.stack(other), rtol=1e-4, atol=1e-4)
    assert not torch.equal(ours.scores[5], ours.logits[5])
    for name in ("hidden_states", "attentions"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert len(mine) == len(other) == 24
        for at_token, expected in zip(mine, other, strict=True):
            torch.testing.assert_close(at_token, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_scores_of_sampled_text_are_the_targets_processed_ones():
    big = target()
    out = lossy(
        big,
        assistant_model=draft(),
        verification="lenience",
        do_sample=True,
        temperature=0.5,
        top_k=7,
        generator=torch.Generator().manual_seed(0),
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
    )
    logits = big(out.sequences).logits[0, PROMPT.shape[1] - 1 : -1]
    torch.testing.assert_close(torch.cat(out.logits), logits, rtol=1e-4, atol=1e-4)
    warped = logits / 0.5
    warped[warped < warped.topk(7).values[:, -1:]] = -torch.inf
    torch.testing.assert_close(torch.cat(out.scores), warped, rtol=1e-4, atol=1e-4)


def test_a_target_in_double_precision():
    big = copy.deepcopy(target()).double()
    assert torch.equal(lossy(big, assistant_model=draft()), plain(big))
    assert lossy(big, assistant_model=draft(), verification="lenience", do_sample=True).shape == (1, 29)


def test_what_was_not_asked_for_is_none():
    out = lossy(target(), assistant_model=draft(), return_dict_in_generate=True)
    assert out.scores is out.logits is out.hidden_states is out.attentions is None
    assert isinstance(lossy(target(), assistant_model=draft(), output_scores=True), torch.Tensor)


def test_logits_come_in_float32_as_transformers_gives_them():
    big = copy.deepcopy(target()).to(torch.bfloat16)
    asked = {"return_dict_in_generate": True, "output_logits": True, "output_scores": True, "max_new_tokens": 3}
    ours, theirs = lossy(big, assistant_model=draft(), **asked), plain(big, **asked)
    assert ours.logits[0].dtype == theirs.logits[0].dtype
    assert ours.scores[0].dtype == theirs.scores[0].dtype


# --- drafts that are always wrong --------------------------------------------------------------------------------------


# transformers#31301: the draft wants to stop all the time, the target does not
def test_a_draft_that_always_ends_the_text_does_not_end_it():
    big, wrong = table(random_rule(16, 3), 16), scripted([7])
    expected = plain(big, eos_token_id=7, max_new_tokens=12)
    ours = lossy(big, assistant_model=wrong, eos_token_id=7, max_new_tokens=12)
    assert torch.equal(ours, expected)
    assert expected.shape[1] > PROMPT.shape[1] + 2
