"""Evaluations: methods with their baselines, resumable runs, the same on any number of processes, gaps and tables."""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import hf_lossy
from hf_lossy.evaluation.methods import Method, methods
from hf_lossy.evaluation.origin import origin
from hf_lossy.evaluation.report import cells, curves, latex, markdown, plot, write_csv
from hf_lossy.evaluation.run import Unit, generate_and_mark, in_batches, item_seed, open_results, read_lines, run
from hf_lossy.evaluation.summary import gap, summary
from hf_lossy.evaluation.tasks import Item, load, task_named
from hf_lossy.loading import load_pair

SETTINGS = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": 24}
TASK = task_named("clock_sums")


@pytest.fixture(scope="module")
def pair():
    return load_pair("arithmetic")


def work(pair, folder, entries=("lenience",), limit=3, seeds=(0,), config=None, **more):
    wanted = methods(entries)
    items = load(TASK, limit=limit)
    open_results(
        folder, config or {"methods": [m.to_dict() for m in wanted], "limit": limit}, origin(pair, TASK, items)
    )
    return run(pair, TASK, items, wanted, seeds, SETTINGS, folder, **more), wanted


# --- methods ---------------------------------------------------------------------------------------------------------


def test_every_lossy_method_brings_its_baseline():
    for name in hf_lossy.laws():
        made = methods([name])
        assert made[0].law is None
        for one_ in made:
            if one_.baseline() is not None:
                assert one_.baseline().key in {m.key for m in made}
    keys = [m.name for m in methods([{"law": "speccascade", "grid": [0.1, 0.3], "draft_probs": "point_mass"}])]
    assert keys == [
        "target alone",
        "lossless",
        "speccascade(0.1), draft_probs=point_mass",
        "speccascade(0.3), draft_probs=point_mass",
        "min_p(0.1)",  # its law is emitted exactly, whatever the candidates count
        "min_p(0.3)",
    ]


def test_a_method_has_one_key_wherever_it_is_made():
    law = {"method": "lenience", "lenience": 0.4}
    (made,) = [m for m in methods([{"law": law, "coupling": "token"}]) if m.law and m.law.name == "lenience"]
    assert made.key == Method(hf_lossy.Lenience(0.4), {"coupling": "token"}).key
    assert made.key != Method(hf_lossy.Lenience(0.4)).key
    assert [m.key for m in methods([made.to_dict()])] == [m.key for m in methods([{"law": law, "coupling": "token"}])]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"law": "lenience", "couplin": "token"}, "unknown option of a method 'couplin'"),
        ({"grid": [0.1]}, "a method must be"),
        ({"law": "lossless", "grid": [0.1]}, "lossless has no strength"),
        ("lenient", "unknown verification 'lenient'"),
    ],
    ids=str,
)
def test_mistakes_in_methods_are_named(entry, message):
    with pytest.raises(hf_lossy.LossyError, match=message):
        methods([entry])


# --- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_has_a_line_for_every_method_seed_and_item(pair, tmp_path):
    lines, wanted = work(pair, tmp_path / "out", seeds=(0, 1))
    assert len(lines) == len(wanted) * 2 * 3
    assert [m.key for m in wanted] == list(dict.fromkeys(line["method"] for line in lines))
    first = lines[-1]
    assert first["tokens"] == sum(first["kept"]) + first["rounds"] or first["text"].endswith("<eos>")
    told = json.loads((tmp_path / "out/provenance.json").read_text())
    assert told["models"].keys() == {"target", "draft"}
    assert told["data"]["records"] == 3
    assert len(read_lines(tmp_path / "out", "times.jsonl")) == len(lines)


def test_coins_depend_on_seed_and_item_and_on_nothing_else(pair):
    items, method = load(TASK, limit=2), Method(hf_lossy.Lenience(0.4))
    line, _ = generate_and_mark(pair, TASK, [Unit(method, 0, items[1])], SETTINGS)[0]
    again, _ = generate_and_mark(pair, TASK, [Unit(method, 0, items[1])], SETTINGS)[0]
    other, _ = generate_and_mark(pair, TASK, [Unit(method, 1, items[1])], SETTINGS)[0]
    assert line == again
    assert line["text"] != other["text"]
    assert item_seed(0, "a", "b") != item_seed(0, "a", "c") != item_seed(1, "a", "c")


def test_batches_give_the_lines_of_single_texts(pair, tmp_path):
    """In the order of the configuration; the coins are each item's own, so that the texts are the same up to where a row
    alone drafts less."""
    entries = ["lenience", {"law": "cos", "draft_temperature": 0}]
    single, _ = work(pair, tmp_path / "single", entries, limit=7)
    together, _ = work(pair, tmp_path / "together", entries, limit=7, batch_size=3)
    assert [(line["method"], line["item"]) for line in together] == [(line["method"], line["item"]) for line in single]
    same = [a["text"] == b["text"] for a, b in zip(single, together, strict=True) if a["name"] != "target alone"]
    assert sum(same) >= len(same) - 2
    for line in together:
        if line["name"] != "target alone":
            assert line["tokens"] == sum(line["kept"]) + line["rounds"] or line["text"].endswith("<eos>")
    alone = [line["text"] for line in together if line["name"] == "target alone"]
    assert all(text.count("<eos>") <= 1 for text in alone)
    assert not any("<pad>" in line["text"] for line in together)


