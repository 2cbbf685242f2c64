"""Model cards: made from the committed results, true to them, and unable to hold a figure without a file."""

from __future__ import annotations

import ast
import json
import re
import shutil
from pathlib import Path

import pytest
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from typer.testing import CliRunner

import hf_lossy
from hf_lossy.cards import Card, File, card_of, cards, write_all
from hf_lossy.cards.build import SECTIONS, build, measured
from hf_lossy.cards.catalogue import CARDS, HEADS, SUBJECTS, index
from hf_lossy.cards.figures import Figure, bullets, code, fill, table
from hf_lossy.cards.tables import AGAINST
from hf_lossy.cli import app
from hf_lossy.evaluation.tasks import names
from hf_lossy.laws import make
from hf_lossy.loading import PAIRS

ROOT = Path(__file__).parent.parent
PITFALL = ROOT / "docs/results/eagle3-pitfall"
MADE = cards(ROOT)
PATHS = sorted(MADE)


def text(path: Path) -> str:
    return str(MADE[path])


def rows(card: str, first: str) -> list[list[str]]:
    """The rows of the first table whose header begins with this cell, the header included."""
    lines = card.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first} |"))
    end = next(i for i in range(start, len(lines) + 1) if i == len(lines) or not lines[i].startswith("|"))
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[start:end]]
    return [cells[0], *cells[2:]]


# --- the committed cards ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_a_committed_card_is_the_one_that_its_results_make(path):
    assert (ROOT / path).read_text(encoding="utf-8") == text(path), "run make cards"


def test_no_card_lies_about_and_none_is_missing():
    here = {path.relative_to(ROOT) for path in (ROOT / CARDS).iterdir()}
    assert here == {path for path in MADE if path.parent == CARDS} | {CARDS / "README.md"}
    assert (ROOT / CARDS / "README.md").read_text(encoding="utf-8") == index(MADE)
    for head in HEADS:
        assert head.folder / "README.md" in MADE
        assert sum(path.stat().st_size for path in (ROOT / head.folder).iterdir()) < 25e6
    for result in (ROOT / "docs/results").rglob("summary.json"):
        folder = result.parent.relative_to(ROOT).as_posix()
        assert [path for path in MADE if f"`{folder}/summary.json`" in text(path)], f"{folder} is in no card"
    for bench in (ROOT / "docs/results/bench").glob("*.json"):
        if bench.stem in PAIRS:
            assert CARDS / f"pair-{bench.stem}.md" in MADE


def test_the_named_pairs_and_the_subjects_of_cards_are_the_same():
    assert {subject.name for subject in SUBJECTS} == set(PAIRS)


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_the_metadata_survives_a_round_trip(path):
    built = MADE[path].card.data
    read = ModelCard(text(path)).data
    assert read.to_dict() == built.to_dict()
    assert str(ModelCard(text(path))) == text(path)
    for field in ("license", "library_name", "pipeline_tag", "tags", "language"):
        assert read.get(field), field
    assert len(read.eval_results or []) == len(built.eval_results or [])
    for ours, theirs in zip(built.eval_results or [], read.eval_results or [], strict=True):
        assert {**vars(ours), "file": None} == {**vars(theirs), "file": None}


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_every_result_of_the_metadata_stands_in_the_file_that_it_names(path):
    for result in ModelCard(text(path)).data.eval_results or []:
        where = result.metric_args
        file = ROOT / where["file"] if (ROOT / where["file"]).is_file() else ROOT / path.parent / where["file"]
        value = json.loads(file.read_text())
        for key in where["key"].split("/"):
            value = value[int(key) if isinstance(value, list) else key]
        assert value == result.metric_value
        if "interval_95" in where:
            low, high = where["interval_95"]
            assert low - 1e-9 <= value <= high + 1e-9  # Wilson's, at 1, is one rounding below it


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_every_file_that_a_card_names_is_there(path):
    card = MADE[path]
    listed = {row[0].strip("`") for row in rows(text(path), "file")[1:]}
    assert listed == {file.label for file in card.files}
    for label in listed:
        assert (ROOT / label).is_file() or (ROOT / path.parent / label).is_file()
    named = set(re.findall(r"`([^`\n]+\.(?:json|yaml))`", text(path)))
    assert named <= listed
    below = {
        name for line in re.findall(r"^\*Figures: (.*)\.\*$", text(path), re.M) for name in re.findall("`(.*?)`", line)
    }
    assert below == listed, "a section does not name its files"


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_a_speed_names_its_hardware(path):
    """In the header of the column, and in the sentence before the table."""
    for line in text(path).splitlines():
        if line.startswith("| ") and re.search(r"× plain|tokens/s", line):
            assert re.search(r"\d threads? of [^|]+", line), line
    for paragraph in text(path).split("\n\n"):
        if re.search(r"^(Greedy speed|Ratios of tokens/s|Training took)", paragraph):
            assert re.search(r"\d\s+threads?\s+of\s+Intel", paragraph), paragraph


