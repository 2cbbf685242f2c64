"""The difference of two methods' scores on the same items, as an ``evaluate`` module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from hf_lossy.evaluation.statistics import mcnemar, paired_bootstrap

_DESCRIPTION = """
Paired gap: the difference of two methods' mean scores on the same items, with a paired bootstrap interval and, for scores of
right and wrong, McNemar's exact p-value. What makes an item hard for both methods cancels.
"""
_KWARGS_DESCRIPTION = """
Args:
    predictions: one method's score on each item, 1 and 0 for right and wrong.
    references: the other method's (the baseline's) score on the same items, in the same order.
    items: which item each score belongs to, where one has several (seeds); these are drawn together. Then p is too small.
    draws, seed: of the bootstrap, 1000 and 0.
Returns:
    gap: mean of predictions − mean of references.
    interval: its 95 % interval.
    p_value: McNemar's, two-sided; None where scores other than 0 and 1 occur.
    gained, lost: items on which the first method scored higher, and lower.
    items: how many pairs.
Examples:
    >>> metric = evaluate.load("hf_lossy/metrics/paired_gap")
    >>> metric.compute(predictions=[1, 1, 1, 0], references=[1, 0, 0, 0])["gap"]
    0.5
"""
_CITATION = """
@article{mcnemar1947note,
  title = {Note on the sampling error of the difference between correlated proportions or percentages},
  author = {McNemar, Quinn},
  journal = {Psychometrika},
  year = {1947},
  doi = {10.1007/BF02295996}
}
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class PairedGap(evaluate.Metric):
    """One row an item."""

    def _info(self) -> evaluate.MetricInfo:
        score = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features({"predictions": score, "references": score}),
            reference_urls=["https://doi.org/10.1007/BF02295996"],
        )

    def _compute(
        self,
        predictions: Sequence[float],
        references: Sequence[float],
        items: Sequence[str] | None = None,
        draws: int = 1000,
        seed: int = 0,
    ) -> dict[str, Any]:
        a, b = list(predictions), list(references)
        marks = all(score in (0, 1) for score in a + b)
        return {
            "gap": (sum(a) - sum(b)) / len(a),
            "interval": list(paired_bootstrap(a, b, items, draws, seed)),
            "p_value": mcnemar(a, b) if marks else None,
            "gained": sum(x > y for x, y in zip(a, b, strict=True)),
            "lost": sum(x < y for x, y in zip(a, b, strict=True)),
            "items": len(a),
        }
