"""Statistics against scipy and simulations, and the ``evaluate`` modules against runs worked by hand."""

from __future__ import annotations

import doctest
import inspect
import json
import math
import random
import re
import socket
from pathlib import Path

import pytest
from scipy import stats

from hf_lossy import metrics
from hf_lossy.errors import LossyError
from hf_lossy.evaluation.statistics import mcnemar, paired_bootstrap, wilson

ROOT = Path(__file__).parent.parent

# --- statistics --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("right", "n"), [(0, 10), (1, 10), (5, 10), (10, 10), (56, 60), (333, 1000)])
def test_wilson_is_scipys(right, n):
    assert wilson(right, n) == pytest.approx(stats.binomtest(right, n).proportion_ci(method="wilson"), abs=1e-9)


def test_wilson_of_nothing_and_of_nonsense():
    assert wilson(0, 0) == (0, 1)
    with pytest.raises(LossyError, match=r"right = 3 of n = 2: it must be in 0\.\.n"):
        wilson(3, 2)


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (1, 0), (8, 1), (1, 8), (5, 5), (30, 12)])
def test_mcnemar_is_the_exact_binomial_test(gained, lost):
    a = [1] * gained + [0] * lost + [1, 0] * 10
    b = [0] * gained + [1] * lost + [1, 0] * 10
    expected = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1
    assert mcnemar(a, b) == pytest.approx(expected)


def test_mcnemar_needs_marks():
    with pytest.raises(LossyError, match=r"the score 0\.5: it must be 0 or 1"):
        mcnemar([0.5], [1])
    with pytest.raises(LossyError, match="2 and 1 scores"):
        mcnemar([0, 1], [1])


def pairs(rng, n, first, second, shared):
    """Marks of two methods with the given rates; a share of the items is equally hard for both."""
    a, b = [], []
    for _ in range(n):
        u = rng.random()
        a.append(u < first)
        b.append((u if rng.random() < shared else rng.random()) < second)
    return a, b


def test_the_bootstrap_interval_covers_what_it_says():
    """Of 300 simulated comparisons (fixed seeds) about 95 % hold the true difference. Were the seeds new, an interval that
    covers 94 % would fail these bounds once in about 300 times; drawing the two methods apart covers over 99 %."""
    rng, held = random.Random(0), 0
    for _ in range(300):
        a, b = pairs(rng, 60, 0.7, 0.6, shared=0.7)
        low, high = paired_bootstrap(a, b, draws=200)
        held += low <= 0.1 <= high
    assert 0.90 <= held / 300 <= 0.98


def test_mcnemar_raises_few_false_alarms():
    """Of 2,000 comparisons of equals (fixed seeds) at most 5 % have p < 0.05; the exact test stays below its level. Were the
    seeds new, one at its level exactly would fail the bound once in 1,000 times."""
    rng = random.Random(1)
    alarms = sum(mcnemar(*pairs(rng, 60, 0.6, 0.6, shared=0.5)) < 0.05 for _ in range(2000))
    assert alarms / 2000 <= 0.065
    assert mcnemar(*pairs(rng, 200, 0.8, 0.4, shared=0.5)) < 0.001


