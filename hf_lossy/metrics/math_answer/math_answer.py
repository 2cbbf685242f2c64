"""Mathematical answers, as an ``evaluate`` module."""

from __future__ import annotations

from typing import Any

import datasets
import evaluate

from hf_lossy.evaluation.tasks.scorers.math_answer import score_math
from hf_lossy.metrics import accuracy

_DESCRIPTION = r"""
Accuracy of mathematical answers: the last \boxed{} of a text, or what it announces as its answer, compared with the right
one by `math-verify`, the right one read first. A number that merely stands in the text is no answer.
"""
_KWARGS_DESCRIPTION = r"""
Args:
    predictions: the texts that the model wrote.
    references: the right answers in LaTeX, without dollars.
Returns:
    accuracy: the share of right answers.
    interval: its 95 % Wilson interval.
    unparsed: answers that could not be read; they count as wrong.
    correct: for each answer, whether it is right.
Examples:
    >>> metric = evaluate.load("hf_lossy/metrics/math_answer")
    >>> metric.compute(predictions=["so it is \\boxed{\\frac{1}{2}}"], references=["0.5"])["accuracy"]
    1.0
"""
_CITATION = r"""
@misc{mathverify,
  title = {Math-Verify: a library for verifying mathematical answers},
  author = {Kydl{\'i}{\v c}ek, Hynek},
  url = {https://github.com/huggingface/Math-Verify}
}
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class MathAnswer(evaluate.Metric):
    """One row an answer."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features({"predictions": text, "references": text}),
            reference_urls=["https://github.com/huggingface/Math-Verify"],
        )

    def _compute(self, predictions: list[str], references: list[str]) -> dict[str, Any]:
        return accuracy(score_math(r, p) for p, r in zip(predictions, references, strict=True))
