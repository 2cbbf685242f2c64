"""The command line, run as a user runs it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest
import transformers

import hf_lossy
from hf_lossy.cli import common, main
from hf_lossy.cli.common import parse_law
from hf_lossy.cli.compare import wilson
from hf_lossy.embedded import path

SMALL = ("--prompts", "2", "--max-new-tokens", "12")


@dataclass
class Result:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run(monkeypatch, capsys):
    """Call the command line in this process, as `hf-lossy ARGS` would."""

    def call(*args: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["hf-lossy", *args])
        monkeypatch.setattr(common.console, "_width", 200)
        verbosity = transformers.logging.get_verbosity()
        with pytest.raises(SystemExit) as stop:
            main()
        transformers.logging.set_verbosity(verbosity)
        code = stop.value.code
        return Result(code if isinstance(code, int) else int(code is not None), *capsys.readouterr())

    return call


@pytest.fixture
def refused(run):
    """The message of a call that must fail, in one sentence."""

    def call(*args: str) -> str:
        result = run(*args)
        assert result.returncode == 2
        assert result.stderr.startswith("hf-lossy: ")
        assert "Traceback" not in result.stderr
        return result.stderr

    return call


def test_compare_for_machines(run):
    out = json.loads(run("compare", *SMALL, "--law", "lenience=0.4", "--law", "min_p=0.3", "--json", "-").stdout)
    assert [r["method"] for r in out["results"]] == ["target alone", "lossless", "lenience(0.4)", "min_p(0.3)"]
    assert out["marked"] == len(out["prompts"]) == 2
    for result in out["results"]:
        assert result["tokens_per_second"] > 0
        assert len(result["outputs"]) == 2
        for output in result["outputs"]:
            assert len(output["tokens"]) == len(output["sources"]) <= 12
    lossless, lenience = out["results"][1], out["results"][2]
    assert lossless["tv"] == 0
    assert 0 < lenience["tv"] < 1
    assert lenience["max_log_ratio"] <= hf_lossy.law("lenience", lenience=0.4).overshoot_bound + 1e-5
    assert lenience["block_efficiency"] == lenience["statistics"]["emitted"] / lenience["statistics"]["rounds"]
    assert {"command", "commit", "machine", "versions"} <= out["provenance"].keys()


def test_compare_for_people(run):
    out = run("compare", *SMALL, "--show", "1", "--temperature", "0").stdout
    for text in ("target alone", "lenience(0.4)", "speccascade(0.1)", "speed-", "greedy", "γ = 5", "first mistake"):
        assert text in out
    assert "✓ right" in out or "✗ wrong" in out


def test_the_interval_of_a_share():
    low, high = wilson(8, 10)
    assert (low, high) == pytest.approx((0.4902, 0.9433), abs=1e-4)  # Wilson 1927, worked by hand
    assert wilson(10, 10)[1] == pytest.approx(1)
    assert wilson(10, 10)[0] == pytest.approx(10 / (10 + 1.96**2))


def test_compare_takes_folders_and_prompts(run):
    folders = [str(path("arithmetic")), str(path("arithmetic", "draft-natural"))]
    args = ("--target", folders[0], "--draft", folders[1], "--prompt", "14 4 1 1 21 :", "--law", "lossless")
    out = json.loads(run("compare", *args, "--json", "-", "--max-new-tokens", "8").stdout)
    assert out["prompts"] == ["14 4 1 1 21 :"]
    assert out["marked"] == 0  # a pair that the package does not know is not marked


def test_compare_writes_whole_files_or_none(tmp_path, run):
    file = tmp_path / "out.json"
    assert run("compare", *SMALL, "--law", "lossless", "--json", str(file)).returncode == 0
    assert json.loads(file.read_text())["results"]
    assert [f.name for f in tmp_path.iterdir()] == ["out.json"]


def test_interrupted_compare_leaves_nothing(tmp_path):
    code = "import hf_lossy.cli as c; print('ready', flush=True); c.main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "compare", "--prompts", "900", "--json", str(tmp_path / "out.json")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell's background jobs ignore Ctrl-C, and hand that down
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(5)  # somewhere in a run that takes minutes
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_inspect(run):
    out = json.loads(run("inspect", "--prompts", "2", "--json").stdout)
    assert all(c["ok"] for c in out["checks"])
    assert out["best_gamma"] in {g["gamma"] for g in out["gammas"]}
    assert 0 < out["measured"]["acceptance_per_token"] <= 1
    best = max(out["gammas"], key=lambda g: g["expected_speed_up"])
    assert best["gamma"] == out["best_gamma"]
    assert out["pays"] == (best["expected_speed_up"] > 1)


def test_inspect_tells_what_does_not_fit(tmp_path, run):
    other = tmp_path / "draft"
    shutil.copytree(path("arithmetic", "draft-natural"), other)
    tokenizer = other / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"makes"', '"does"'))
    result = run("inspect", "--target", str(path("arithmetic")), "--draft", str(other), "--json")
    assert result.returncode == 1
    check = json.loads(result.stdout)["checks"][0]
    assert not check["ok"]
    assert "'makes'" in check["found"]
    assert "'does'" in check["found"]


def test_laws_lists_the_registry(run):
    entries = {e["name"]: e for e in json.loads(run("laws", "--json").stdout)}
    assert list(entries) == hf_lossy.laws()
    assert entries["lenience"]["parameters"]["lenience"]["allowed"] == "in (0, 1]"
    assert entries["speccascade"]["baseline"] == "min_p(0.5)"
    assert entries["cos"]["overshoot_bound_at_default"] is None
    printed = run("laws").stdout
    assert all(name in printed for name in entries)
    assert "assistant_ensemble_weight" in printed.replace("\n", "")


def test_bad_input(tmp_path, refused):
    assert "Did you mean 'lenience'" in refused("compare", "--law", "leniense")
    assert "lenience must be in (0, 1], got 2.0" in refused("compare", "--law", "lenience=2")
    assert "parameter=value" in refused("compare", "--law", "speccascade=0.3,target")
    assert "Did you mean 'arithmetic'" in refused("compare", "--pair", "arithmetics")
    assert "needs --target" in refused("compare", "--draft", "x")
    assert "does not exist" in refused("compare", "--target", str(tmp_path / "none"))
    assert "does not exist" in refused("compare", "--target", str(tmp_path / "none.gguf"))
    (tmp_path / "text.gguf").write_text("hello")
    assert "not a GGUF file" in refused("compare", "--target", str(tmp_path / "text.gguf"))
    (tmp_path / "short.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    assert "truncated" in refused("compare", "--target", str(tmp_path / "short.gguf"))
    assert "no config.json" in refused("compare", "--target", str(tmp_path))


def test_a_truncated_model_says_so(tmp_path, refused):
    folder = tmp_path / "model"
    shutil.copytree(path("arithmetic"), folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    message = refused("compare", "--target", str(folder))
    assert str(folder) in message
    assert "whole" in message


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ("lenience", hf_lossy.law("lenience")),
        ("lenience=0.4", hf_lossy.law("lenience", lenience=0.4)),
        ("speccascade=0.3,fallback=target", hf_lossy.law("speccascade", p_base=0.3, fallback="target")),
        ("min_p=p_base=0.2,truncate_draft=true", hf_lossy.law("min_p", p_base=0.2, truncate_draft=True)),
    ],
)
def test_laws_on_the_command_line(text, law):
    assert parse_law(text) == law


def test_the_installed_command_needs_no_hub():
    """`make run` works with the network unplugged: the embedded pair never asks the Hub."""
    command = [sys.executable, "-c", "from hf_lossy.cli import main; main()", "compare", "--law", "lossless"]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HTTPS_PROXY": "http://127.0.0.1:9", "COLUMNS": "200"}
    result = subprocess.run([*command, *SMALL], capture_output=True, text=True, check=False, env=env)
    assert result.returncode == 0, result.stderr
    assert "speed-" in result.stdout
