"""How far the emitted distribution is from the target's, as an ``evaluate`` module."""

from __future__ import annotations

from typing import Any

import datasets
import evaluate
import torch

from hf_lossy.accounting import Accounting
from hf_lossy.generation import RowStats, VerificationStats

_DESCRIPTION = """
Distortion of lossy verification: how far the distribution π that was emitted is from the target's p, from the figures of
each emitted token (`accounting=True` in `hf_lossy.generate`).
"""
_KWARGS_DESCRIPTION = """
Args:
    tv: for each sequence, TV(π, p) at each emitted token, in [0, 1].
    kl: for each sequence, KL(π‖p) at each emitted token, in nats.
    max_log_ratio: for each sequence, max log(π/p) at each emitted token, in nats.
Returns:
    mean_tv: mean over all tokens.
    sequence_kl: KL summed over a sequence, averaged over sequences, in nats: an unbiased estimate of the sequence-level
        KL(Π‖P), since the emitted tokens follow π exactly.
    max_log_ratio: the largest of all, in nats: the overshoot. Infinite where something was emitted that the target excludes.
    sequences, tokens: how many.
Examples:
    >>> metric = evaluate.load("hf_lossy/metrics/distortion")
    >>> metric.compute(tv=[[0.0, 0.2]], kl=[[0.0, 0.1]], max_log_ratio=[[0.0, 0.5]])["sequence_kl"]
    0.1
"""
_CITATION = """
@misc{revisiting2026lossy,
  title = {Revisiting Lossy Verification in Speculative Decoding},
  year = {2026},
  note = {arXiv:2607.26627}
}
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class Distortion(evaluate.Metric):
    """One row a sequence."""

    def _info(self) -> evaluate.MetricInfo:
        figures = [datasets.Value("float64")]
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features({"tv": figures, "kl": figures, "max_log_ratio": figures}),
            reference_urls=["https://arxiv.org/abs/2607.26627"],
        )

    def _compute(
        self, tv: list[list[float]], kl: list[list[float]], max_log_ratio: list[list[float]]
    ) -> dict[str, Any]:
        stats = VerificationStats()
        for figures in zip(tv, kl, max_log_ratio, strict=True):
            row = RowStats()
            one, two, three = (torch.tensor(figure, dtype=torch.float64) for figure in figures)
            unknown = torch.full_like(one, torch.nan)  # acceptance and waste are not asked about
            row.add_accounting(torch.stack(Accounting(one, two, three, unknown, unknown), -1))
            stats.rows.append(row)
        totals = stats.accounting or {}
        return {
            "mean_tv": totals.get("tv"),
            "sequence_kl": totals.get("kl"),
            "max_log_ratio": totals.get("max_log_ratio"),
            "sequences": len(tv),
            "tokens": sum(map(len, tv)),
        }
