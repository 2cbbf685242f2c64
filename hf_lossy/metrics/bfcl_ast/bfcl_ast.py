"""Function calls compared as syntax trees, as an ``evaluate`` module."""

from __future__ import annotations

import json
from typing import Any

import datasets
import evaluate

from hf_lossy.evaluation.tasks import Score
from hf_lossy.evaluation.tasks.scorers.bfcl_ast import score_calls
from hf_lossy.metrics import accuracy

_DESCRIPTION = """
Accuracy of function calls by the AST match of the Berkeley Function-Calling Leaderboard: the right function, its required
arguments, types and values, several calls in any order. By `bfcl-eval` where it is installed, else by the same rules here.
"""
_KWARGS_DESCRIPTION = """
Args:
    predictions: the texts that the model wrote.
    references: for each text, JSON with `function` (the descriptions) and `ground_truth` (the right calls), as in the data.
Returns:
    accuracy: the share of right answers.
    interval: its 95 % Wilson interval.
    unparsed: answers that could not be read; they count as wrong.
    correct: for each answer, whether it is right.
Examples:
    >>> metric = evaluate.load("hf_lossy/metrics/bfcl_ast")
    >>> function = {"name": "f", "parameters": {"properties": {"x": {"type": "integer"}}, "required": ["x"]}}
    >>> reference = json.dumps({"function": [function], "ground_truth": [{"f": {"x": [1]}}]})
    >>> metric.compute(predictions=["[f(x=1)]"], references=[reference])["accuracy"]
    1.0
"""
_CITATION = """
@inproceedings{patil2025bfcl,
  title = {The Berkeley Function Calling Leaderboard (BFCL)},
  author = {Patil, Shishir G. and others},
  booktitle = {ICML},
  year = {2025}
}
"""


def _score(reference: dict[str, Any], text: str) -> Score:
    return score_calls(reference["function"], reference["ground_truth"], text, reference.get("id", ""))


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class BfclAst(evaluate.Metric):
    """One row an answer."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features({"predictions": text, "references": text}),
            reference_urls=["https://gorilla.cs.berkeley.edu/leaderboard.html"],
        )

    def _compute(self, predictions: list[str], references: list[str]) -> dict[str, Any]:
        return accuracy(_score(json.loads(r), p) for p, r in zip(predictions, references, strict=True))
