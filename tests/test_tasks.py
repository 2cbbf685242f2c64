"""Tasks: right answers score 1, wrong ones 0, others count as not parsed; loading; every scorer's reading of texts."""

from __future__ import annotations

import ast
import dataclasses
import json
import sys
from pathlib import Path

import pytest

from hf_lossy.embedded import clock_sums
from hf_lossy.errors import LossyError
from hf_lossy.evaluation import tasks
from hf_lossy.evaluation.tasks import load, names, register, task_named
from hf_lossy.evaluation.tasks.scorers import bfcl_ast
from hf_lossy.evaluation.tasks.scorers.choice import letter
from hf_lossy.evaluation.tasks.scorers.code import code_in, fenced, score_code
from hf_lossy.evaluation.tasks.scorers.math_answer import boxed, score_math

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not there")
ENOUGH = {"humaneval": 6, "mbppplus": 6}
"""Items that are run in a process each."""


def items(name):
    return load(task_named(name), None if name == "clock_sums" else DATA, ENOUGH.get(name, 60))


class Wrong(ast.NodeTransformer):
    """Every function returns something else."""

    def visit_Return(self, node):
        return ast.Return(ast.Constant("something else"))


def corrupted(name, all_items, i):
    """A text in the form asked for whose answer is wrong, close to the right one where that can be done."""
    record, gold = all_items[i].record, task_named(name).gold(all_items[i].record)
    if name == "math500":
        others = (item.record["answer"] for item in all_items[i + 1 :] + all_items)
        return rf"\boxed{{{next(a for a in others if a.strip(chr(92) + '$') != record['answer'])}}}"
    if name == "gsm8k":
        return rf"The answer is \boxed{{{int(tasks.gsm8k.number(record).replace(',', '')) + 1}}}."
    if name in ENOUGH:
        return fenced(ast.unparse(Wrong().visit(ast.parse(code_in(gold)))))
    if name == "include":
        return f"Answer: {'ABCD'[record['answer'] - 1]}"
    if name == "bfcl":
        return (gold.replace("(", "_too("), gold.replace("=", "_too=", 1), gold[:-1] + ", f()]")[i % 3]
    words = gold.split()
    return " ".join([*words[:-2], str((int(words[-2]) + 1) % clock_sums.MODULUS), words[-1]])


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "clock_sums" else needs_data) for n in names()])
class TestEveryTask:
    def test_right_answers_score_one(self, name):
        task, some = task_named(name), items(name)
        for item in some:
            score = task.score(item.record, task.gold(item.record))
            assert (score.correct, score.parsed) == (True, True), (item.id, score)

    def test_wrong_answers_score_zero(self, name):
        task, some = task_named(name), items(name)
        for i, item in enumerate(some[:30]):
            score = task.score(item.record, corrupted(name, some, i))
            assert (score.correct, score.parsed) == (False, True), (item.id, score)

    @pytest.mark.parametrize("text", ["", "I am not sure.", "The question is whether\n\n..."])
    def test_what_holds_no_answer_is_not_parsed(self, name, text):
        for item in items(name)[:3]:
            score = task_named(name).score(item.record, text)
            assert (score.correct, score.parsed) == (False, False)
            assert score.detail

    def test_the_prompt_asks_for_the_form_that_the_scorer_reads(self, name):
        asked = {
            "math500": r"\boxed{}",
            "gsm8k": r"\boxed{}",
            "include": "Answer: X",
            "bfcl": "(name=value",
            "clock_sums": ":",
        }
        for item in items(name):
            text = item.prompt if name == "clock_sums" else "\n".join(message["content"] for message in item.prompt)
            assert asked.get(name, "```python") in text
            if name != "clock_sums":
                assert item.prompt[-1]["role"] == "user"
                assert all(set(message) == {"role", "content"} for message in item.prompt)

    def test_ids_are_unique_and_a_limit_takes_the_first(self, name):
        some = items(name)
        assert len({item.id for item in some}) == len(some)
        assert load(task_named(name), None if name == "clock_sums" else DATA, 3) == some[:3]


# --- loading -----------------------------------------------------------------------------------------------------------


def lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


SUM = {"question": "1 + 1?", "answer": "It is <<1+1=2>>2.\n#### 2"}