@pytest.mark.parametrize("path", [path for path in PATHS if path.name.startswith("pair-")], ids=str)
def test_a_pair_says_what_it_must_not_be_used_for_and_what_was_not_run(path):
    card = " ".join(text(path).split())
    for use in ("Roll-outs for reinforcement learning", "Use of log-probabilities", "target's exact law"):
        assert use in card
    subject = next(subject for subject in SUBJECTS if path.stem == f"pair-{subject.name}")
    base = ModelCard(text(path)).data.get("base_model", [])
    assert ([base] if isinstance(base, str) else base) == list(subject.base_model)
    status = {row[1]: row[2] for row in rows(text(path), "result")[1:]}
    assert set(status) == {*names(), "throughput", "efficiency", "trees"}
    for what, found in status.items():
        files = re.findall(r"`([^`]+)`", found)
        assert files or found == "not run" or found.startswith("left out: "), (what, found)
        assert all((ROOT / file).exists() for file in files)


@pytest.mark.parametrize("path", [path for path in PATHS if "python" in text(path)], ids=str)
def test_the_python_of_a_card_runs(path):
    """Where the models are embedded; the others' blocks are read."""
    for block in re.findall(r"^```python\n(.*?)^```", text(path), re.M | re.S):
        ast.parse(block)
        if "embedded.load" in block:
            exec(block, {})


# --- matched baselines -----------------------------------------------------------------------------------------------


def test_a_matched_baseline_stands_in_the_next_row():
    summary = json.loads((PITFALL / "summary.json").read_text())
    found = [row[0] for row in rows(str(card_of([PITFALL])), "method")[1:]]
    expected: list[str] = []
    for row in summary["rows"]:
        expected.append(row["name"])
        if row["law"] is not None and not make(row["law"]).is_strict:
            expected.append(f"{AGAINST}{row['baseline_name']}")
    assert found == expected
    assert f"{AGAINST}min_p(0.3)" in found


def test_a_baseline_that_was_not_run_is_named(tmp_path):
    folder = tmp_path / "partly"
    shutil.copytree(PITFALL, folder)
    summary = json.loads((folder / "summary.json").read_text())
    summary["rows"] = [row for row in summary["rows"] if (row["law"] or {}).get("method") != "min_p"]
    for row in summary["rows"]:
        if row.get("baseline", "").startswith("min_p"):
            for key in ("baseline", "baseline_name", "gap"):
                del row[key]
    (folder / "summary.json").write_text(json.dumps(summary))
    found = [row[0] for row in rows(str(card_of([folder])), "method")[1:]]
    after = found[found.index("speccascade(0.3, fallback=target)") + 1]
    assert after == f"{AGAINST}min_p(0.3): not run"


# --- any result folder -----------------------------------------------------------------------------------------------


