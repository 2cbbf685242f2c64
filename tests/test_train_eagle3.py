"""Training an EAGLE-3 head: the pruned training-time test against inference, the recipes end to end, resuming, refusals."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard

from hf_lossy import LossyError, embedded
from hf_lossy.cards import card_of
from hf_lossy.eagle3 import Eagle3Config, Eagle3Head, HeadCache, load_head
from hf_lossy.eagle3.training import losses, measured
from hf_lossy.embedded import clock_sums
from hf_lossy.loading import load_pair

from . import models


def recipe(name):
    file = Path(__file__).parents[1] / "recipes" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sample, train = recipe("sample_dialogues"), recipe("train_eagle3")


# --- the training-time test ------------------------------------------------------------------------------------------

V, STEPS = 23, 3


@pytest.fixture
def case():
    """A random head over every second token, two texts, and positions that count: some, in a run, at the ends, none."""
    torch.manual_seed(0)
    config = Eagle3Config(
        vocab_size=V,
        draft_vocab_size=(V + 1) // 2,
        hidden_size=16,
        intermediate_size=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        taps=[0, 1],
        own_embedding=True,
    )
    head = Eagle3Head(config).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    head.d2t.copy_(torch.arange(config.draft_vocab_size))  # draft id i is token 2 i
    taps, tokens = torch.randn(3, 9, 32).double(), torch.randint(V, (3, 9))
    kept = torch.tensor([[1, 1, 0, 0, 1, 1, 1, 0, 1], [0, 0, 0, 0, 0, 1, 0, 0, 0], [0] * 9]).bool()
    return head, taps, tokens, torch.randn(3, 9, V).double() * 2, kept


def chains(head, taps, tokens):
    """Draft logits by dialogue, row and step, each from a chain of single steps with the head's own cache."""
    out = {}
    for b in range(len(tokens)):
        for t in range(tokens.shape[1] - 1):
            cache, seen = HeadCache(), torch.ones(t + 1, t + 1).bool().tril()
            feature = head.features(taps[b : b + 1, : t + 1])
            y = head(feature, tokens[b : b + 1, 1 : t + 2], torch.arange(t + 1)[None], cache, seen)[:, -1:]
            for k in range(min(STEPS, tokens.shape[1] - 1 - t)):
                if k:
                    y = head(head.feedback(y), tokens[b, t + 1 + k].view(1, 1), torch.tensor([[t + k]]), cache)
                out[b, t, k] = head.logits(y)[0, 0]
    return out