def test_names_and_their_errors():
    assert set(names()) == {"math500", "gsm8k", "mbppplus", "humaneval", "include", "bfcl", "clock_sums"}
    with pytest.raises(LossyError, match=r"unknown task 'gsm8'.*Did you mean 'gsm8k'"):
        task_named("gsm8")
    with pytest.raises(LossyError, match="'gsm8k' is registered already"):
        register(task_named("gsm8k"))


def test_a_missing_field_is_named(tmp_path):
    path = lines(tmp_path / "x.jsonl", [SUM, {"question": "1 + 1?"}])
    with pytest.raises(
        LossyError, match=r"record 1 of .*x\.jsonl has no field 'answer', which gsm8k needs.*openai/gsm8k"
    ):
        load(task_named("gsm8k"), path)


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "line 1, is not JSON"), ("[1]\n", "line 1, is a list"), ("\n", "has no records for gsm8k")],
)
def test_what_is_no_json_lines_file(tmp_path, text, says):
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(LossyError, match=says):
        load(task_named("gsm8k"), tmp_path / "x.jsonl")


def test_a_path_without_data(tmp_path):
    with pytest.raises(LossyError, match=r"holds no gsm8k\.jsonl"):
        load(task_named("gsm8k"), tmp_path)
    with pytest.raises(LossyError, match="does not exist"):
        load(task_named("gsm8k"), tmp_path / "nowhere")
    with pytest.raises(LossyError, match="at least 1, got 0"):
        load(task_named("gsm8k"), tmp_path, 0)


def test_a_record_that_comes_twice_is_two_items(tmp_path):
    first, second, other = load(task_named("gsm8k"), lines(tmp_path / "x.jsonl", [SUM, SUM, {**SUM, "question": "?"}]))
    assert second.id == f"{first.id}#2"
    assert "#" not in other.id


def test_an_id_does_not_depend_on_what_else_is_loaded(tmp_path):
    together = load(task_named("gsm8k"), lines(tmp_path / "x.jsonl", [{**SUM, "question": "?"}, SUM]))
    alone = load(task_named("gsm8k"), lines(tmp_path / "y.jsonl", [SUM]))
    assert together[1] == alone[0]


def test_an_answer_without_its_mark_is_refused(tmp_path):
    (item,) = load(task_named("gsm8k"), lines(tmp_path / "x.jsonl", [{**SUM, "answer": "two"}]))
    with pytest.raises(LossyError, match="'two' does not end in '#### N'"):
        task_named("gsm8k").score(item.record, r"\boxed{2}")


def test_clock_sums_are_those_that_are_reported_on(tmp_path):
    some = load(task_named("clock_sums"))
    assert [item.prompt for item in some] == [clock_sums.prompt(s) for s in clock_sums.problems(1000, seed=1)]
    (own,) = load(task_named("clock_sums"), lines(tmp_path / "x.jsonl", [{"operands": [1, 2, 3, 4, 5]}]))
    assert own.prompt == "1 2 3 4 5 :"


def question(language, number):
    options = {f"option_{letter}": f"{number}{letter}" for letter in "abcd"}
    return {"language": language, "question": f"{number}?", "answer": 1, **options}


def test_include_is_balanced_over_languages(tmp_path):
    records = [question(language, i) for language in ("Urdu", "Basque") for i in range(3)]
    some = load(task_named("include"), lines(tmp_path / "include.jsonl", records), 4)
    assert [item.record["language"] for item in some] == ["Basque", "Urdu", "Basque", "Urdu"]
    assert [item.record["question"] for item in some] == ["0?", "0?", "1?", "1?"]
    assert task_named("include").default_limit == 5 * 44


@needs_data
def test_bfcl_is_balanced_over_categories_and_files_can_be_given_alone():
    some = load(task_named("bfcl"), DATA, 6)
    assert [item.id.rpartition("_")[0] for item in some] == ["multiple", "parallel", "simple_python"] * 2
    alone = load(task_named("bfcl"), DATA / "bfcl_parallel.jsonl", 1)
    assert alone[0] == some[1]


