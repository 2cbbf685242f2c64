"""The adapter to lm-evaluation-harness, on a local task and the embedded models."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml

import hf_lossy
from hf_lossy.embedded import clock_sums
from hf_lossy.evaluation.harness import NAME, LossyHFLM

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

ROOT = Path(__file__).parent.parent
TARGET = str(hf_lossy.embedded.path("arithmetic"))
DRAFT = str(hf_lossy.embedded.path("arithmetic", "draft-natural"))
HEAD = str(hf_lossy.embedded.path("arithmetic", "eagle3"))
DEVICE = {"device": "cpu", "dtype": "float32"}
COUNT = 6
TASKS = {
    "sums_greedy": {"output_type": "generate_until", "generation_kwargs": {"max_gen_toks": 24, "do_sample": False}},
    "sums_until": {
        "output_type": "generate_until",
        "generation_kwargs": {"max_gen_toks": 24, "do_sample": False, "until": ["so", "total", "answer"]},
    },
    "sums_sampled": {
        "output_type": "generate_until",
        "generation_kwargs": {"max_gen_toks": 24, "do_sample": True, "temperature": 1.0, "top_k": 0},
    },
    "sums_likelihood": {"output_type": "loglikelihood", "doc_to_target": " {{working}}"},
    "sums_choice": {"output_type": "multiple_choice", "doc_to_choice": ["start", "from"], "doc_to_target": 0},
    "sums_rolling": {"output_type": "loglikelihood_rolling", "doc_to_target": "{{prompt}} {{working}}"},
}
METRICS = {"generate_until": "exact_match", "loglikelihood": "acc", "multiple_choice": "acc"}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A folder with a JSON Lines file and tasks on it."""
    import random

    folder, rng = tmp_path_factory.mktemp("tasks"), random.Random(0)
    lines = [
        {
            "prompt": clock_sums.prompt(operands),
            "working": " ".join(clock_sums.TARGET_CORPUS.working(operands, rng)),
            "answer": str(sum(operands) % clock_sums.MODULUS),
        }
        for operands in clock_sums.problems(COUNT, seed=1)
    ]
    (folder / "sums.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, settings in TASKS.items():
        metric = METRICS.get(settings["output_type"], "word_perplexity")
        task = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(folder / "sums.jsonl")}},
            "test_split": "test",
            "doc_to_text": "" if name == "sums_rolling" else "{{prompt}}",
            "doc_to_target": "{{answer}}",
            "metric_list": [{"metric": metric}],
            **settings,
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task))
    return folder


@pytest.fixture(scope="module")
def evaluate(tasks, tmp_path_factory):
    """Run tasks with a model of the harness: the results, and what was asked and answered."""
    import datasets
    import lm_eval
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(tasks), include_defaults=False)

    def call(model, names, **more):
        found = lm_eval.simple_evaluate(model, tasks=list(names), task_manager=manager, bootstrap_iters=0, **more)
        answers = {name: [one["resps"] for one in found["samples"][name]] for name in names}
        return found, answers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        yield call


@pytest.fixture(scope="module")
def plain(evaluate):
    """The harness's own class on the target."""
    return evaluate("hf", TASKS, model_args={"pretrained": TARGET, **DEVICE}, batch_size=4)[1]


@pytest.mark.parametrize("law", [{"verification": "lossless"}, {"verification": "cos", "draft_weight": 0.9}], ids=str)
def test_log_likelihoods_are_the_targets_whatever_the_law(evaluate, plain, law):
    names = ["sums_likelihood", "sums_choice", "sums_rolling"]
    arguments = {"pretrained": TARGET, "assistant": DRAFT, **law, **DEVICE}
    found, answers = evaluate(NAME, names, model_args=arguments, batch_size=4)
    assert answers == {name: plain[name] for name in names}
    assert "verification" not in found["config"]  # nothing was generated


@pytest.mark.parametrize(
    "draft",
    [{"assistant": DRAFT}, {"assistant": HEAD}, {"assistant": DRAFT, "draft_quantization": "int8"}, {}],
    ids=str,
)
def test_greedy_lossless_texts_are_the_targets(evaluate, plain, draft):
    names = ["sums_greedy", "sums_until"]
    found, answers = evaluate(NAME, names, model_args={"pretrained": TARGET, **draft, **DEVICE}, batch_size=4)
    assert answers == {name: plain[name] for name in names}
    assert found["results"]["sums_greedy"]["exact_match,none"] == 0  # the working is no bare answer
    stats = found["config"]["verification"]
    assert stats["law"] == {"method": "lossless"}
    assert stats["sequences"] == 2 * COUNT
    assert stats["accounting"]["tv"] == 0
    assert stats["block_efficiency"] > (1 if draft else 0.99)