def test_the_bootstrap_draws_pairs_and_items():
    a, b = pairs(random.Random(2), 60, 0.7, 0.6, shared=0.5)
    low, high = paired_bootstrap(a, b)
    assert low < (sum(a) - sum(b)) / 60 < high
    assert paired_bootstrap(b, a) == pytest.approx((-high, -low), abs=0.05)
    assert paired_bootstrap(a, a) == (0, 0)
    four = [x for x in a for _ in range(4)], [y for y in b for _ in range(4)]
    assert paired_bootstrap(*four, items=[i // 4 for i in range(240)]) == pytest.approx((low, high))
    narrow = paired_bootstrap(*four)
    assert narrow[1] - narrow[0] < 0.6 * (high - low)  # copies are no new items


def test_the_bootstrap_of_too_little():
    assert paired_bootstrap([1, 0], [0, 0]) == (-math.inf, math.inf)
    with pytest.raises(LossyError, match="1 items for 2 pairs"):
        paired_bootstrap([1, 0], [0, 0], items=["x"])


# --- the evaluate modules --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """``evaluate.load`` from the folder, with caches of its own and no way out of the machine."""
    import evaluate

    def refuse(*args, **kwargs):
        raise OSError("no network in this test")

    kept = tmp_path_factory.mktemp("evaluate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate.config, "HF_MODULES_CACHE", str(kept / "modules"))
        patch.syspath_prepend(str(kept / "modules"))
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        yield lambda name: evaluate.load(metrics.path(name), cache_dir=str(kept / "data"))


def test_the_names_of_the_metrics():
    tasks = {"math_answer", "code_tests", "choice_letter", "bfcl_ast"}
    assert set(metrics.names()) == {"block_efficiency", "distortion", "paired_gap"} | tasks
    with pytest.raises(LossyError, match=r"unknown metric 'block_eficiency'.*Did you mean 'block_efficiency'"):
        metrics.path("block_eficiency")


@pytest.mark.parametrize("name", metrics.names())
def test_a_metric_explains_itself_and_its_examples_are_true(name, load, monkeypatch):
    monkeypatch.chdir(ROOT)
    metric = load(name)
    assert len(metric.description) > 50
    assert metric.citation.strip().startswith("@")
    assert {"Args:", "Returns:"} <= set(metric.inputs_description.split())
    readme = (Path(metrics.path(name)) / "README.md").read_text()
    assert readme.startswith("---\ntitle: ")
    for argument in metric.features:
        assert f"- `{argument}`" in readme
    import evaluate

    for text in (inspect.getmodule(type(metric))._KWARGS_DESCRIPTION, readme):
        examples = doctest.DocTestParser().get_doctest(text, {"evaluate": evaluate, "json": json}, name, None, 0)
        found = doctest.DocTestRunner().run(examples)
        assert found.attempted >= 2
        assert found.failed == 0


@pytest.mark.parametrize("name", metrics.names())
def test_the_card_of_a_metric_says_what_its_help_says(name, load):
    """Arguments and output values, word by word."""

    def words(text):
        return " ".join(text.replace("`", "").split())

    card = words((Path(metrics.path(name)) / "README.md").read_text())
    said = re.split(r"\n    (?=\S)", load(name).inputs_description.split("Examples:")[0].partition("Args:")[2])
    entries = [words(entry.replace("Returns:", "")) for entry in said if entry.strip()]
    assert len(entries) >= 3
    assert [entry for entry in entries if entry not in card] == []


RUN = [  # drafts of three; a accepted, r replaced, b bonus; upper case: the end of the sequence
    ["aaab", "ar", "aA"],  # the second accepted token is the end: no token of the target's own follows
    ["R"],
    ["r", "aaaB"],
]


def test_block_efficiency_of_a_run_worked_by_hand(load):
    rounds = [text.lower() for row in RUN for text in row]
    found = load("block_efficiency").compute(
        emitted=[len(text) for text in rounds],
        accepted=[text.count("a") for text in rounds],
        drafted=[3] * len(rounds),
    )
    # 4 + 2 + 2 + 1 + 1 + 4 tokens in 6 rounds; 3 + 1 + 2 + 0 + 0 + 3 of 18 drafted accepted
    assert found["rounds"] == 6
    assert found["block_efficiency"] == pytest.approx(14 / 6)
    assert found["mean_accepted"] == pytest.approx(9 / 6)
    assert found["mean_acceptance_length"] == pytest.approx(15 / 6)
    assert found["draft_acceptance_rate"] == pytest.approx(9 / 18)
    assert found["acceptance_rate_per_position"] == pytest.approx([4 / 6, 3 / 6, 2 / 6])
    assert found["acceptance_histogram"] == [2, 1, 1, 2]


def test_block_efficiency_is_tokens_per_target_forward(load):
    import torch

    import hf_lossy

    target, draft, tokenizer = hf_lossy.embedded.load("arithmetic")
    inputs = tokenizer("14 4 1 1 21 :", return_tensors="pt", return_token_type_ids=False)
    forwards = []
    handle = target.register_forward_hook(lambda *_: forwards.append(1))
    out = hf_lossy.generate(
        target,
        **inputs,
        assistant_model=draft,
        verification="lenience",
        do_sample=True,
        max_new_tokens=24,
        generator=torch.Generator().manual_seed(0),
        return_dict_in_generate=True,
        accounting=True,
    )
    handle.remove()
    rounds = out.verification.rounds
    found = load("block_efficiency").compute(
        emitted=[r.emitted for r in rounds], accepted=[r.accepted for r in rounds], drafted=[r.drafted for r in rounds]
    )
    tokens = out.sequences.shape[1] - inputs["input_ids"].shape[1]
    assert found["block_efficiency"] == pytest.approx(tokens / len(forwards))
    row = out.verification.rows[0].accounting
    figures = load("distortion").compute(**{name: [row[name]] for name in ("tv", "kl", "max_log_ratio")})
    assert figures["tokens"] == tokens
    assert figures["mean_tv"] == pytest.approx(sum(row["tv"]) / tokens)
    assert 0 < figures["max_log_ratio"] <= math.log(2) + 1e-5  # lenience's ceiling, 1/ℓ = 2


def test_distortion_worked_by_hand(load):
    metric = load("distortion")
    found = metric.compute(tv=[[0.0, 0.2], [0.4]], kl=[[0.0, 0.1], [0.5]], max_log_ratio=[[0.0, 0.3], [0.2]])
    assert found == {
        "mean_tv": pytest.approx(0.2),  # over tokens
        "sequence_kl": pytest.approx(0.3),  # over sequences
        "max_log_ratio": pytest.approx(0.3),
        "sequences": 2,
        "tokens": 3,
    }
    assert metric.compute(tv=[[1.0]], kl=[[math.inf]], max_log_ratio=[[math.inf]])["max_log_ratio"] == math.inf


def test_the_paired_gap(load):
    metric = load("paired_gap")
    a, b = pairs(random.Random(3), 50, 0.8, 0.5, shared=0.5)
    found = metric.compute(predictions=a, references=b)
    assert found["gap"] == pytest.approx((sum(a) - sum(b)) / 50)
    assert found["interval"] == list(paired_bootstrap(a, b))
    assert found["p_value"] == mcnemar(a, b)
    assert found["gained"] - found["lost"] == sum(a) - sum(b)
    assert found["items"] == 50
    graded = metric.compute(predictions=[0.5, 1.0, 0.2], references=[0.5, 0.0, 0.4])
    assert graded["p_value"] is None
    assert (graded["gained"], graded["lost"]) == (1, 1)
    clustered = metric.compute(predictions=[1, 1, 0, 0, 1, 1], references=[0, 0, 0, 0, 1, 1], items=list("aabbcc"))
    assert clustered["interval"] == list(paired_bootstrap([1, 0, 1], [0, 0, 1]))


FUNCTION = {"name": "f", "parameters": {"properties": {"x": {"type": "integer"}}, "required": ["x"]}}
CALL = json.dumps({"function": [FUNCTION], "ground_truth": [{"f": {"x": [1]}}]})


@pytest.mark.parametrize(
    ("name", "reference", "right", "wrong", "unparsed"),
    [
        ("math_answer", r"\frac{1}{2}", r"\boxed{0.5}", r"\boxed{0.6}", "half"),
        ("choice_letter", "B", "Answer: B", "Answer: C", "Tirana"),
        (
            "code_tests",
            "assert f(1) == 2",
            "```\ndef f(x): return x + 1\n```",
            "```\ndef f(x): return x\n```",
            "?",
        ),
        ("bfcl_ast", CALL, "[f(x=1)]", "[f(x=2)]", "I can't."),
    ],
)
def test_the_metrics_of_the_tasks(load, name, reference, right, wrong, unparsed):
    found = load(name).compute(predictions=[right, wrong, unparsed, right], references=[reference] * 4)
    assert found["accuracy"] == 0.5
    assert found["interval"] == list(wilson(2, 4))
    assert found["unparsed"] == 1
    assert found["correct"] == [True, False, False, True]


def test_the_metrics_import_the_package_by_its_name():
    """``evaluate`` copies a module's file elsewhere before it imports it."""
    for name in metrics.names():
        assert not re.search(r"^from \.", Path(metrics.path(name), f"{name}.py").read_text(), re.M), name