def test_a_result_folder_of_an_unknown_pair_gets_a_card(tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree(PITFALL, folder)
    summary = json.loads((folder / "summary.json").read_text())
    summary["pair"] = "org/Target with org/Draft"
    summary["settings"] |= {"pair": None, "target": "org/Target", "draft": "org/Draft", "task": "gsm8k"}
    (folder / "summary.json").write_text(json.dumps(summary))
    card = card_of([folder])
    assert card.card.data.base_model == ["org/Target", "org/Draft"]
    assert {result.dataset_type for result in card.card.data.eval_results} == {"openai/gsm8k"}
    assert {file.label for file in card.files} == {"mine/summary.json", "mine/provenance.json", "mine/config.yaml"}
    with pytest.raises(hf_lossy.LossyError, match="several pairs, target-draft, arithmetic-eagle3"):
        card_of([folder, PITFALL])


def test_a_result_of_another_program_gets_the_card_of_its_pair(tmp_path):
    """With the command line's name of the pair, few settings, and a model without a law besides the target."""
    folder = tmp_path / "shortcut"
    shutil.copytree(PITFALL, folder)
    summary = json.loads((folder / "summary.json").read_text())
    summary |= {"pair": "arithmetic-shortcut", "settings": {"task": "clock_sums", "temperature": 0.7, "seeds": 1}}
    summary["rows"].insert(
        0, {**summary["rows"][0], "method": "draft-1", "name": "draft alone", "model": "draft", "texts": 64}
    )
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "config.yaml").write_text("temperature: 0.7\ntop_k: 50\nbatch_size: 64\npair: arithmetic-shortcut\n")
    card = str(card_of([folder]))
    assert "# The embedded arithmetic target verified with its embedded draft shortcut" in card
    said = " ".join(card.split())
    assert (
        "Task clock_sums: 64 to 400 texts a method; sampled at T = 0.7, top_k = 50, batch_size=64; ran on 1 of 2"
        in said
    )
    assert [row[0] for row in rows(card, "method")[1:4]] == ["draft alone", "target alone", "lossless"]


@pytest.fixture
def checkout(tmp_path):
    """A copy of what cards are made from."""
    for path in ("docs/results", "hf_lossy/embedded/models", "hf_lossy/assets"):
        shutil.copytree(ROOT / path, tmp_path / path, ignore=shutil.ignore_patterns("*.safetensors"))
    return tmp_path


def test_new_results_change_the_card_of_their_pair_and_no_other(checkout):
    write_all(checkout)
    assert write_all(checkout) == []
    new = checkout / "docs/results/later/clock-sums"
    shutil.copytree(PITFALL, new)
    summary = json.loads((new / "summary.json").read_text())
    summary["pair"] = "arithmetic (natural draft)"
    summary["settings"]["pair"] = None
    (new / "summary.json").write_text(json.dumps(summary))
    assert write_all(checkout) == [CARDS / "pair-arithmetic.md"]
    assert "`docs/results/later/clock-sums`" in (checkout / CARDS / "pair-arithmetic.md").read_text()
    (checkout / "docs/results/bench/qwen-coder.json").unlink()
    for result in list((checkout / "docs/results").rglob("summary.json")):
        if json.loads(result.read_text())["pair"].startswith("qwen-coder"):
            shutil.rmtree(result.parent)
    assert CARDS / "pair-qwen-coder.md" not in cards(checkout)  # nothing was measured of it any more


def test_the_command(checkout, tmp_path):
    def run(*args):
        return CliRunner().invoke(app, ["card", *map(str, args)])

    assert run(PITFALL).stdout == str(card_of([PITFALL]))
    bench = ROOT / "docs/results/bench/arithmetic-eagle3.json"
    assert run(PITFALL, "--bench", bench, "--out", tmp_path / "out/card.md").exit_code == 0
    assert (tmp_path / "out/card.md").read_text() == str(card_of([PITFALL], bench))
    assert "× plain decoding" in (tmp_path / "out/card.md").read_text()
    assert "wrote model_cards/pair-arithmetic.md" in run("--root", checkout).stdout
    assert "every card is as its results make it" in run("--root", checkout).stdout
    assert "name the folder as well" in str(run("--bench", bench).exception)


@pytest.mark.parametrize("broken", ["provenance.json", "config.yaml", "rows", "json"])
def test_a_broken_result_folder_is_refused_and_not_skipped(broken, checkout):
    folder = checkout / "docs/results/eagle3-pitfall"
    if broken == "rows":
        (folder / "summary.json").write_text(json.dumps({"pair": "x", "settings": {}, "rows": []}))
    elif broken == "json":
        (folder / "summary.json").write_text("{")
    else:
        (folder / broken).unlink()
    with pytest.raises(hf_lossy.LossyError, match="eagle3-pitfall"):
        cards(checkout)


