"""Letters of multiple-choice answers, as an ``evaluate`` module."""

from __future__ import annotations

from typing import Any

import datasets
import evaluate

from hf_lossy.evaluation.tasks.scorers.choice import score_choice
from hf_lossy.metrics import accuracy

_DESCRIPTION = """
Accuracy of multiple-choice answers: the letter A, B, C or D that a text announces last. Where there is none, nothing is
guessed.
"""
_KWARGS_DESCRIPTION = """
Args:
    predictions: the texts that the model wrote.
    references: the right letters.
Returns:
    accuracy: the share of right answers.
    interval: its 95 % Wilson interval.
    unparsed: answers that could not be read; they count as wrong.
    correct: for each answer, whether it is right.
Examples:
    >>> metric = evaluate.load("hf_lossy/metrics/choice_letter")
    >>> metric.compute(predictions=["Answer: B"], references=["B"])["accuracy"]
    1.0
"""
_CITATION = """
@misc{romanou2024include,
  title = {INCLUDE: Evaluating Multilingual Language Understanding with Regional Knowledge},
  author = {Romanou, Angelika and others},
  year = {2024},
  note = {arXiv:2411.19799}
}
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class ChoiceLetter(evaluate.Metric):
    """One row an answer."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features({"predictions": text, "references": text}),
            reference_urls=["https://arxiv.org/abs/2411.19799"],
        )

    def _compute(self, predictions: list[str], references: list[str]) -> dict[str, Any]:
        return accuracy(score_choice(r, p) for p, r in zip(predictions, references, strict=True))
