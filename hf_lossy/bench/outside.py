"""How much of a round is spent outside the models' forwards."""

from __future__ import annotations

from typing import Any

from ..generation import VerificationStats

ROUND = ("draft", "verify", "couple", "cache")
"""The stages of a round after the first."""


def outside_forwards(stats: VerificationStats) -> dict[str, Any]:
    """Share of the rounds' time outside model forwards, and microseconds a round by stage.

    Each sequence's first round reads the prompt and is left out. The draft's forward at the bonus position happens in the
    stage ``couple``, so that the outside parts of ``draft`` and ``couple`` are known together only.
    """
    seconds = stats.seconds
    rounds = len(stats.rounds) - len(stats.rows)
    stages = {stage: seconds[stage] for stage in ROUND}
    target, draft = seconds["target_forward"], seconds["draft_forward"]
    outside = {
        "draft_and_couple": stages["draft"] + stages["couple"] - draft,
        "verify": stages["verify"] - target,
        "cache": stages["cache"],
    }
    total = sum(stages.values())

    def each(parts: dict[str, float]) -> dict[str, float]:
        return {name: 1e6 * value / rounds if rounds else float("nan") for name, value in parts.items()}

    return {
        "share": sum(outside.values()) / total if total else float("nan"),
        "rounds": rounds,
        "microseconds_per_round": each(
            {"round": total, "target_forward": target, "draft_forward": draft, "outside": sum(outside.values())}
        ),
        "stage_microseconds_per_round": each(stages),
        "outside_microseconds_per_round": each(outside),
    }