def test_bfcl_without_answers(tmp_path):
    record = {"id": "simple_0", "question": [[{"role": "user", "content": "?"}]], "function": []}
    path = lines(tmp_path / "bfcl_x.jsonl", [record])
    with pytest.raises(LossyError, match=r"bfcl_x_answers\.jsonl does not exist"):
        load(task_named("bfcl"), path)
    lines(tmp_path / "bfcl_x_answers.jsonl", [{"id": "simple_1", "ground_truth": []}])
    with pytest.raises(LossyError, match="no ground_truth for 'simple_0'"):
        load(task_named("bfcl"), path)


# --- the Hub's form, from a folder: `datasets` reads both alike ------------------------------------------------------------


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def test_a_split_is_loaded_by_datasets(tmp_path, own_cache):
    folder = tmp_path / "gsm8k"
    folder.mkdir()
    lines(folder / "test.jsonl", [SUM])
    lines(folder / "train.jsonl", [{**SUM, "question": "another"}])
    hub = dataclasses.replace(task_named("gsm8k"), dataset=str(folder), subset=None)
    assert load(hub) == load(task_named("gsm8k"), folder / "test.jsonl")


def test_every_language_is_a_subset(tmp_path, own_cache):
    folder = tmp_path / "include"
    folder.mkdir()
    configs = []
    for language in ("Basque", "Urdu"):
        lines(folder / f"{language}.jsonl", [question(language, i) for i in range(2)])
        configs.append(f"- config_name: {language}\n  data_files:\n  - split: test\n    path: {language}.jsonl\n")
    (folder / "README.md").write_text(f"---\nconfigs:\n{''.join(configs)}---\n")
    some = load(dataclasses.replace(task_named("include"), dataset=str(folder)))
    assert [(i.record["language"], i.record["question"]) for i in some] == [
        ("Basque", "0?"),
        ("Urdu", "0?"),
        ("Basque", "1?"),
        ("Urdu", "1?"),
    ]


def test_a_data_set_that_cannot_be_loaded(tmp_path, own_cache):
    missing = dataclasses.replace(task_named("gsm8k"), dataset=str(tmp_path / "nowhere"), subset=None)
    with pytest.raises(LossyError, match=r"nowhere can't be loaded .*local JSON Lines file"):
        load(missing)


def refused(*args, **kwargs):
    raise ConnectionError("no way out")


@pytest.mark.parametrize(
    ("name", "function", "says"),
    [
        ("include", "datasets.get_dataset_config_names", r"the data set CohereLabs/include-base-44 can't be loaded"),
        ("bfcl", "huggingface_hub.hf_hub_download", r"BFCL_v3_simple\.json of the data set .* can't be loaded"),
    ],
)
def test_what_the_hub_refuses_is_one_sentence(name, function, says, monkeypatch):
    monkeypatch.setattr(function, refused)
    with pytest.raises(
        LossyError, match=rf"{says} \(ConnectionError: no way out\): check the network, or give {name} a local"
    ):
        load(task_named(name))


def test_bfcl_takes_both_files_from_the_hub(tmp_path, monkeypatch):
    import huggingface_hub

    asked = []

    def download(repo, name, repo_type, revision):
        asked.append((repo, name, repo_type))
        category = name.split("BFCL_v3_")[1].removesuffix(".json")
        record = {"id": f"{category}_0"}
        if name.startswith("possible_answer/"):
            record["ground_truth"] = [{"f": {}}]
        else:
            record |= {"question": [[{"role": "user", "content": "?"}]], "function": []}
        return str(lines(tmp_path / name.replace("/", "-"), [record]))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    some = load(task_named("bfcl"))
    assert [item.id for item in some] == ["simple_0", "multiple_0", "parallel_0", "parallel_multiple_0"]
    assert all(item.record["ground_truth"] == [{"f": {}}] for item in some)
    assert {where[0] for where in asked} == {"gorilla-llm/Berkeley-Function-Calling-Leaderboard"}