def test_every_request_has_its_statistics(evaluate, tmp_path):
    """In Python, as a file, and in total; a lossy law is lossy."""
    model = LossyHFLM(
        TARGET,
        assistant=DRAFT,
        verification="lenience",
        lenience=0.2,
        coupling="token",
        num_assistant_tokens=4,
        statistics=str(tmp_path / "made/statistics.jsonl"),
        batch_size=4,
        **DEVICE,
    )
    found, answers = evaluate(model, ["sums_greedy", "sums_sampled"])
    written = [json.loads(line) for line in (tmp_path / "made/statistics.jsonl").read_text().splitlines()]
    assert written == model.requests
    asked = [(name, i) for name in ("sums_greedy", "sums_sampled") for i in range(COUNT)]
    assert [(line["task"], line["doc_id"]) for line in written] == asked
    texts = [text for name in answers for ((text,),) in answers[name]]
    for line, text in zip(written, texts, strict=True):
        assert line["emitted"] == len(text.split()) + 1  # and <eos>
        assert line["block_efficiency"] == line["emitted"] / line["rounds"] > 1
        assert line["drafted"] <= 4 * line["rounds"]
    assert any(line["tv"] > 0 for line in written[COUNT:])
    assert all(line["max_log_ratio"] <= 1.61 for line in written[COUNT:])  # log 1/ℓ
    stats = found["config"]["verification"]
    assert stats["law"] == {"method": "lenience", "lenience": 0.2}
    assert stats["coupling"] == "token"
    assert stats["emitted"] == sum(line["emitted"] for line in written)
    assert stats["accounting"]["tv"] > 0
    assert model.batch_size == 4


def test_statistics_without_accounting(evaluate):
    arguments = {"pretrained": TARGET, "assistant": DRAFT, "accounting": False, **DEVICE}
    found, _ = evaluate(NAME, ["sums_greedy"], model_args=arguments)
    assert found["config"]["verification"]["accounting"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"verification": "lenient"}, "unknown verification 'lenient'.*Did you mean 'lenience'"),
        ({"verification": "cos", "lenience": 0.4}, "lenience"),
        ({"verification": "lenience", "lenience": 2}, r"lenience must be in \(0, 1\], got 2"),
        ({"verification": "typical", "delta": 7, "epsilon": 0.1, "coupling": "tokens"}, "unknown coupling 'tokens'"),
        ({"assistant": "/nowhere"}, "/nowhere does not exist"),
        ({"draft_quantization": "int8"}, "needs a draft model"),
    ],
    ids=str,
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(hf_lossy.LossyError, match=message):
        LossyHFLM(TARGET, **arguments, **DEVICE)


def test_arguments_of_hf_stay_its_own():
    """Its ``delta`` is another model's weights, unless the law has a parameter of that name."""
    with pytest.raises(Exception, match="nowhere"):
        LossyHFLM(TARGET, assistant=DRAFT, verification="lenience", delta="/nowhere", **DEVICE)
    model = LossyHFLM(TARGET, assistant=DRAFT, verification="typical", delta=0.5, max_length=48, **DEVICE)
    assert model.law == hf_lossy.Typical(delta=0.5)
    assert model.max_length == 48


def test_the_harness_finds_the_model_by_its_entry_point():
    """Of versions that discover plugins."""
    declared = re.search(r'"lm_eval\.models"\]\n(\S+) = "(\S+)"\n', (ROOT / "pyproject.toml").read_text())
    name, value = declared.groups()
    assert name == NAME
    assert importlib.metadata.EntryPoint(name, value, "lm_eval.models").load() is LossyHFLM


@pytest.fixture
def called(monkeypatch, tmp_path):
    """Call ``hf-lossy lm-eval`` in this process, with the local tasks alone: those of the harness take a minute to list."""
    import lm_eval.tasks

    from hf_lossy.cli import main

    monkeypatch.setattr(lm_eval.tasks, "TaskManager", partial(lm_eval.tasks.TaskManager, include_defaults=False))

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["hf-lossy", "lm-eval", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code

    return call


def test_the_command_line_is_the_harness_s(called, tasks, tmp_path, capsys):
    arguments = f"pretrained={TARGET},assistant={DRAFT},verification=lenience,lenience=0.4,dtype=float32"
    command = ["--model", NAME, "--model_args", arguments, "--device", "cpu", "--include_path", str(tasks)]
    command += ["--tasks", "sums_sampled,sums_likelihood", "--limit", "2", "--output_path", str(tmp_path)]
    assert not called(*command)
    assert re.search(r"\|sums_likelihood *\|", capsys.readouterr().out)
    (results,) = tmp_path.rglob("results_*.json")
    stats = json.loads(results.read_text())["config"]["verification"]
    assert stats["law"] == {"method": "lenience", "lenience": 0.4}
    assert stats["sequences"] == 2
    assert called(*(one.replace("lenience=0.4", "lenience=4") for one in command)) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "hf-lossy: lenience: lenience must be in (0, 1], got 4"


def test_its_help_is_the_harness_s(called, capsys):
    assert not called("--help")
    assert "lm-eval run --model hf" in capsys.readouterr().out