def test_batches_hold_one_method_and_prompts_about_as_long(pair):
    units = [Unit(m, seed, i) for m in methods(["lossless"]) for seed in (0, 1) for i in load(TASK, limit=5)]
    batches = in_batches(pair, units, 3)
    assert [len(batch) for batch in batches] == [3, 2] * 4
    assert all(len({(unit.method.key, unit.seed) for unit in batch}) == 1 for batch in batches)
    words = [Unit(Method(None), 0, Item(str(n), "from " * n, {})) for n in (5, 1, 4, 2, 3)]
    assert [[unit.item.id for unit in batch] for batch in in_batches(pair, words, 2)] == [["1", "2"], ["3", "4"], ["5"]]


def test_the_draft_alone(pair, tmp_path):
    lines, wanted = work(pair, tmp_path / "out", ["draft"], limit=4)
    assert [m.name for m in wanted] == ["draft alone", "target alone"]
    assert [m.key for m in methods([m.to_dict() for m in wanted])] == [m.key for m in wanted]
    texts = [line["text"] for line in lines]
    assert texts[:4] != texts[4:]
    with pytest.raises(hf_lossy.LossyError, match="no draft model that could decode alone"):
        work(load_pair("arithmetic-eagle3"), tmp_path / "head", ["draft"], limit=1)


def test_an_interrupted_run_goes_on_and_ends_the_same(pair, tmp_path):
    whole, _ = work(pair, tmp_path / "whole", limit=4)

    def until(count):
        def track(units, description):
            for done, unit in enumerate(units):
                if done == count:
                    raise KeyboardInterrupt
                yield unit

        return track

    for count in (3, 2):
        with pytest.raises(KeyboardInterrupt):
            work(pair, tmp_path / "cut", limit=4, track=until(count))
    part = tmp_path / "cut/items.part0.jsonl"
    assert len(part.read_text().splitlines()) == 5
    part.write_text(part.read_text()[:-30])  # what a kill leaves of a line
    seen = []

    def count(units, description):
        seen.extend(units)
        return units

    work(pair, tmp_path / "cut", limit=4, track=count)
    assert len(seen) == len(whole) - 4
    assert (tmp_path / "cut/items.jsonl").read_bytes() == (tmp_path / "whole/items.jsonl").read_bytes()
    assert not list((tmp_path / "cut").glob("*.part*"))


def test_other_weights_and_other_records_are_told_apart(pair):
    same, items = origin(pair, TASK, load(TASK, limit=3)), load(TASK, limit=4)
    assert origin(pair, TASK, load(TASK, limit=3)) == same
    assert origin(pair, TASK, items)["data"]["sha256"] != same["data"]["sha256"]
    other = dataclasses.replace(pair, target=copy.deepcopy(pair.target))
    with torch.no_grad():
        other.target.lm_head.weight[0, 0] += 1
    assert origin(other, TASK, items)["models"]["target"]["fingerprint"] != same["models"]["target"]["fingerprint"]
    assert origin(other, TASK, items)["models"]["draft"] == same["models"]["draft"]


def test_a_folder_of_another_configuration_is_refused(pair, tmp_path):
    work(pair, tmp_path / "out", limit=1, config={"limit": 1, "temperature": 1.0})
    with pytest.raises(hf_lossy.LossyError, match=r"holds results with temperature = 1.0, got 0.7"):
        open_results(tmp_path / "out", {"limit": 1, "temperature": 0.7}, {})
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("")
    with pytest.raises(hf_lossy.LossyError, match=r"holds files but no config\.yaml"):
        open_results(tmp_path / "other", {}, {})


ARGUMENTS = ["evaluate", "--limit", "4", "--verification", "lenience=0.4", "--temperature", "1"]


def test_two_processes_write_what_one_does(tmp_path):
    """By ``accelerate launch``, on a CPU."""
    single = [sys.executable, "-m", "hf_lossy", *ARGUMENTS, "--out", tmp_path / "one"]
    launch = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--multi_gpu",  # without it accelerate starts one process on a CPU, whatever the number
        "--num_processes",
        "2",
        "--num_machines",
        "1",
    ]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0", "-m", "hf_lossy"]
    for command, number in ((single, "1 process"), ([*launch, *ARGUMENTS, "--out", tmp_path / "two"], "2 processes")):
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert number in done.stdout
    for name in ("items.jsonl", "config.yaml"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert len((tmp_path / "two/items.jsonl").read_text().splitlines()) == 12


def test_a_killed_evaluation_loses_the_item_in_flight_only(tmp_path):
    command = [sys.executable, "-m", "hf_lossy", *ARGUMENTS, "--limit", "40", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    part, lines = tmp_path / "out/items.part0.jsonl", 0
    for _ in range(600):
        time.sleep(0.1)
        lines = part.read_text().count("\n") if part.is_file() else 0
        if lines >= 10:
            break
    process.kill()
    process.wait()
    assert lines >= 10
    left = len(read_lines(tmp_path / "out", "items.jsonl"))
    assert left >= lines
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "out/items.jsonl").read_text().splitlines()) == 120
    changed = subprocess.run([*command, "--temperature", "0.5"], capture_output=True, text=True, check=False)
    assert changed.returncode == 2
    assert "temperature = 1.0, got 0.5" in changed.stderr