# --- scorers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "text", "correct", "parsed"),
    [
        ("18", r"so \boxed{18}.", True, True),
        ("18", r"first \boxed{17}, then \boxed{18}", True, True),
        ("17", r"first \boxed{17}, then \boxed{18}", False, True),
        ("18", "The final answer is $18$.", True, True),
        ("18", "we get 18", False, False),  # a number that merely stands there
        ("18", r"so \boxed{18", False, False),  # cut off
        (r"\frac{1}{2}", r"\boxed{0.5}", True, True),
        (r"\frac{1}{2}", r"\boxed{\dfrac{2}{4}}", True, True),
        (r"\frac{1}{2}", r"\boxed{\frac{1}{3}}", False, True),
        (r"\frac 59", r"\boxed{\frac{5}{9}}", True, True),
        ("x^2-1", r"\boxed{(x-1)(x+1)}", True, True),
        (r"x \in [-2,7]", r"\boxed{[-2,7]}", True, True),
        (r"x \in [-2,7]", r"\boxed{(-2,7)}", False, True),
        (r"\begin{pmatrix} -2 \\ 7 \end{pmatrix}", r"\boxed{\begin{pmatrix} -2 \\ 7 \end{pmatrix}}", True, True),
        (r"90^\circ", r"\boxed{90}", True, True),
        ("3, 5, 7", r"\boxed{7, 5, 3}", True, True),
        (r"\text{Evelyn}", r"\boxed{\text{Evelyn}}", True, True),
        (r"\text{Evelyn}", r"\boxed{\text{Carla}}", False, True),
        ("y = 2x + 3", r"\boxed{2x - y + 3 = 0}", True, True),
        (r"\$36", r"\boxed{36}", True, True),
        ("1000", r"\boxed{1\,000}", True, True),
        ("1,000", r"\boxed{1{,}000}", True, True),
        ("1", r"\boxed{1\,000}", False, True),
    ],
)
def test_mathematical_answers(answer, text, correct, parsed):
    score = score_math(answer, text)
    assert (score.correct, score.parsed) == (correct, parsed), score


def test_a_box_is_read_to_its_closing_brace():
    assert boxed(r"\boxed{\frac{1}{2}} and more}") == r"\frac{1}{2}"
    assert boxed(r"\boxed{1} \boxed{2") == "1"
    assert boxed("nothing") is None


def test_mathematical_answers_are_marked_in_threads_too():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(score_math, "0.5", r"\boxed{\frac{1}{2}}").result().correct


@pytest.mark.parametrize(
    ("text", "correct", "parsed"),
    [
        ("It is <<1+1=2>>2.\n#### 2", True, True),
        ("#### 3", False, True),
        (r"#### 3, no: \boxed{2}", True, True),
        ("2", False, False),
        (r"\boxed{2.00}", True, True),
        (r"\boxed{\$2}", True, True),
        (r"\boxed{2 \text{ apples}}", True, True),
        (r"\boxed{2 apples}", True, True),  # no product of letters
        (r"\boxed{3 apples.}", False, True),
        (r"\boxed{2x}", False, True),
        ("#### 2 apples", True, True),
        ("#### **2**", True, True),
        ("#### $2.\n\nBye", True, True),
        ("#### -$2", False, True),
        ("#### two", False, False),
    ],
)
def test_gsm8k_answers(text, correct, parsed):
    score = task_named("gsm8k").score(SUM, text)
    assert (score.correct, score.parsed) == (correct, parsed), score


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Answer: B", "B"),
        ("Think.\n\nAnswer: **C**", "C"),
        ("A seems right, but no. Answer: D.", "D"),
        ("Answer: A\nWait.\nAnswer: B", "B"),
        ("The correct answer is (B).", "B"),
        ("The correct option is C: Tirana", "C"),
        (r"So \boxed{\text{D}}", "D"),
        ("B", "B"),
        ("**B**", "B"),
        ("B. Tirana", "B"),
        ("C) Tirana", "C"),
        ("It must be this:\n\nD", "D"),
        ("Answer: B\n\nOption A is wrong, since it names a river.", "B"),  # what follows is no other answer
        ("Option A is a river and option C a lake. So the right option is C", "C"),
        ("I choose option B.", "B"),
        ("Option A is a river and option C a lake.", None),  # nothing is guessed among several
        ("A. Tirana\nB. Durrës\nC. Vlorë\nD. Shkodër\n\nLet us see.", None),  # the question again
        ("The capital:\n\n**C. Tirana** is right.", "C"),
        ("Answer：（B）", "B"),
        ("A good question.", None),
        ("The answer is a bird", None),
        ("The answer is Albania", None),
        ("Answer: E", None),
        ("", None),
    ],
)
def test_letters(text, expected):
    assert letter(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Here:\n```python\nx = 1\n```\nDone.", "x = 1"),
        ("```\nx = 1\n```", "x = 1"),
        ("```Python\r\nx = 1\n```", "x = 1"),
        ("```python\nx = 1\n", "x = 1\n"),  # cut off after a whole line
        ("```python\nx = 1\n```\nand\n```python\ny = 2\n```", "x = 1\n\ny = 2"),
        ("```python\nx = 1\n```\nrun\n```bash\npip install x\n```", "x = 1"),
        ("```python\nx = 1\n```\ngives\n```\n>>> 1 2\n```", "x = 1"),
        ("```python\nx = (\n```", "x = ("),
        ("```bash\npip install x\n```\nThen:\n```python\nx = 1\n```", "x = 1"),  # its end opens no other block
        ("```\n```\n```python\nx = 1\n```", "x = 1"),
        ("```json\n[1]\n```\nand\n```python title=x\nx = 1\n```", "x = 1"),
        ("1. So:\n\n   ```python\n   def f():\n       return 1\n   ```", "def f():\n    return 1"),
        ("```python\nx = 1\n```\n```python\n    return x\n```", "x = 1"),  # no program of its own
        ("x = 1", "x = 1"),
        ("I would write x.", None),
    ],
)
def test_code_blocks(text, expected):
    assert code_in(text) == expected


