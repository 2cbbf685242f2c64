"""The ways in: four of them, one behaviour, and nothing left behind."""

from __future__ import annotations

import copy
import inspect
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, GenerationMixin, pipeline

import hf_lossy
from hf_lossy.errors import LossyError

from .models import PROMPT, char_tokenizer, draft, lossy, plain, target

HUB_FOLDER = Path(__file__).parents[1] / "recipes" / "custom_generate"
INPUTS = {"input_ids": PROMPT, "attention_mask": torch.ones_like(PROMPT)}
SHORT = {**INPUTS, "max_new_tokens": 8}
LENIENT = {"verification": "lenience", "verification_config": {"lenience": 0.4}}
SAMPLED = {"do_sample": True, "temperature": 0.8, "max_new_tokens": 20, "return_dict_in_generate": True}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(autouse=True)
def _nothing_left_behind():
    """Every test here leaves transformers and the shared models as they were."""
    before = dict(vars(GenerationMixin)), set(vars(target())), target().generation_config.to_dict()
    yield
    assert dict(vars(GenerationMixin)) == before[0]
    assert (set(vars(target())), target().generation_config.to_dict()) == before[1:]


@pytest.fixture
def own():
    """A copy of T to write on."""
    return copy.deepcopy(target())


# --- four ways in ------------------------------------------------------------------------------------------------------


def by_function(**kwargs):
    return hf_lossy.generate(target(), **INPUTS, **kwargs)


def by_method(**kwargs):
    with hf_lossy.enabled():
        return target().generate(**INPUTS, **kwargs)


def by_method_of_one_model(**kwargs):
    with hf_lossy.enabled(target()):
        return target().generate(**INPUTS, **kwargs)


def by_hook(assistant_model, verification, verification_config, **kwargs):
    decoder = hf_lossy.decoder(
        assistant_model=assistant_model, verification=verification, verification_config=verification_config
    )
    return target().generate(**INPUTS, custom_generate=decoder, **kwargs)


# transformers#40586, #40085, #38304: a custom generate gets its arguments, from a folder as well
def by_hub_folder(**kwargs):
    return target().generate(**INPUTS, custom_generate=str(HUB_FOLDER), trust_remote_code=True, **kwargs)


def by_hub_folder_while_enabled(**kwargs):
    with hf_lossy.enabled():
        return by_hub_folder(**kwargs)


def by_hook_while_enabled(**kwargs):
    with hf_lossy.enabled():
        return by_hook(**kwargs)


WAYS = [v for k, v in list(globals().items()) if k.startswith("by_")]
each_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


@pytest.mark.usefixtures("_modules")
@each_way
def test_all_ways_give_the_same(way):
    expected = lossy(target(), assistant_model=draft(), generator=seeded(), **LENIENT, **SAMPLED)
    out = way(assistant_model=draft(), generator=seeded(), **LENIENT, **SAMPLED)
    assert torch.equal(out.sequences, expected.sequences)
    assert isinstance(out, hf_lossy.LossyDecoderOnlyOutput)
    assert out.verification.rounds == expected.verification.rounds
    assert out.verification.settings["law"] == {"method": "lenience", "lenience": 0.4}


@pytest.mark.usefixtures("_modules")
@each_way
def test_all_ways_take_what_belongs_to_the_call(way):
    """Options beside the law, and transformers' own, reach the loop."""
    stats = hf_lossy.VerificationStats()
    out = way(
        assistant_model=draft(),
        **LENIENT,
        num_assistant_tokens=2,
        coupling="token",
        bonus="target",
        accounting=True,
        verification_stats=stats,
        draft_temperature=0.5,
        suppress_tokens=[24],
        max_new_tokens=9,
        do_sample=True,
    )
    assert isinstance(out, torch.Tensor)
    assert out.shape[1] == PROMPT.shape[1] + 9
    assert 24 not in out[0, 5:].tolist()
    assert {r.drafted for r in stats.rounds} <= {0, 1, 2}
    assert stats.settings | {"coupling": "token", "bonus": "target", "num_assistant_tokens": 2} == stats.settings
    assert stats.accounting is not None


