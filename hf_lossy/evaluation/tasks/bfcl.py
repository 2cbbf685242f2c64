"""BFCL: function calls, marked by comparing syntax trees: the categories simple, multiple, parallel, parallel_multiple."""

from __future__ import annotations

import json
from pathlib import Path

from ...errors import LossyError
from .base import Prompt, Record, Task, files, interleaved, reaching, read_lines, register
from .scorers.bfcl_ast import gold_calls, score_calls

CATEGORIES = ("simple", "multiple", "parallel", "parallel_multiple")
_ANSWERS = "_answers"


def read(task: Task, path: Path | None) -> list[Record]:
    """Questions with their answers, one of each category after the other.

    The answers lie in a second file: ``possible_answer/<the same name>`` on the Hub, ``<name>_answers.jsonl`` beside a
    local file. The Hub's files have no common schema, so they are read as JSON Lines.
    """
    if path is not None:
        questions = [file for file in files(task, path) if not file.stem.endswith(_ANSWERS)]
        return interleaved(_joined(file, file.with_name(f"{file.stem}{_ANSWERS}.jsonl")) for file in questions)
    names = [f"BFCL_v3_{category}.json" for category in CATEGORIES]
    return interleaved(_joined(_fetch(task, name), _fetch(task, f"possible_answer/{name}")) for name in names)


def _fetch(task: Task, name: str) -> Path:
    from huggingface_hub import hf_hub_download

    with reaching(task, name, ", with its answers in <name>_answers.jsonl beside it"):
        return Path(hf_hub_download(str(task.dataset), name, repo_type="dataset", revision=task.revision))


def _joined(questions: Path, answers: Path) -> list[Record]:
    if not answers.is_file():
        raise LossyError(f"{answers} does not exist: BFCL's answers must lie beside {questions.name}, under that name")
    truth = {record.get("id"): record.get("ground_truth") for record in read_lines(answers)}
    records = read_lines(questions)
    for record in records:
        if truth.get(record.get("id")) is None:
            raise LossyError(
                f"{answers} has no ground_truth for {record.get('id')!r}: give the answers of {questions.name}"
            )
    return [{**record, "ground_truth": truth[record["id"]]} for record in records]


def prompt(record: Record) -> Prompt:
    """The functions and the form of the answer as a system message, then the conversation so far."""
    system = (
        "You can call functions. Answer the request with the call or calls that fulfil it, and with nothing else: a Python "
        "list of calls with keyword arguments and literal values, as in\n\n"
        "[first_function(name=value, other=value), second_function(name=value)]\n\n"
        f"These are the functions, in JSON:\n\n{json.dumps(record['function'], ensure_ascii=False)}"
    )
    return [{"role": "system", "content": system}, *record["question"][0]]


register(
    Task(
        name="bfcl",
        dataset="gorilla-llm/Berkeley-Function-Calling-Leaderboard",
        license="Apache-2.0",
        fields=("id", "question", "function", "ground_truth"),
        prompt=prompt,
        item_id=lambda record: record["id"],
        score=lambda record, text: score_calls(record["function"], record["ground_truth"], text, record["id"]),
        gold=lambda record: gold_calls(record["function"], record["ground_truth"]),
        max_new_tokens=2048,
        read=read,
        file="bfcl_*.jsonl",
    )
)