def test_what_has_no_results_is_refused(tmp_path):
    with pytest.raises(hf_lossy.LossyError, match="neither a head"):
        card_of([tmp_path])
    with pytest.raises(hf_lossy.LossyError, match="no folder docs/results"):
        cards(tmp_path)


def test_a_head_without_a_benchmark_has_no_figures_of_use(tmp_path):
    folder = ROOT / HEADS[0].folder
    assert "× plain decoding" in str(card_of([folder]))
    assert str(card_of([folder])) == str(MADE[HEADS[0].folder / "README.md"])
    shutil.copy(folder / "training.json", tmp_path)
    card = str(card_of([tmp_path]))
    assert "was not measured in use" in card
    assert "break-even" not in card


# --- no figure without a file ----------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    (tmp_path / "r.json").write_text(json.dumps({"score": 0.93, "none": None, "rows": [{"n": 4}]}))
    return File(tmp_path / "r.json")


def test_a_figure_knows_its_file(file):
    said = fill("It got {score} of {n}.", score=file.figure("score", form=".1%"), n=file.figure("rows", 0, "n"))
    assert (said.text, said.files) == ("It got 93.0% of 4.", (file,))
    assert table(["a"], [[file.figure("score")]]).files == (file,)
    assert bullets(said, said).files == (file,)


@pytest.mark.parametrize("value", [0.93, 93, "0.93", "93 %", "of 4", "accuracy=0.93", "(93)", "±0.1", "−3"])
def test_a_figure_without_a_file_is_refused(value):
    refused = pytest.raises(hf_lossy.LossyError, match=r"file it came from")
    with refused:
        fill("It got {value}.", value=value)
    with refused:
        table(["method", "score"], [["lossless", value]])
    with refused:
        table(["method", value], [])
    with refused:
        bullets(fill(f"It got {value}."))


def test_names_with_digits_are_names():
    named = "Qwen/Qwen2.5-Coder-1.5B-Instruct, EAGLE-3, arXiv:2607.26627, Apache-2.0, p95; a 95 % interval"
    assert fill(named).text == named
    assert fill("{name}", name=named).files == ()


def test_a_figure_can_not_be_made_without_a_file(file):
    with pytest.raises(hf_lossy.LossyError, match="no file it came from"):
        Figure("0.93", None)
    with pytest.raises(hf_lossy.LossyError, match=r"r\.json has nothing at rows/1/n: no 1"):
        file.figure("rows", 1, "n")
    with pytest.raises(hf_lossy.LossyError, match="holds null at none"):
        file.figure("none")


def test_a_card_takes_nothing_but_prose_and_measured_results(file):
    sections = dict.fromkeys(SECTIONS, fill("Nothing."))
    data = ModelCardData(license="mit", model_name="m")
    assert isinstance(build("A title", data, sections), Card)
    with pytest.raises(hf_lossy.LossyError, match="'results' must be made by fill, table or code, got str"):
        build("A title", data, sections | {"results": "93 % right"})
    with pytest.raises(hf_lossy.LossyError, match="missing or unknown results"):
        build("A title", data, {name: prose for name, prose in sections.items() if name != "results"})
    about = {"dataset_type": "d", "dataset_name": "d", "metric_type": "accuracy"}
    loose = EvalResult(task_type="text-generation", metric_value=0.93, **about)
    with pytest.raises(hf_lossy.LossyError, match="result 'accuracy' names no file"):
        build("A title", ModelCardData(license="mit", model_name="m", eval_results=[loose]), sections)
    sound = measured(file, "score", interval=[0.9, 0.95], **about)
    made = build("A title", ModelCardData(license="mit", model_name="m", eval_results=[sound]), sections)
    assert made.files == (file,)
    assert "`r.json`" in str(made)
    assert ModelCard(str(made)).data.eval_results[0].metric_args == {
        "file": "r.json",
        "key": "score",
        "interval_95": [0.9, 0.95],
    }


def test_the_code_of_a_card_has_to_compile():
    with pytest.raises(SyntaxError):
        code("print(")
    assert code("x = 93").text == "```python\nx = 93\n```"