def test_the_law_may_be_given_in_four_forms():
    forms = [
        LENIENT,
        {"verification": {"method": "lenience", "lenience": 0.4}},
        {"verification": {"method": "lenience"}, "verification_config": {"lenience": 0.4}},
        {"verification": hf_lossy.Lenience(0.4)},
    ]
    outs = [lossy(target(), assistant_model=draft(), generator=seeded(), **form, **SAMPLED) for form in forms]
    for out in outs[1:]:
        assert torch.equal(out.sequences, outs[0].sequences)
        assert out.verification.settings == outs[0].verification.settings


def test_without_any_patch_transformers_refuses_our_arguments():
    with pytest.raises(ValueError, match="verification"):
        target().generate(**INPUTS, verification="lossless")


def test_options_of_the_call_come_before_those_bound_to_a_decoder():
    decoder = hf_lossy.decoder(assistant_model=draft(), **LENIENT, num_assistant_tokens=2)
    out = target().generate(
        **SHORT, custom_generate=decoder, num_assistant_tokens=4, verification="cos", return_dict_in_generate=True
    )
    assert out.verification.settings["num_assistant_tokens"] == 4
    assert out.verification.settings["law"] == hf_lossy.Cos().to_dict()


@pytest.mark.usefixtures("_modules")
def test_the_hub_folder_is_what_transformers_expects():
    from huggingface_hub import ModelCard

    card = ModelCard((HUB_FOLDER / "README.md").read_text())
    assert "custom_generate" in card.data.tags
    assert card.data.library_name == "transformers"
    function = target().load_custom_generate(str(HUB_FOLDER), trust_remote_code=True)
    assert next(iter(inspect.signature(function).parameters)) == "model"
    assert (HUB_FOLDER / "custom_generate" / "requirements.txt").read_text().split() == ["hf-lossy"]
    with pytest.raises(ValueError, match="trust_remote_code"):
        target().generate(**INPUTS, custom_generate=str(HUB_FOLDER), trust_remote_code=False)


# --- enabling and disabling --------------------------------------------------------------------------------------------


def test_enable_and_disable_for_all_models():
    original = GenerationMixin.generate
    hf_lossy.enable()
    hf_lossy.enable()
    out = target().generate(**SHORT, assistant_model=draft(), verification="lossless")
    hf_lossy.disable()
    assert GenerationMixin.generate is original
    hf_lossy.disable()
    assert GenerationMixin.generate is original
    assert torch.equal(out, target().generate(**SHORT))
    with pytest.raises(ValueError, match="verification"):
        target().generate(**SHORT, verification="lossless")


def test_enable_for_one_model_leaves_the_others_alone(own):
    hf_lossy.enable(own)
    assert torch.equal(
        own.generate(**SHORT, assistant_model=draft(), verification="lossless"), plain(target(), max_new_tokens=8)
    )
    with pytest.raises(ValueError, match="verification"):
        target().generate(**SHORT, verification="lossless")
    hf_lossy.disable(own)
    assert "generate" not in vars(own)
    with pytest.raises(ValueError, match="verification"):
        own.generate(**SHORT, verification="lossless")


def test_enabled_restores_what_was_there_before_also_after_an_error():
    original = GenerationMixin.generate
    with pytest.raises(ZeroDivisionError), hf_lossy.enabled():
        raise ZeroDivisionError
    assert GenerationMixin.generate is original
    hf_lossy.enable()
    with hf_lossy.enabled():
        pass
    assert GenerationMixin.generate is not original  # it was enabled before the block
    with hf_lossy.enabled(target()), hf_lossy.enabled():
        assert lossy(target(), assistant_model=draft()).shape == (1, 29)
    hf_lossy.disable()