def test_losses_and_gradients_are_those_of_inference_at_the_rows_that_count(case):
    head, taps, tokens, logits, kept = case
    goal, drafted = logits[..., ::2], chains(head, taps, tokens)
    expected = []
    for k in range(STEPS):
        rows = [(b, t) for b, t, j in drafted if j == k and kept[b, t + 1 + k]]
        each = [goal[b, t + 1 + k].softmax(-1) @ -drafted[b, t, k].log_softmax(-1).double() for b, t in rows]
        expected.append(torch.stack(each).mean())
    found = losses(head, taps, tokens, goal[kept], kept, STEPS)
    torch.testing.assert_close(torch.stack(found), torch.stack(expected).float(), rtol=1e-5, atol=1e-6)
    weights = [n for n, p in head.named_parameters() if p.requires_grad]
    by_hand, pruned = (
        torch.autograd.grad(sum(0.8**k * v for k, v in enumerate(values)), [head.get_parameter(n) for n in weights])
        for values in (expected, found)
    )
    for name, a, b in zip(weights, pruned, by_hand, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_nothing_that_counts_is_no_loss(case):
    head, taps, tokens, _, _ = case
    none = torch.zeros_like(tokens, dtype=torch.bool)
    values = losses(head, taps, tokens, torch.zeros(0, head.config.draft_vocab_size), none, STEPS)
    assert torch.stack(values).tolist() == [0.0] * STEPS


def test_measures_are_means_over_the_whole_vocabulary(case):
    head, taps, tokens, logits, counted = case
    counted = counted & (torch.arange(9) < 8)  # nothing follows the last token
    found = measured(head, taps, tokens, logits[counted], counted, STEPS, (1.0, 0.7))
    for k in range(STEPS):
        expected = torch.zeros(5)
        for (b, t, j), z in chains(head, taps, tokens).items():
            if j == k and counted[b, t + 1 + k]:
                target, whole = logits[b, t + 1 + k], torch.full((V,), -torch.inf)
                whole[::2] = z.detach()
                shared = [torch.minimum((target / x).softmax(-1), (whole / x).softmax(-1)).sum() for x in (1.0, 0.7)]
                hits = [whole.argmax() == target.argmax(), whole.argmax() == tokens[b, t + 2 + k]]
                expected += torch.tensor([1, *hits, *shared])
        torch.testing.assert_close(found[k].float(), expected)


# --- the recipes, on the embedded target -----------------------------------------------------------------------------

SHARDS = 5


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Five shards of 64 clock sums with the embedded target's answers."""
    folder = tmp_path_factory.mktemp("data")
    sample.main(["--target", "arithmetic", "--out", str(folder), "--rows", "64", "--tokens", str(64 * 18 * SHARDS)])
    return folder


def arguments(data, out, steps=60, **more):
    """Of the training recipe: so many optimiser steps of 16 dialogues."""
    given = {"target": "arithmetic", "data": data, "out": out, "epochs": steps / 16, "rows": 16, "lr": 5e-3}
    given |= {"steps": 3, "precision": "no", "save-every": 20, **more}
    return [str(x) for name, value in given.items() for x in (f"--{name}", value)]


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A head after 60 steps."""
    out = tmp_path_factory.mktemp("head")
    train.main(arguments(data, out))
    return out


def test_sampled_clock_sums(data):
    shards = sorted(data.glob("shard-*.npz"))
    assert len(shards) == SHARDS
    ids, answer = (np.concatenate([np.load(s)[name] for s in shards]) for name in ("ids", "answer"))
    assert ids.shape == answer.shape == (64 * SHARDS, 32)
    words = [[clock_sums.WORDS[i] for i in row] for row in ids]
    sums = [clock_sums.operands_of(" ".join(row[:7])) for row in words]
    assert len({tuple(s) for s in sums}) == len(sums)
    assert not {tuple(s) for s in sums} & {tuple(s) for s in clock_sums.problems(1000, seed=1)}
    texts = [
        " ".join(w for w, mine in zip(row, mask, strict=True) if mine) for row, mask in zip(words, answer, strict=True)
    ]
    right = sum(clock_sums.is_correct(s, t) for s, t in zip(sums, texts, strict=True)) / len(sums)
    assert 0.8 < right < 0.96  # the target's 0.8825 ± sampling at T = 1
    assert all(text.endswith(clock_sums.EOS) for text in texts if clock_sums.EOS in text)
    meta = json.loads((data / "meta.json").read_text())
    assert (meta["target"], meta["vocab_size"], meta["temperature"], meta["top_p"]) == ("arithmetic", 54, 1.0, 1.0)


def test_sampling_goes_on_and_does_not_mix(data):
    before = sorted(data.iterdir())
    again = ["--target", "arithmetic", "--out", str(data), "--rows", "64", "--tokens", "100"]
    sample.main(again)
    assert sorted(data.iterdir()) == before
    with pytest.raises(LossyError, match=r"with temperature 1.0, got 0.5: choose another --out"):
        sample.main([*again, "--temperature", "0.5"])


def test_trained_head_drafts_better_than_its_start(data, trained):
    assert sorted(p.name for p in trained.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "training.json",
    ]
    assert (trained / "model.safetensors").stat().st_size < 1_500_000
    pair = load_pair("arithmetic")
    head = load_head(trained, pair.target)
    assert head.config.taps == [2, 7, 11]
    assert head.config.draft_vocab_size == head.config.vocab_size == 54
    assert not head.d2t.any()
    report = json.loads((trained / "training.json").read_text())
    assert [row["step"] for row in report["held_out"]] == [0, 1, 2, 3, 4]
    assert (report["data"]["dialogues"], report["data"]["held_out_dialogues"]) == (256, 64)
    torch.manual_seed(0)
    start = train.warm_head(pair.target, [2, 7, 11], torch.arange(54))
    whole, held = pair.target.lm_head.weight.detach(), [data / f"shard-{SHARDS - 1:04d}.npz"]
    accelerator = train.Accelerator(cpu=True)
    before, after = (train.evaluate(h, held, whole, 5, accelerator) for h in (start, head))
    for k, row in enumerate(report["held_out"]):
        assert after[k] == pytest.approx(row)
        if k < 3:  # as deep as it was trained
            assert row["accepted_t1"] > before[k]["accepted_t1"] + 0.05
    assert report["held_out"][0]["accepted_t1"] > 0.4


def test_card(trained):
    report = json.loads((trained / "training.json").read_text())
    card = ModelCard.load(trained / "README.md")
    assert card.data.license == "apache-2.0"
    assert card.data.tags == ["eagle3", "speculative-decoding", "hf_lossy"]
    for row in report["held_out"]:
        assert f"| {row['step']} | {row['argmax']:.3f} | {row['token']:.3f} | {row['accepted_t1']:.3f} |" in card.text
    text = " ".join(card.text.split())
    assert f"{report['data']['answer_tokens']:,} answer tokens in 256 dialogues" in text
    assert (trained / "README.md").read_text() == str(card_of([trained]))
    assert "all of its 54 tokens" in text


def test_an_interrupted_run_ends_where_it_would_have_ended(data, trained, tmp_path, monkeypatch):
    calls = []

    def fail(*args):
        calls.append(args)
        if len(calls) == 35:
            raise KeyboardInterrupt
        return losses(*args)

    monkeypatch.setattr(train, "losses", fail)
    with pytest.raises(KeyboardInterrupt):
        train.main(arguments(data, tmp_path))
    (tmp_path / "checkpoint.tmp").write_bytes(b"torn")  # as a kill in the middle of writing leaves it
    with pytest.raises(LossyError, match=r"is of a run with lr 0.005, got 0.5: delete it"):
        train.main(arguments(data, tmp_path, lr=0.5))
    train.main(arguments(data, tmp_path))
    assert len(calls) == 35 + 60 - 20
    target = load_pair("arithmetic").target
    ours, theirs = (load_head(folder, target).state_dict() for folder in (tmp_path, trained))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert not list(tmp_path.glob("checkpoint*"))


def test_data_of_another_target_and_no_data(data, tmp_path):
    with pytest.raises(LossyError, match=r"text of another target: target 'arithmetic', this one has '/"):
        train.main(arguments(data, tmp_path / "out", target=embedded.path("arithmetic")))
    with pytest.raises(LossyError, match=r"holds 0 of the two shards or more .* run recipes/sample_dialogues.py"):
        train.main(arguments(tmp_path, tmp_path / "out"))
    for i in range(2):
        np.savez(tmp_path / f"shard-{i:04d}.npz", ids=np.full((4, 8), 54), answer=np.ones((4, 8), dtype=bool))
    with pytest.raises(LossyError, match="token 54, and arithmetic has 54"):
        train.main(arguments(tmp_path, tmp_path / "out"))


# --- a target with a chat template -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    """Two random layers, whose chat turns are u…. and a…., and the folder they lie in."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = models.char_tokenizer(pad_token=" ")
    turns = "{% for m in messages %}{{ 'u' if m.role == 'user' else 'a' }}{{ m.content }}.{% endfor %}"
    tokenizer.chat_template = turns + "{% if add_generation_prompt %}a{% endif %}"
    models.target(31).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, tokenizer


def test_prompts_are_answered_once(chat_model, tmp_path):
    folder, tokenizer = chat_model
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in ("one", "two", "three", "two", "x" * 40)))
    options = ["--target", str(folder), "--prompts", str(prompts), "--out", str(tmp_path / "data"), "--rows", "2"]
    sample.main([*options, "--length", "32", "--dtype", "float32"])
    shards = [np.load(p) for p in sorted((tmp_path / "data").glob("shard-*.npz"))]
    assert [len(s["ids"]) for s in shards] == [2, 1]  # a repeated one and one that is too long are left out
    starts = set()
    for ids, answer in ((i, a) for s in shards for i, a in zip(s["ids"], s["answer"], strict=True)):
        text, first = tokenizer.decode(ids), int(answer.argmax())
        starts.add(text[:first])
        end = text.find(".", first) + 1 or len(text)
        assert answer.tolist() == [first <= i < end for i in range(len(ids))]
        assert text[end:].strip() == ""
    assert starts == {"uone.a", "utwo.a", "uthree.a"}