def test_code_that_is_no_python_is_not_parsed():
    score = score_code("```python\ndef f(:\n```", lambda code: code)
    assert not score.parsed
    assert "SyntaxError" in score.detail


def test_an_answer_that_ends_the_program_early_does_not_pass():
    score = score_code("```python\nimport sys\nsys.exit(0)\n```", lambda code: f"{code}\nassert False")
    assert (score.correct, score.parsed) == (False, True)


HUMAN = {
    "task_id": "x",
    "prompt": 'import math\n\n\ndef helper(x):\n    return x\n\n\ndef f(x: int) -> int:\n    """Round down. def f(x)"""\n',
    "entry_point": "f",
    "canonical_solution": "    return math.floor(helper(x))\n",
    "test": "def check(candidate):\n    assert candidate(1.5) == 1\n",
}


@pytest.mark.parametrize(
    ("text", "correct"),
    [
        ("```python\ndef f(x):\n    return math.floor(helper(x))\n```", True),  # imports and helpers are the prompt's
        ("```python\n    return math.floor(x)\n```", False),  # a body in a block is no Python
        ("    return math.floor(x)\n", False),
        ("```python\ndef g(x):\n    return math.floor(x)\n```", False),
        ("```python\nf = math.floor\n```", True),
        ("```python\ndef f(x):\n    return x\n```", False),
    ],
)
def test_humaneval_programs(text, correct):
    assert task_named("humaneval").score(HUMAN, text).correct == correct


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("def f(x):\n    return x", "passed"),
        ("def f(x):\n    return 1", "failed: AssertionError: plus"),
        ("def f(x):\n    return x if x > 1 else 0", "failed: AssertionError: base"),
    ],
)
def test_mbppplus_takes_the_base_and_the_plus_tests(code, detail):
    record = {
        "test_imports": ["import math"],
        "test_list": ["assert f(math.ceil(0.5)) == 1, 'base'"],
        "test": "assert f(2) == 2, 'plus'",
    }
    score = task_named("mbppplus").score(record, fenced(code))
    assert (score.correct, score.detail) == (detail == "passed", detail)


# --- function calls ------------------------------------------------------------------------------------------------------

