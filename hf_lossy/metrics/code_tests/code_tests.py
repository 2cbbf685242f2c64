"""Code that passes its tests, as an ``evaluate`` module."""

from __future__ import annotations

from typing import Any

import datasets
import evaluate

from hf_lossy.evaluation.tasks import Score
from hf_lossy.evaluation.tasks.scorers.code import score_code
from hf_lossy.metrics import accuracy

_DESCRIPTION = """
Share of answers whose Python code passes its tests. The code of the text's ```python blocks is run with the tests behind it
in a process of its own, with limits of time, memory and output, without network, in a temporary directory. This protects
against the mistakes of models, not against code that means harm.
"""
_KWARGS_DESCRIPTION = r"""
Args:
    predictions: the texts that the model wrote.
    references: the tests, as Python that is run after the code.
Returns:
    accuracy: the share of right answers.
    interval: its 95 % Wilson interval.
    unparsed: answers that could not be read; they count as wrong.
    correct: for each answer, whether it is right.
Examples:
    >>> metric = evaluate.load("hf_lossy/metrics/code_tests")
    >>> metric.compute(predictions=["```python\ndef one(): return 1\n```"], references=["assert one() == 1"])["accuracy"]
    1.0
"""
_CITATION = """
@misc{chen2021evaluating,
  title = {Evaluating Large Language Models Trained on Code},
  author = {Chen, Mark and others},
  year = {2021},
  note = {arXiv:2107.03374}
}
"""


def _score(tests: str, text: str) -> Score:
    return score_code(text, lambda code: f"{code}\n{tests}\n")


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class CodeTests(evaluate.Metric):
    """One row an answer."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features({"predictions": text, "references": text}),
            reference_urls=["https://arxiv.org/abs/2107.03374"],
        )

    def _compute(self, predictions: list[str], references: list[str]) -> dict[str, Any]:
        return accuracy(_score(tests, text) for text, tests in zip(predictions, references, strict=True))
