"""Drafts with quantised weights: the law stays the target's; what is missing or can't be done is one sentence."""

from __future__ import annotations

import copy
import importlib.util
import json

import numpy as np
import pytest
import torch
from optimum.quanto import QModuleMixin
from transformers.cache_utils import Cache, QuantoQuantizedLayer
from typer.testing import CliRunner

import hf_lossy
from hf_lossy.cli import app
from hf_lossy.compat import CACHE_NAME
from hf_lossy.loading import load_model, load_pair, pair_of, with_quantised_draft

from .models import PROMPT, head, lossy, plain, sibling, target
from .test_sampling_law import P_VALUE, SAMPLED, chi_square, warped


@pytest.fixture(scope="module")
def pair():
    return load_pair("arithmetic")


@pytest.fixture(scope="module")
def int8(pair):
    return hf_lossy.quantize_draft(copy.deepcopy(pair.draft))


def quantised(model):
    return [name for name, module in model.named_modules() if isinstance(module, QModuleMixin)]


def test_every_linear_layer_of_the_draft_is_quantised_and_its_text_hardly_changes(pair, int8):
    linear = [name for name, module in pair.draft.named_modules() if isinstance(module, torch.nn.Linear)]
    assert quantised(int8) == linear
    assert quantised(pair.draft) == []
    inputs = pair.inputs(pair.prompts[0])
    q, q8 = (model(**inputs).logits.softmax(-1) for model in (pair.draft, int8))
    assert 0 < (q - q8).abs().max() < 0.05


def test_greedy_lossless_text_is_the_targets(pair, int8):
    for prompt in pair.prompts[:5]:
        inputs, length = pair.inputs(prompt), pair.generate["max_new_tokens"]
        ours = hf_lossy.generate(
            pair.target, **inputs, assistant_model=int8, verification="lossless", max_new_tokens=length
        )
        assert torch.equal(ours, pair.target.generate(**inputs, max_new_tokens=length))


@pytest.mark.parametrize("coupling", ["token", "block"])
def test_the_lossless_law_is_the_targets_whatever_the_draft(coupling):
    """The joint law of two tokens, from whole forwards of the target alone, with a draft whose q is not the float one's."""
    vocabulary, temperature = 5, 2.0
    big, ids = target(vocabulary), PROMPT % vocabulary
    small = sibling(big)
    rough = hf_lossy.quantize_draft(copy.deepcopy(small))
    assert not torch.allclose(small(ids).logits, rough(ids).logits, atol=1e-3)
    generator, counts = torch.Generator().manual_seed(0), np.zeros(vocabulary**2)
    stats = hf_lossy.VerificationStats()
    for _ in range(400):
        out = lossy(
            big,
            ids,
            assistant_model=rough,
            coupling=coupling,
            generator=generator,
            temperature=temperature,
            max_new_tokens=2,
            verification_stats=stats,
            **SAMPLED,
        )
        counts[int(out[0, -2]) * vocabulary + int(out[0, -1])] += 1
    assert 0 < stats.accepted < stats.drafted
    prefixes = [ids, *(torch.cat([ids, torch.tensor([[t]])], 1) for t in range(vocabulary))]
    with torch.no_grad():
        ps = [warped(big(x).logits[0, -1], temperature) for x in prefixes]
    expected = np.concatenate([ps[0][t] * ps[1 + t] for t in range(vocabulary)])
    assert chi_square([(counts, expected)]) > P_VALUE


def test_a_head_is_quantised_without_the_embedding_that_it_borrows():
    big = target()
    small = hf_lossy.quantize_draft(copy.deepcopy(head(big)))
    assert "fc" in quantised(small)
    assert "lm_head" in quantised(small)
    assert quantised(big) == []
    assert torch.equal(lossy(big, assistant_model=small), plain(big))


def test_a_pair_says_that_its_draft_is_quantised():
    assert with_quantised_draft(load_pair("arithmetic"), "int8").name == "arithmetic (natural draft), int8 draft"
    lookup = pair_of(hf_lossy.embedded.path("arithmetic"))
    with pytest.raises(hf_lossy.LossyError, match=r"int8 weights needs a draft model, .*prompt lookup.* give --draft"):
        with_quantised_draft(lookup, "int8")


def test_mistakes_are_named(int8):
    with pytest.raises(hf_lossy.LossyError, match=r"unknown kind of draft weights 'int3'.*'int8'"):
        hf_lossy.quantize_draft(target(), "int3")
    with pytest.raises(hf_lossy.LossyError, match="weights of this LlamaForCausalLM are quantised already"):
        hf_lossy.quantize_draft(int8)


@pytest.fixture
def without(monkeypatch):
    """Hide packages."""
    find = importlib.util.find_spec

    def hide(*names):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name in names else find(name))

    return hide


def test_a_missing_quanto_is_named_with_its_extra(without):
    without("optimum.quanto")
    with pytest.raises(
        hf_lossy.LossyError, match=r"needs the package optimum-quanto: pip install 'hf-lossy\[quanto\]'"
    ):
        hf_lossy.quantize_draft(target())


@pytest.mark.parametrize(("missing", "package"), [("optimum.gptq", "optimum"), ("gptqmodel", "gptqmodel")])
def test_a_gptq_checkpoint_names_the_extra_that_it_needs(without, tmp_path, missing, package, monkeypatch):
    target().save_pretrained(tmp_path)
    hf_lossy.embedded.load("arithmetic")[2].save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 8, "group_size": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    find = importlib.util.find_spec

    def found(name, *_):
        if name in ("optimum.gptq", "gptqmodel"):
            return None if name == missing else find("json")
        return find(name)

    monkeypatch.setattr(importlib.util, "find_spec", found)
    with pytest.raises(
        hf_lossy.LossyError,
        match=rf"quantised by GPTQ, needs the package {package}: pip install 'hf-lossy\[gptq\]'",
    ):
        load_model(tmp_path)


def test_a_cache_that_quanto_quantises_is_refused():
    cache = Cache(layers=[QuantoQuantizedLayer(nbits=4, residual_length=4) for _ in range(2)])
    with pytest.raises(hf_lossy.LossyError, match=r"QuantoQuantizedLayer.*dynamic cache.*cache_implementation unset"):
        lossy(target(), assistant_model=sibling(target()), **{CACHE_NAME: cache})
    with pytest.raises(hf_lossy.LossyError, match=r"QuantoQuantizedLayer.*dynamic cache.*cache_implementation unset"):
        lossy(target(), assistant_model=sibling(target()), cache_implementation="quantized")


def test_the_command_line_quantises_the_draft(tmp_path):
    small = ["--limit", "1", "--max-new-tokens", "4", "--verification", "lenience", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["evaluate", "--draft-quantization", "int8", *small])
    assert done.exit_code == 0, (done.output, done.exception)
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["pair"] == "arithmetic (natural draft), int8 draft"
    assert summary["settings"]["draft_quantization"] == "int8"