@pytest.mark.parametrize("model", ["all", "one"])
def test_enabled_without_verification_is_transformers_own(model):
    calls = [
        {},
        {"do_sample": True},
        {"num_beams": 2},
        {"assistant_model": draft()},
        {"assistant_model": draft(), "do_sample": True, "top_k": 5},
        {"prompt_lookup_num_tokens": 3},
        {"return_dict_in_generate": True, "output_scores": True},
        {"verification": None},
    ]
    for options in calls:
        torch.manual_seed(1)
        expected = target().generate(**SHORT, **{k: v for k, v in options.items() if k != "verification"})
        with hf_lossy.enabled(None if model == "all" else target()):
            torch.manual_seed(1)
            out = target().generate(**SHORT, **options)
        assert type(out) is type(expected)
        as_ids = (x if isinstance(x, torch.Tensor) else x.sequences for x in (out, expected))
        assert torch.equal(*as_ids)


def test_the_patched_method_still_looks_like_generate():
    before = inspect.signature(GenerationMixin.generate), GenerationMixin.generate.__doc__
    with hf_lossy.enabled():
        assert (inspect.signature(GenerationMixin.generate), GenerationMixin.generate.__doc__) == before


def test_a_class_with_a_generate_of_its_own_is_not_cut_off():
    """One that prepares something and calls super, as some of transformers' models do."""

    class Own(type(target())):
        def generate(self, *args, **kwargs):
            self.seen = True
            return super().generate(*args, **kwargs)

    model = Own(target().config).eval()
    model.load_state_dict(target().state_dict())
    for call in (lambda **k: hf_lossy.generate(model, **k), model.generate):
        model.seen = False
        with hf_lossy.enabled():
            out = call(**SHORT, assistant_model=draft(), verification="lossless")
        assert model.seen
        assert torch.equal(out, plain(target(), max_new_tokens=8))


def test_a_model_with_a_generate_of_its_own_is_not_silently_left_out(own):
    """As transformers gives one that was loaded from a repository with custom_generate."""
    own.generate = custom = partial(print, "custom")
    with pytest.raises(LossyError, match=r"generate of its own.*hf_lossy.generate"):
        hf_lossy.enable(own)
    hf_lossy.disable(own)
    assert own.generate is custom
    assert torch.equal(lossy(own, assistant_model=draft()), plain(target()))


def test_a_copy_of_an_enabled_model_is_enabled_by_itself(own):
    hf_lossy.enable(own)
    other = copy.deepcopy(own)
    hf_lossy.disable(own)
    assert torch.equal(
        other.generate(**SHORT, assistant_model=draft(), verification="lossless"), plain(own, max_new_tokens=8)
    )
    assert other.generate.__self__ is other
    assert "generate" not in vars(own)