CALL = [{"a.f": {"x": 1, "y": ["b", -2.5]}}]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("[a.f(x=1, y=['b', -2.5])]", CALL),
        ("a.f(x=1, y=['b', -2.5])", CALL),
        ("Here it is: [a.f(x=1, y=['b', -2.5])]", CALL),
        ("```python\n[a.f(x=1,\n     y=['b', -2.5])]\n```", CALL),
        ("'[a.f(x=1, y=[\"b\", -2.5])]'", CALL),
        ('{"name": "a.f", "arguments": {"x": 1, "y": ["b", -2.5]}}', CALL),
        ('[{"name": "a.f", "parameters": {"x": 1, "y": ["b", -2.5]}}]', CALL),
        ('[{"function": "a.f", "parameters": {"x": 1, "y": ["b", -2.5]}}]', CALL),
        ('[{"a.f": {"x": 1, "y": ["b", -2.5]}}]', CALL),
        ('<tool_call>\n{"name": "a.f", "arguments": {"x": 1, "y": ["b", -2.5]}}\n</tool_call>', CALL),
        (
            '[{"type": "function", "function": {"name": "a.f", "arguments": "{\\"x\\": 1, \\"y\\": [\\"b\\", -2.5]}"}}]',
            CALL,
        ),
        ("a.f(x=1)\na.f(x=2)", [{"a.f": {"x": 1}}, {"a.f": {"x": 2}}]),
        ("[f(x=True, y=None, z=(1, 2), w={'k': 2 * 3})]", [{"f": {"x": True, "y": None, "z": (1, 2), "w": {"k": 6}}}]),
        ("f(x=1 / 0, y=2 / 4)", [{"f": {"x": "1 / 0", "y": 0.5}}]),
        (f"f(x={'9' * 400} / 7.0)", [{"f": {"x": f"{'9' * 400} / 7.0"}}]),
        ("[f(x=name, y=g(1))]", [{"f": {"x": "name", "y": "g(1)"}}]),
        ("f()", [{"f": {}}]),
        ("[]", None),
        ("None of the functions fits.", None),
        ("[1, 2]", None),
        ("x = f(y=1)", None),
        ("[f(x=1", None),
        ('{"name": "f"}', None),
        ("1" * 5000, None),
    ],
)
def test_calls_are_read(text, calls):
    assert bfcl_ast.calls_in(text) == calls


def described(**parameters):
    """A function whose parameters without ``optional`` are required."""
    required = [name for name, value in parameters.items() if not value.pop("optional", False)]
    return [{"name": "f", "parameters": {"type": "dict", "properties": parameters, "required": required}}]


STRING, INTEGER, FLOAT, BOOLEAN = ({"type": t} for t in ("string", "integer", "float", "boolean"))
INTEGERS, POINT = {"type": "array", "items": {"type": "integer"}}, {"type": "tuple", "items": {"type": "float"}}
RULES = [
    # parameter, right values, values that pass, values that do not (None as an option: left out)
    (INTEGER, [5, 6], [5, 6], [7, 5.0, "5", True, [5]]),
    (FLOAT, [5.5, 6], [5.5, 6, 6.0], [5, "5.5"]),
    (FLOAT, [1.0], [1], [True, 10**400]),
    (BOOLEAN, [True], [True], [False, 1, "True"]),
    (STRING, ["April 1, 2024"], ["April 1, 2024", "april 1 2024", "APRIL-1-2024"], ["April 2, 2024", 2024, ""]),
    (STRING, ["it's"], ['IT"S'], ["its"]),
    (STRING, ["a", ""], ["a", ""], ["b"]),
    (INTEGERS, [[1, 2], [3]], [[1, 2], [3]], [[2, 1], [1], [], [1.0, 2.0], "12", (1, 2)]),
    (POINT, [[1.0, 2.0]], [[1.0, 2.0], (1.0, 2.0)], [(1, 2), (2.0, 1.0)]),
    ({"type": "array", "items": {"type": "string"}}, [["a b", "c"]], [["A-B", "c"]], [["c", "a b"], ["a b"]]),
    (INTEGER, ["n"], ["n"], ["N", 5]),  # a variable stands for the value
    (
        {"type": "dict"},
        [{"a": [1, 2], "b": ["x", ""]}],
        [{"a": 1}, {"a": 2, "b": "X"}],
        [{}, {"b": "x"}, {"a": 3}, {"a": 1, "c": 1}, [1]],
    ),
    (
        {"type": "array", "items": {"type": "dict"}},
        [[{"a": [1]}, {"a": [2]}]],
        [[{"a": 1}, {"a": 2}]],
        [[{"a": 2}, {"a": 1}], [{"a": 1}], [{"a": 1}, 2], []],
    ),
]


