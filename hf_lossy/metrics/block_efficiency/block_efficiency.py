"""Tokens emitted per target forward, and what was accepted, as an ``evaluate`` module."""

from __future__ import annotations

from typing import Any

import datasets
import evaluate

from hf_lossy.generation import Round, RowStats, VerificationStats

_DESCRIPTION = """
Block efficiency of speculative decoding: tokens emitted per forward pass of the target, over all rounds, those that a stop
cut short included. Beside it the mean acceptance length and the acceptance by position.
"""
_KWARGS_DESCRIPTION = """
Args:
    emitted: for each round, the tokens emitted: the accepted ones, and the replaced or bonus token unless a stop came first.
    accepted: for each round, the drafted tokens that were emitted.
    drafted: for each round, the tokens drafted, which are a chain (of a tree, give its depth).
Returns:
    block_efficiency: emitted / rounds.
    mean_acceptance_length: 1 + accepted / rounds that drafted, vLLM's definition; larger than the block efficiency by the
        rounds that a stop cut before their last token, and by those that drafted nothing.
    mean_accepted: accepted / rounds that drafted, without the replaced or bonus token.
    draft_acceptance_rate: accepted / drafted.
    acceptance_rate_per_position: for each position, rounds that kept a token there / rounds that drafted one.
    acceptance_histogram: rounds by how many drafted tokens they kept: [none, one, two, ...].
    rounds: how many.
Examples:
    >>> metric = evaluate.load("hf_lossy/metrics/block_efficiency")
    >>> metric.compute(emitted=[4, 2, 1], accepted=[3, 1, 1], drafted=[3, 3, 3])["block_efficiency"]
    2.3333333333333335
"""
_CITATION = """
@inproceedings{leviathan2023fast,
  title = {Fast Inference from Transformers via Speculative Decoding},
  author = {Leviathan, Yaniv and Kalman, Matan and Matias, Yossi},
  booktitle = {ICML},
  year = {2023},
  note = {arXiv:2211.17192}
}
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class BlockEfficiency(evaluate.Metric):
    """One row a round."""

    def _info(self) -> evaluate.MetricInfo:
        count = datasets.Value("int64")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features({"emitted": count, "accepted": count, "drafted": count}),
            reference_urls=["https://arxiv.org/abs/2211.17192"],
        )

    def _compute(self, emitted: list[int], accepted: list[int], drafted: list[int]) -> dict[str, Any]:
        rounds = [Round(d, a, e) for d, a, e in zip(drafted, accepted, emitted, strict=True)]
        stats = VerificationStats(rows=[RowStats(rounds)])
        histogram = stats.acceptance_histogram
        return {
            "block_efficiency": stats.block_efficiency,
            "mean_acceptance_length": stats.mean_acceptance_length,
            "mean_accepted": stats.mean_acceptance_length - 1,
            "draft_acceptance_rate": stats.draft_acceptance_rate,
            "acceptance_rate_per_position": stats.acceptance_rate_per_position,
            "acceptance_histogram": [histogram.get(kept, 0) for kept in range(max(histogram, default=-1) + 1)],
            "rounds": len(rounds),
        }
