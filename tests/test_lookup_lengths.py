"""scripts/lookup_lengths.py: texts that a target is taken to write, and what a lookup's draft lengths are worth on them."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest
import torch

from hf_lossy.drafting.schedule import Schedule

from .models import char_tokenizer
from .mutate import ROOT


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("lookup_lengths", ROOT / "scripts" / "lookup_lengths.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rounds_write_the_text(script):
    """After 64 tokens of a repeated line the longest match is as long as it gets, so that all that is drafted is right."""
    ids = torch.arange(10).repeat(40)[None, : script.PROMPT + 10 * 8]
    assert script.rounds(ids, Schedule(7)) == {7: 10}
    assert script.rounds(ids, Schedule(0)) == {0: 80}
    new = torch.arange(100)[None]  # nothing comes back, so that nothing is found
    assert script.rounds(new, Schedule(7)) == {0: 100 - script.PROMPT}


def test_a_set_of_texts(script, tmp_path, monkeypatch, capsys):
    char_tokenizer().save_pretrained(tmp_path / "tokenizer")
    line = "the same line again and again, "
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": [line * n]}) for n in (10, 12)) + "\n")
    (tmp_path / "b.txt").write_text("too short")
    sets = [f"repeated={tmp_path / 'a.jsonl'}", f"repeated={tmp_path / 'b.txt'}"]
    monkeypatch.setattr(sys, "argv", ["", *sets, "--tokenizer", str(tmp_path / "tokenizer")])
    script.main()
    found = json.loads(capsys.readouterr().out)["repeated"]
    assert (found["texts"], found["tokens"]) == (2, 22 * len(line) - 2 * script.PROMPT)
    assert {n: share["share"] for n, share in found["acceptance"].items()} == {"16": 1.0}
    assert found["speed"]["free"]["best"] == 20
    assert 0.9 < found["speed"]["free"]["of_best"] <= 1