@pytest.mark.parametrize(("parameter", "right", "good", "bad"), RULES, ids=lambda value: json.dumps(value)[:40])
def test_values_are_compared_by_the_rules(parameter, right, good, bad):
    for value, fits in [*((v, True) for v in good), *((v, False) for v in bad)]:
        reason = bfcl_ast.mismatch(described(x=dict(parameter)), [{"f": {"x": value}}], [{"f": {"x": right}}])
        assert (reason is None) == fits, (value, reason)


def test_arguments_that_may_be_left_out():
    functions = described(x=dict(INTEGER), y={**INTEGER, "optional": True}, z={**INTEGER, "optional": True})
    truth = [{"f": {"x": [1], "y": [2, ""], "z": [3]}}]

    def fits(**arguments):
        return bfcl_ast.mismatch(functions, [{"f": arguments}], truth) is None

    assert fits(x=1, y=2, z=3)
    assert fits(x=1, z=3)  # "" among the right values
    assert not fits(x=1, y=2)  # not required, but no "" either
    assert not fits(x=1, y=5, z=3)
    assert not fits(y=2, z=3)
    assert not fits(x=1, z=3, w=1)


def test_several_calls_come_in_any_order_and_each_counts_once():
    functions = described(x=dict(INTEGER))
    truth = [{"f": {"x": [1]}}, {"f": {"x": [2]}}]

    def fits(*values):
        return bfcl_ast.mismatch(functions, [{"f": {"x": value}} for value in values], truth) is None

    assert fits(1, 2)
    assert fits(2, 1)
    assert not fits(1, 1)
    assert not fits(1)
    assert not fits(1, 2, 2)
    assert bfcl_ast.mismatch(functions, [{"f": {"x": 1}}, {"f": {"x": 7}}], truth[:1] * 2) is not None
    said = bfcl_ast.mismatch(functions, [{"g": {"x": 1}}, {"f": {"x": 2}}], truth)
    assert said == "no match for f: g called instead; x = 2, expected one of [1]"


@pytest.fixture
def fake_bfcl_eval(tmp_path, monkeypatch):
    """A package of that name which says what it was asked."""
    for folder in ("constants", "eval_checker", "eval_checker/ast_eval"):
        (tmp_path / "bfcl_eval" / folder).mkdir(parents=True)
    (tmp_path / "bfcl_eval/constants/enums.py").write_text("class Language:\n    PYTHON = 'python'\n")
    checker = tmp_path / "bfcl_eval/eval_checker/ast_eval/ast_checker.py"
    checker.write_text(
        "def ast_checker(functions, calls, truth, language, category, model):\n"
        "    asked = [functions, calls, truth, language, category]\n"
        "    if calls == [{'f': {'x': 1}}]:\n"
        "        return {'valid': True}\n"
        "    if calls == [{'f': {}}]:\n"
        "        raise KeyError('x')\n"
        "    return {'valid': False, 'error': asked}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield checker
    for name in [n for n in sys.modules if n.split(".")[0] == "bfcl_eval"]:
        del sys.modules[name]


def test_bfcl_eval_decides_where_it_is_installed(fake_bfcl_eval):
    functions, truth = described(x=dict(INTEGER)), [{"f": {"x": [2]}}]

    def score(text):
        return bfcl_ast.score_calls(functions, truth, text, "simple_0")

    assert score("[f(x=1)]").correct  # wrong by our own rules
    refused = score("[f(x=2)]")
    assert (refused.correct, refused.parsed) == (False, True)
    assert refused.detail == str([functions, [{"f": {"x": 2}}], truth, "python", "simple_0"])
    assert score("[f()]").detail == "KeyError: 'x'"
    assert not score("no").parsed


def test_a_broken_bfcl_eval_is_no_wrong_answer(fake_bfcl_eval):
    fake_bfcl_eval.write_text("import a_client_that_is_not_installed\n")
    with pytest.raises(LossyError, match=r"can't be imported .*repair it, or remove it"):
        bfcl_ast.score_calls(described(x=dict(INTEGER)), [{"f": {"x": [1]}}], "[f(x=1)]")
