"""The YAML recipes: every setting, law and option in them is known, and they run with another pair in place of theirs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from hf_lossy.cli import app
from hf_lossy.cli.evaluate import DEFAULTS, MODELS
from hf_lossy.errors import LossyError
from hf_lossy.evaluation.methods import OPTIONS
from hf_lossy.evaluation.tasks import task_named
from hf_lossy.generation import Options
from hf_lossy.laws import law_class
from hf_lossy.loading import DTYPES, load_pair

RECIPES = sorted((Path(__file__).parent.parent / "recipes").glob("*.yaml"))
PAIRS = {"standard_sd": ("arithmetic", "qwen-coder"), "eagle3": ("arithmetic-eagle3", "smollm2-eagle3")}
each_recipe = pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
BASELINES = {"speccascade": "min_p", "typical": "eta"}


def test_there_are_the_papers_two():
    assert [path.stem for path in RECIPES] == sorted(PAIRS)


@each_recipe
def test_everything_in_a_recipe_is_known(path):
    recipe = yaml.safe_load(path.read_text())
    assert set(recipe) <= set(DEFAULTS)
    assert recipe["dtype"] in DTYPES
    assert task_named(recipe["task"])
    assert set(recipe["options"]) <= set(OPTIONS)
    Options(**recipe["options"])
    assert recipe["temperature"] == 0.7
    assert recipe["seeds"] == 3
    for method in recipe["methods"]:
        law = law_class(method["law"])
        assert tuple(method["grid"]) == law.grid  # the paper's
        for value in method["grid"]:
            law(**{law.knob: value})


def ran(path, folder, *more):
    done = CliRunner().invoke(app, ["evaluate", "--config", str(path), "--out", str(folder), *more])
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads((folder / "summary.json").read_text())


@each_recipe
def test_a_recipe_runs_on_a_pair_in_place_of_its_models(path, tmp_path):
    recipe = yaml.safe_load(path.read_text())
    small = ("--task", "clock_sums", "--limit", "1", "--seeds", "1", "--max-new-tokens", "8")
    found = ran(path, tmp_path / "out", "--pair", PAIRS[path.stem][0], *small)
    settings, rows = found["settings"], found["rows"]
    assert {name: settings[name] for name in MODELS} == {
        **{name: DEFAULTS[name] for name in MODELS},
        "pair": PAIRS[path.stem][0],
    }
    assert settings["temperature"] == 0.7
    ours = {row["law"]["method"] for row in rows if row["law"] is not None}
    wanted = {method["law"] for method in recipe["methods"]}
    assert ours == wanted | {"lossless"} | {BASELINES[law] for law in wanted & set(BASELINES)}
    for row in rows:
        if row["law"] is not None and row["law"]["method"] in wanted:
            assert {name: row[name] for name in recipe["options"]} == recipe["options"]
            assert row["baseline_name"]


@pytest.mark.slow
@each_recipe
def test_a_recipe_runs_on_two_cores(path, tmp_path):
    """One MATH problem and eight tokens a method, on the real pair."""
    try:
        load_pair(PAIRS[path.stem][1])
    except LossyError as missing:
        pytest.skip(str(missing))
    problem = {"problem": "What is 1 + 1?", "answer": "2", "solution": r"\boxed{2}", "unique_id": "x"}
    (tmp_path / "math500.jsonl").write_text(json.dumps(problem))
    small = ("--data", str(tmp_path), "--limit", "1", "--seeds", "1", "--max-new-tokens", "8")
    found = ran(path, tmp_path / "out", "--pair", PAIRS[path.stem][1], *small)
    assert len(found["rows"]) > 20
