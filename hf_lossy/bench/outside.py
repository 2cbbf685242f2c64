"""How much of a round is spent outside the models' forwards."""

from __future__ import annotations

from typing import Any

from ..generation import VerificationStats

ROUND = ("draft", "verify", "couple", "cache")
"""The stages of a round; the prefill is none of them."""


def outside_forwards(stats: VerificationStats) -> dict[str, Any]:
    """Share of the rounds' time outside model forwards, and microseconds a round by stage.

    A round here has no prefill in it: the target's is a stage of its own, and the draft's, which is its first forward, is
    taken out of the draft stage. (It drafts the first token as well, so that the share comes out a little too large.)
    Where the statistics do not tell the forwards of the prefills apart (``target_prefill_forward`` and
    ``draft_prefill_forward`` in ``stats.seconds``) the prefill stage counts for the former and the latter stays in.

    The draft's forward at the bonus position happens in the stage ``couple``, so that the outside parts of these two
    stages are known together only.
    """
    seconds, rounds = stats.seconds, len(stats.rounds)
    stages = {stage: seconds[stage] for stage in ROUND}
    draft_prefill = seconds.get("draft_prefill_forward", 0.0)
    stages["draft"] -= draft_prefill
    target = seconds["target_forward"] - seconds.get("target_prefill_forward", seconds["prefill"])
    draft = seconds["draft_forward"] - draft_prefill
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
        "prefill_forwards_known": "target_prefill_forward" in seconds,
    }
