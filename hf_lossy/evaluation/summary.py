"""From an evaluation's lines to a table: score, efficiency, distortion, and the gap to the matched baseline."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from ..bench.estimates import clustered_mean
from .methods import Method
from .run import by_method
from .statistics import mcnemar, paired_bootstrap, wilson


def summary(lines: Sequence[dict[str, Any]], methods: Sequence[Method]) -> list[dict[str, Any]]:
    """One row a method, in the order of ``methods``.

    Every row has ``texts``, ``score`` (share of right answers) with its 95 % Wilson interval, and ``unparsed``; a row of
    speculation also ``block_efficiency``, ``mean_acceptance_length`` (means over rounds, intervals clustered by item),
    mean ``tv`` a token, mean sequence ``kl`` and the largest ``max_log_ratio``. A row with a baseline has the difference of
    the two scores on the same items and seeds (``gap``): a paired bootstrap interval and McNemar's exact p-value, and
    whether it is inside the noise (the interval holds 0).
    """
    grouped = dict(by_method(lines))
    drafting = [method.options for method in methods if method.law is not None]
    common = dict(set.intersection(*(set(options.items()) for options in drafting))) if drafting else {}
    rows = []
    for method in methods:
        mine = grouped.get(method.key)
        if not mine:
            continue
        row = {"method": method.key, "name": method.label(common), **method.to_dict(), **_figures(mine)}
        baseline = method.baseline()
        if baseline is not None and baseline.key in grouped:
            row |= {
                "baseline": baseline.key,
                "baseline_name": baseline.label(common),
                "gap": gap(mine, grouped[baseline.key]),
            }
        rows.append(row)
    return rows


def _figures(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    right, count = sum(line["correct"] for line in lines), len(lines)
    found: dict[str, Any] = {
        "texts": count,
        "score": right / count,
        "score_interval": list(wilson(right, count)),
        "unparsed": sum(not line["parsed"] for line in lines),
        "tokens": sum(line["tokens"] for line in lines),
    }
    drafted = [line for line in lines if "rounds" in line]
    if not drafted:
        return found
    clusters, rounds = [line["item"] for line in drafted], [float(line["rounds"]) for line in drafted]
    tokens = [float(line["tokens"]) for line in drafted]

    def mean(name: str) -> float | None:
        values = [(line[name], line["tokens"]) for line in drafted if line[name] is not None]
        total = sum(weight for _, weight in values)
        return sum(value * weight for value, weight in values) / total if total else None

    return found | {
        "block_efficiency": clustered_mean(tokens, rounds, clusters),
        "mean_acceptance_length": clustered_mean(
            [float(line["accepted"] + line["drafting_rounds"]) for line in drafted],
            [float(line["drafting_rounds"]) for line in drafted],
            clusters,
        ),
        "tv": mean("tv"),
        "acceptance": mean("acceptance"),
        "wasted_distortion": mean("wasted_distortion"),
        "kl": statistics.fmean(line["kl"] for line in drafted),
        "max_log_ratio": max(line["max_log_ratio"] for line in drafted),
    }


def gap(mine: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Score minus the other's score, on the items and seeds that both have."""
    theirs = {(line["item"], line["seed"]): bool(line["correct"]) for line in other}
    both = [(bool(line["correct"]), theirs[key]) for line in mine if (key := (line["item"], line["seed"])) in theirs]
    a, b = [x for x, _ in both], [y for _, y in both]
    low, high = paired_bootstrap(a, b, [line["item"] for line in mine if (line["item"], line["seed"]) in theirs])
    difference = (sum(a) - sum(b)) / len(both)
    return {
        "difference": difference,
        "interval": [low, high],
        "p_value": mcnemar(a, b) if len({line["seed"] for line in mine}) == 1 else None,  # else not independent
        "pairs": len(both),
        "inside_noise": low <= 0 <= high,
    }
