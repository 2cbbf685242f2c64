"""The models that ship inside the package, and their task."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

import hf_lossy
from hf_lossy.embedded import clock_sums, drafts, names, path

EXAMPLE = "from 21 also 14 = 3 also 1 makes 4 plus 1 = 5 add 4 gives 9 so 9 <eos>"
OPERANDS = [14, 4, 1, 1, 21]


def right_share(model: PreTrainedModel, count: int = 200) -> float:
    """Greedy accuracy on problems that `make run` does not use."""
    tokenizer = AutoTokenizer.from_pretrained(path("arithmetic"))
    sums = clock_sums.problems(count, seed=99)
    inputs = tokenizer([clock_sums.prompt(s) for s in sums], return_tensors="pt", return_token_type_ids=False)
    out = model.generate(**inputs, do_sample=False, max_new_tokens=clock_sums.MAX_NEW_TOKENS)
    texts = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :])
    return sum(clock_sums.is_correct(s, t) for s, t in zip(sums, texts, strict=True)) / count


def test_they_are_small_and_ordinary():
    size = sum(f.stat().st_size for f in path("arithmetic").parent.rglob("*") if f.is_file())
    assert size < 8e6
    for name in names():
        for draft in drafts(name):
            target, small, tokenizer = hf_lossy.embedded.load(name, draft=draft)
            assert isinstance(target, PreTrainedModel)
            assert isinstance(small, PreTrainedModel)
            assert isinstance(tokenizer, PreTrainedTokenizerFast)
            assert target.dtype == small.dtype == torch.float32
            assert len(tokenizer) == target.config.vocab_size == small.config.vocab_size == len(clock_sums.WORDS) == 54


def test_the_target_adds_and_the_drafts_add_worse():
    target = AutoModelForCausalLM.from_pretrained(path("arithmetic"), dtype=torch.float32)
    best = right_share(target)
    assert best >= 0.9
    for name in drafts("arithmetic"):
        weak = right_share(
            AutoModelForCausalLM.from_pretrained(path("arithmetic", f"draft-{name}"), dtype=torch.float32)
        )
        assert 0.2 < weak < best - 0.1


def test_an_unknown_name_is_told():
    with pytest.raises(hf_lossy.LossyError, match=r"unknown embedded pair 'arithmetics'.*Did you mean 'arithmetic'"):
        hf_lossy.embedded.load("arithmetics")
    with pytest.raises(hf_lossy.LossyError, match=r"unknown draft of 'arithmetic' 'natura'.*'natural', 'shortcut'"):
        hf_lossy.embedded.load("arithmetic", draft="natura")


def test_the_tokenizer_is_one_word_one_token():
    tokenizer = AutoTokenizer.from_pretrained(path("arithmetic"))
    ids = tokenizer(clock_sums.prompt(OPERANDS))["input_ids"]
    assert len(ids) == 7
    assert tokenizer.decode(ids) == "<bos> 14 4 1 1 21 :"


@pytest.mark.parametrize("corpus", [clock_sums.TARGET_CORPUS, clock_sums.SHORTCUT_CORPUS], ids=["target", "shortcut"])
def test_the_corpus_is_right_and_short_enough(corpus):
    rng = random.Random(0)
    doubles = 0
    for _ in range(500):
        operands = clock_sums.problem(rng)
        words = corpus.working(operands, rng)
        assert len(words) <= clock_sums.MAX_NEW_TOKENS
        assert set(words) <= set(clock_sums.WORDS)
        assert clock_sums.is_correct(operands, " ".join(words))
        assert clock_sums.first_mistake(operands, " ".join(words)) is None
        doubles += clock_sums.BOTH in words
    # at most four steps a working, each double with probability .05 or .25
    assert doubles < 500 * 0.25 if corpus is clock_sums.TARGET_CORPUS else doubles > 500 * 0.4


@pytest.mark.parametrize(
    ("wrong", "where", "kind"),
    [
        (EXAMPLE.replace("= 3", "= 4"), 5, "sum"),
        (EXAMPLE.replace("also 1 makes", "also 2 makes"), 7, "pick"),
        (EXAMPLE.replace("add 4 gives 9 ", ""), 14, "pick"),
        (EXAMPLE.replace("so 9", "so 8"), 19, "sum"),
        ("from 21 both 14 4 = 6 add 1 = 7 add 1 = 8 so 8", 6, "slip"),
        ("14 4 1", 0, "form"),
        (EXAMPLE.replace("= 3", "3 ="), 4, "form"),
        (EXAMPLE.replace("so 9 <eos>", "so 9 so <eos>"), 20, "form"),
        ("", 0, "form"),
    ],
)
def test_the_first_mistake_is_found(wrong, where, kind):
    assert clock_sums.first_mistake(OPERANDS, wrong) == (where, kind)


def test_marking():
    assert clock_sums.is_correct(OPERANDS, EXAMPLE)
    assert not clock_sums.is_correct(OPERANDS, EXAMPLE.replace("so 9", "so 8"))
    assert not clock_sums.is_correct(OPERANDS, "so")
    assert clock_sums.operands_of("<bos> 14 4 1 1 21 :") == OPERANDS
    assert clock_sums.operands_of("what is 2 + 2 :") is None