# --- tables ----------------------------------------------------------------------------------------------------------


def line(method, item, correct, tokens=10, rounds=4, accepted=6, **more):
    figures = {"tv": 0.1, "kl": 0.5, "max_log_ratio": 1.0, "acceptance": 0.8, "wasted_distortion": 0.0, **more}
    return {
        "method": method.key,
        "name": method.name,
        "seed": 0,
        "item": item,
        "correct": correct,
        "parsed": True,
        "tokens": tokens,
        "rounds": rounds,
        "drafting_rounds": rounds,
        "accepted": accepted,
        "drafted": 12,
        **figures,
    }


def test_a_summary_by_hand():
    wanted = methods(["lenience"])
    _, lossless, lenient = wanted
    right = [True] * 30 + [False] * 10
    lines = [line(lossless, str(i), r, tv=0.0) for i, r in enumerate(right)]
    # half of the texts are twice as long, and two that were right are wrong
    lines += [
        line(
            lenient, str(i), r and i > 1, tokens=20 if i % 2 else 10, rounds=5 if i % 2 else 4, tv=0.3 if i % 2 else 0.0
        )
        for i, r in enumerate(right)
    ]
    first, second = summary(lines, wanted)
    assert first["score"] == 0.75
    assert first["block_efficiency"]["mean"] == 2.5
    assert first["mean_acceptance_length"]["mean"] == 2.5
    assert second["block_efficiency"]["mean"] == pytest.approx(15 / 4.5)
    assert second["tv"] == pytest.approx(0.3 * 20 / 30)
    assert second["gap"]["difference"] == pytest.approx(-2 / 40)
    assert second["gap"]["p_value"] == 0.5  # two pairs differ, both the same way: 2 · ¼
    assert second["gap"]["interval"][0] < -0.05 < second["gap"]["interval"][1] <= 0
    assert "gap" not in first
    text = markdown([first, second])
    assert "| lossless | 75.0 [" in text
    assert "-5.0 [" in text
    assert "vs lossless" in text


def test_gaps_pair_items_and_seeds():
    a, b = methods(["lenience"])[1:]
    mine = [line(b, "x", True), line(b, "y", False), line(b, "z", True)]
    other = [line(a, "z", False), line(a, "x", True), line(a, "w", True)]
    found = gap(mine, other)
    assert found["pairs"] == 2
    assert found["difference"] == 0.5


def test_tables_and_plots_are_written(pair, tmp_path):
    lines, wanted = work(pair, tmp_path / "out", entries=[{"law": "lenience", "grid": [0.2, 0.6]}], limit=4)
    rows = summary(lines, wanted)
    assert latex(rows).count(r"\\") == len(rows) + 1
    assert r"\%" in latex(rows)
    write_csv(rows, tmp_path / "out.csv")
    header, *body = (tmp_path / "out.csv").read_text().splitlines()
    assert len(body) == len(rows)
    assert {"score", "gap.difference", "block_efficiency.mean"} <= set(header.split(","))
    assert len(curves(rows, "block_efficiency", "score")["lenience"]) == 2
    written = plot(rows, tmp_path / "plots", "title")
    assert len(written) == 6
    for path in written:
        assert path.stat().st_size > 1000
    assert len(cells(rows[0])) == 10


def test_report_reads_finished_folders(pair, tmp_path):
    from typer.testing import CliRunner

    from hf_lossy.cli import app

    (tmp_path / "empty").mkdir()
    failed = CliRunner().invoke(app, ["report", str(tmp_path / "empty")])
    assert isinstance(failed.exception, hf_lossy.LossyError)
    assert "no summary.json" in str(failed.exception)
    lines, wanted = work(pair, tmp_path / "out", limit=2)
    report = {"pair": pair.name, "settings": {"task": "clock_sums"}, "rows": summary(lines, wanted)}
    (tmp_path / "out/summary.json").write_text(json.dumps(report))
    done = CliRunner().invoke(app, ["report", str(tmp_path / "out"), "--out", str(tmp_path / "shown")])
    assert done.exit_code == 0, done.output
    assert {path.name for path in Path(tmp_path / "shown").iterdir()} >= {"report.md", "report.tex", "report.csv"}