def test_importing_has_no_side_effects():
    """Neither the package nor its parts change anything when they are imported."""
    code = """
import sys
import hf_lossy
assert not {"torch", "transformers"} & set(sys.modules)
import copy, logging, os, random, warnings
import numpy, torch, transformers
from transformers import GenerationMixin, PreTrainedModel
def state():
    return [dict(vars(GenerationMixin)), dict(vars(PreTrainedModel)), dict(vars(transformers.generation.utils)),
            dict(os.environ), list(warnings.filters), logging.root.level, list(logging.root.handlers),
            transformers.logging.get_verbosity(), torch.get_rng_state().tolist(), random.getstate(),
            torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(), os.getcwd(), list(sys.path)]
before = state()
import hf_lossy.generation, hf_lossy.drafting, hf_lossy.processors, hf_lossy.embedded, hf_lossy.laws, hf_lossy.couplings
after = state()
for old, new in zip(before, after, strict=True):
    assert old == new, (old, new)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- pipelines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tensor_only", [True, False])
def test_a_pipeline_works_after_enable(tensor_only):
    tokenizer, big, small = char_tokenizer(), target(31), draft(31)
    options = {"max_new_tokens": 12, "do_sample": False}
    expected = pipeline("text-generation", model=big, tokenizer=tokenizer)("hello you", **options)
    stats = hf_lossy.VerificationStats()
    with hf_lossy.enabled():
        pipe = pipeline("text-generation", model=big, tokenizer=tokenizer, assistant_model=small)
        if not tensor_only:
            options["return_tensors"] = True
        out = pipe("hello you", verification="lossless", verification_stats=stats, **options)
    if tensor_only:
        assert out == expected
    else:
        assert tokenizer.decode(out[0]["generated_token_ids"]) == expected[0]["generated_text"]
    assert stats.emitted == 12
    assert stats.settings["law"] == {"method": "lossless"}


# --- stored settings ---------------------------------------------------------------------------------------------------

STORED = {
    "verification": "speccascade",
    "verification_config": {"p_base": 0.3, "fallback": "target"},
    "coupling": "token",
    "bonus": "target",
    "num_assistant_tokens": 3,
    "num_assistant_tokens_schedule": "heuristic",
    "assistant_confidence_threshold": 0.1,
    "draft_temperature": 0.5,
    "accounting": True,
}


def test_stored_settings_survive_saving_and_are_used(own, tmp_path):
    expected = lossy(own, assistant_model=draft(), generator=seeded(), **STORED, **SAMPLED)
    hf_lossy.configure(own, **STORED)
    own.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    for model in (own, loaded):
        out = hf_lossy.generate(model, **INPUTS, assistant_model=draft(), generator=seeded(), **SAMPLED)
        with hf_lossy.enabled():
            same = model.generate(**INPUTS, assistant_model=draft(), generator=seeded(), **SAMPLED)
        assert torch.equal(out.sequences, expected.sequences)
        assert torch.equal(same.sequences, expected.sequences)
        assert out.verification.settings == same.verification.settings == expected.verification.settings
        assert out.verification.accounting == expected.verification.accounting
    # where nothing is enabled, and where it is declined, the checkpoint generates as ever
    assert torch.equal(plain(loaded), plain(target()))
    with hf_lossy.enabled():
        assert torch.equal(plain(loaded, verification=None), plain(target()))


@pytest.mark.parametrize(
    "option",
    [{"num_assistant_tokens": 20}, {"num_assistant_tokens": 3}, {"assistant_confidence_threshold": 0.4}],
    ids=str,
)
@pytest.mark.parametrize("where", ["configured", "generation_config", "decoder", "call"])
def test_a_value_that_is_transformers_default_counts_when_it_was_set(own, where, option):
    """transformers fills in 20 drafted tokens and a threshold of 0.4 where nobody set them; ours are 7 and 0."""
    call = {**INPUTS, "assistant_model": target(), "return_dict_in_generate": True, "max_new_tokens": 30}
    if where == "configured":
        hf_lossy.configure(own, verification="lossless", **option)
        out = hf_lossy.generate(own, **call)
    elif where == "generation_config":
        config = GenerationConfig(max_new_tokens=call.pop("max_new_tokens"), **option)
        config.return_dict_in_generate = call.pop("return_dict_in_generate")
        out = hf_lossy.generate(own, **call, generation_config=config, verification="lossless")
    elif where == "decoder":
        decoder = hf_lossy.decoder(verification="lossless", assistant_model=call.pop("assistant_model"), **option)
        out = own.generate(**call, custom_generate=decoder)
    else:
        out = hf_lossy.generate(own, **call, verification="lossless", **option)
    drafted = max(r.drafted for r in out.verification.rounds)
    if "num_assistant_tokens" in option:
        assert drafted == option["num_assistant_tokens"]
    else:  # S is seldom that sure of seven tokens in a row
        assert min(r.drafted for r in out.verification.rounds[:-1]) < 7


def test_unset_values_are_ours_and_not_transformers():
    out = lossy(target(), assistant_model=target(), max_new_tokens=30, return_dict_in_generate=True)
    assert [r.drafted for r in out.verification.rounds] == [7, 7, 7, 5]


def test_a_law_in_the_call_replaces_the_stored_one_with_its_parameters(own):
    hf_lossy.configure(own, verification="lenience", verification_config={"lenience": 0.3})
    for given, expected in [
        ({"verification": "cos"}, hf_lossy.Cos()),
        ({"verification": "lenience"}, hf_lossy.Lenience()),
        ({"verification": {"method": "typical", "epsilon": 0.2}}, hf_lossy.Typical(0.2)),
        ({"verification": hf_lossy.MinP(0.2)}, hf_lossy.MinP(0.2)),
        ({}, hf_lossy.Lenience(0.3)),
    ]:
        out = hf_lossy.generate(own, **SHORT, assistant_model=draft(), return_dict_in_generate=True, **given)
        assert out.verification.settings["law"] == expected.to_dict()


def test_configure_replaces_and_removes(own):
    hf_lossy.configure(own, verification=hf_lossy.Cos(0.3), coupling="token")
    hf_lossy.configure(own, verification="min_p")
    out = hf_lossy.generate(own, **SHORT, assistant_model=draft(), return_dict_in_generate=True)
    assert out.verification.settings["law"] == hf_lossy.MinP().to_dict()
    hf_lossy.configure(own, verification=None)
    with hf_lossy.enabled():
        assert torch.equal(plain(own), plain(target()))
    with pytest.raises(LossyError, match="no verification was given"):
        hf_lossy.generate(own, **SHORT, assistant_model=draft())


def test_configure_checks_before_it_stores(own):
    before = own.generation_config.to_dict()
    for options, message in [
        ({"verification": "lenient"}, "lenience"),
        ({"verification": "cos", "verification_config": {"lenience": 0.4}}, "lenience"),
        ({"assistant_model": draft()}, "assistant_model"),
        ({"coupling": "blok"}, "block"),
        ({"num_assistant_tokens": 0}, "num_assistant_tokens"),
    ]:
        with pytest.raises(LossyError, match=message):
            hf_lossy.configure(own, **options)
    assert own.generation_config.to_dict() == before


# --- randomness, threads, state ----------------------------------------------------------------------------------------


def test_a_generator_makes_runs_reproducible_and_leaves_the_global_one_alone():
    state = torch.get_rng_state()
    call = {"assistant_model": draft(), **LENIENT, **SAMPLED}
    one, same = (lossy(target(), generator=seeded(3), **call).sequences for _ in range(2))
    others = {tuple(lossy(target(), generator=seeded(seed), **call).sequences[0].tolist()) for seed in range(5)}
    assert torch.equal(one, same)  # Medusa#56: same seed, same result
    assert len(others) == 5
    assert torch.equal(torch.get_rng_state(), state)


def test_without_a_generator_the_global_seed_counts():
    call = {"assistant_model": draft(), **LENIENT, **SAMPLED}
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(lossy(target(), **call).sequences)
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


def test_greedy_decoding_throws_no_dice_that_count():
    one, other = (lossy(target(), assistant_model=draft(), generator=seeded(s), **LENIENT) for s in (1, 2))
    assert torch.equal(one, other)


def test_threads_that_share_the_models_do_not_disturb_each_other():
    methods = ["lenience", "cos", "lossless", "typical"]
    calls = [
        {"verification": methods[i % 4], "num_assistant_tokens": 1 + i % 3, "assistant_model": draft(), **SAMPLED}
        for i in range(12)
    ]
    expected = [lossy(target(), generator=seeded(i), **call) for i, call in enumerate(calls)]
    outs: list = [None] * len(calls)

    def serve(worker):
        for i in range(worker, len(calls), 4):
            outs[i] = target().generate(**INPUTS, generator=seeded(i), **calls[i])

    with hf_lossy.enabled():
        threads = [threading.Thread(target=serve, args=(worker,)) for worker in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    for out, alone in zip(outs, expected, strict=True):
        assert torch.equal(out.sequences, alone.sequences)
        assert out.verification.rounds == alone.verification.rounds


def test_models_are_left_as_they_were():
    before = [(dict(vars(m)), m.generation_config.to_dict(), m.config.to_dict()) for m in (target(), draft())]
    lossy(target(), assistant_model=draft(), num_assistant_tokens_schedule="heuristic", **LENIENT, **SAMPLED)
    after = [(dict(vars(m)), m.generation_config.to_dict(), m.config.to_dict()) for m in (target(), draft())]
    assert after == before


def test_a_given_generation_config_is_not_written_to():
    config = GenerationConfig(max_new_tokens=6, do_sample=True)
    before = config.to_dict()
    out = hf_lossy.generate(
        target(), **INPUTS, generation_config=config, assistant_model=draft(), num_assistant_tokens=3, **LENIENT
    )
    assert out.shape[1] == PROMPT.shape[1] + 6
    assert config.to_dict() == before


def test_a_given_generation_config_may_carry_the_verification():
    config = GenerationConfig(max_new_tokens=6, return_dict_in_generate=True)
    config.verification, config.verification_config = "lenience", {"lenience": 0.2}
    with hf_lossy.enabled():
        out = target().generate(**INPUTS, generation_config=config, assistant_model=draft())
    assert out.verification.settings["law"] == {"method": "lenience", "lenience": 0.2}


def test_a_collector_adds_up_calls():
    stats = hf_lossy.VerificationStats()
    outs = [
        lossy(
            target(), assistant_model=draft(), verification_stats=stats, **LENIENT, **{**SAMPLED, "max_new_tokens": n}
        )
        for n in (5, 9)
    ]
    assert stats.emitted == 14
    assert stats.rounds == [r for out in outs for r in out.verification.rounds]
    assert stats.target_forwards == sum(out.verification.target_forwards for out in outs)
    assert stats.draft_forwards == sum(out.verification.draft_forwards for out in outs)


def test_verification_none_is_plain_generation_whatever_is_stored(own):
    """Also inside transformers' own assisted decoding, which hands the target's settings to the draft's generate."""
    small = copy.deepcopy(draft())
    hf_lossy.configure(own, verification="lenience")
    hf_lossy.configure(small, verification="cos")
    settings = {"assistant_model": small, "do_sample": False, "max_new_tokens": 12, "verification": None}
    expected = plain(target(), do_sample=False, max_new_tokens=12)
    assert torch.equal(hf_lossy.generate(own, PROMPT, **settings), expected)
    with hf_lossy.enabled():
        assert torch.equal(own.generate(PROMPT, **settings), expected)