def test_dialogues_and_a_head_for_two_layers(chat_model, tmp_path):
    folder, tokenizer = chat_model
    options = ["--target", str(folder), "--out", str(tmp_path / "data"), "--rows", "4", "--length", "48"]
    sample.main([*options, "--tokens", "200", "--dtype", "float32"])
    data = np.load(tmp_path / "data" / "shard-0000.npz")
    for ids, answer in zip(data["ids"], data["answer"], strict=True):
        text = tokenizer.decode(ids)
        assert text[0] == "u"
        answers = "".join(c if mine else "|" for c, mine in zip(text, answer, strict=True))
        for turn in answers.strip("|").split("|"):
            assert "." not in turn[:-1]
    given = arguments(tmp_path / "data", tmp_path / "head", target=folder, rows=4, **{"draft-vocab": 9})
    train.main(given)
    head = load_head(tmp_path / "head", models.target(31))
    assert head.config.taps == [0, 1]
    assert head.draft_to_target.shape == (9,)


def test_default_taps_never_collapse():
    assert train.default_taps(30) == [2, 15, 27]
    assert train.default_taps(14) == [2, 7, 11]
    for layers in range(2, 40):
        taps = train.default_taps(layers)
        assert len(taps) == min(3, layers)
        assert all(low < high for low, high in zip([-1, *taps], [*taps, layers], strict=True))