def test_a_positional_generation_config_is_seen():
    config = GenerationConfig(do_sample=False, max_new_tokens=6, return_dict_in_generate=True)
    config.verification = "cos"
    with hf_lossy.enabled():
        out = target().generate(PROMPT, config, assistant_model=draft())
    assert out.verification.settings["law"]["method"] == "cos"


def test_parameters_of_a_call_go_over_the_stored_ones(own):
    hf_lossy.configure(own, verification="capped_ensemble", verification_config={"draft_weight": 0.3, "lenience": 0.6})
    given = {"verification_config": {"lenience": 0.9}, "return_dict_in_generate": True, "max_new_tokens": 3}
    out = hf_lossy.generate(own, PROMPT, assistant_model=draft(), **given)
    assert out.verification.settings["law"] == {"method": "capped_ensemble", "draft_weight": 0.3, "lenience": 0.9}


def test_configure_checks_what_will_be_stored_and_none_removes(own):
    hf_lossy.configure(own, verification="speccascade", coupling="reference", num_assistant_tokens=3)
    with pytest.raises(LossyError, match="coupling='reference' does not exist for lenience"):
        hf_lossy.configure(own, verification="lenience")
    hf_lossy.configure(own, coupling=None, num_assistant_tokens=None)
    hf_lossy.configure(own, verification="lenience", verification_config={"lenience": np.float32(0.25)})
    assert own.generation_config.verification_config == {"lenience": 0.25}
    assert getattr(own.generation_config, "coupling", None) is None
    assert own.generation_config.num_assistant_tokens is None


def test_options_without_a_law_are_told():
    with hf_lossy.enabled(), pytest.raises(LossyError, match="coupling='token' was given without verification"):
        target().generate(PROMPT, coupling="token", max_new_tokens=2)
