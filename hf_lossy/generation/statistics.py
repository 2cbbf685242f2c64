"""What a call of ``generate`` did: per round, per emitted token, and in total."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..accounting import Accounting

Source = Literal["accepted", "replaced", "bonus"]
STAGES = ("prefill", "draft", "verify", "couple", "cache")


@dataclass(slots=True)
class Round:
    """One draft-and-verify round of one row, cut at the stop.

    Attributes:
        drafted: tokens proposed.
        accepted: proposed tokens that were emitted.
        emitted: all tokens emitted, ``accepted`` plus the replaced or bonus token unless the stop came before it.
        stop: why generation ended in this round (``"eos"``, ``"length"``, or the class of the stopping criterion), else
            None.
        depth: the longest path of a tree; None: a chain.
    """

    drafted: int
    accepted: int
    emitted: int
    stop: str | None = None
    depth: int | None = None

    @property
    def levels(self) -> int:
        """How many proposed tokens can be accepted at most."""
        return self.drafted if self.depth is None else self.depth


@dataclass(slots=True)
class RowStats:
    """One sequence of the batch: its rounds, and for each emitted token where it came from."""

    rounds: list[Round] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    _accounting: list[torch.Tensor] = field(default_factory=list)

    def add_accounting(self, figures: Float[Tensor, "emitted fields"]) -> None:
        """Keep one round's figures, the fields of :class:`hf_lossy.accounting.Accounting` for each emitted token; they stay
        on the device until they are asked for."""
        self._accounting.append(figures)

    @property
    def accounting(self) -> dict[str, list[float]] | None:
        """Per emitted token: tv, kl, max_log_ratio, acceptance, wasted_distortion; None unless it was asked for."""
        if not self._accounting:
            return None
        table = torch.cat(self._accounting).cpu().double()
        return {name: table[:, i].tolist() for i, name in enumerate(Accounting._fields)}


@dataclass
class VerificationStats:
    """The statistics of one or more calls of ``generate``; as a collector it adds up what it is passed to.

    Attributes:
        settings: law, coupling, bonus and the rest as they were used in the (last) call.
        rows: one entry a generated sequence.
        target_forwards: forwards of the target that verified a block; the first one reads the prompt as well.
        draft_forwards: forwards of the draft.
        seconds: wall-clock time by stage: ``prefill`` is each sequence's first round, which reads the prompt; ``draft``,
            ``verify``, ``couple`` and ``cache`` are those of the later rounds, and ``target_forward`` and
            ``draft_forward`` the time of these rounds inside the models' forwards (``prefill_target_forward`` and
            ``prefill_draft_forward``: the same of the first rounds). On an accelerator work is asynchronous, so that a
            stage's time is what the host waited.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    rows: list[RowStats] = field(default_factory=list)
    target_forwards: int = 0
    draft_forwards: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))

    def add_forwards(self, prefill: tuple[float, float], total: tuple[float, float]) -> None:
        """Book the seconds inside the target's and the draft's forwards: up to the first round's end, and in total."""
        for name, first, both in zip(("target_forward", "draft_forward"), prefill, total, strict=True):
            self.seconds[f"prefill_{name}"] = first
            self.seconds[name] = both - first

    def first_round(self, stage: str) -> AbstractContextManager[None]:
        """As :meth:`timed`, for the round that reads the prompt."""
        return self.timed("prefill")

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of a block to a stage."""
        began = time.perf_counter()
        yield
        self.seconds[stage] += time.perf_counter() - began

    def add(self, other: VerificationStats) -> None:
        """Add another call's statistics to these."""
        self.settings = other.settings
        self.rows += other.rows
        self.target_forwards += other.target_forwards
        self.draft_forwards += other.draft_forwards
        for stage, seconds in other.seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    # --- totals --------------------------------------------------------------------------------------------------

    @property
    def rounds(self) -> list[Round]:
        """All rounds of all rows."""
        return [r for row in self.rows for r in row.rounds]

    @property
    def emitted(self) -> int:
        """Tokens emitted."""
        return sum(r.emitted for r in self.rounds)

    @property
    def drafted(self) -> int:
        """Tokens drafted."""
        return sum(r.drafted for r in self.rounds)

    @property
    def accepted(self) -> int:
        """Drafted tokens that were emitted."""
        return sum(r.accepted for r in self.rounds)

    @property
    def block_efficiency(self) -> float:
        """Emitted tokens / rounds of all rows, each a target forward (that a batch shares), the EOS-truncated ones included
        (chunks of a prompt that was fed before the first round are not counted)."""
        return _ratio(self.emitted, len(self.rounds))

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / rounds that drafted: drafted tokens kept plus the replaced or bonus token (vLLM's definition).

        Larger than the block efficiency by the rounds that a stop cut before that last token, and by those that drafted
        nothing (an EAGLE-3 head's first, and a last one without room)."""
        return 1 + _ratio(self.accepted, sum(r.drafted > 0 for r in self.rounds))

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted / drafted tokens."""
        return _ratio(self.accepted, self.drafted)

    @property
    def acceptance_histogram(self) -> dict[int, int]:
        """Number of rounds by how many drafted tokens they kept."""
        return dict(sorted(Counter(r.accepted for r in self.rounds).items()))

    @property
    def acceptance_rate_per_position(self) -> list[float]:
        """For each position of the draft (level of a tree): rounds that kept a token there / rounds that drafted one."""
        depths = [r.levels for r in self.rounds]
        return [
            _ratio(sum(r.accepted > i for r in self.rounds), sum(depth > i for depth in depths))
            for i in range(max(depths, default=0))
        ]

    @property
    def plain_rounds(self) -> int:
        """Rounds that drafted nothing: without room for it, before a head has something to go by, where a lookup found
        nothing, and where the schedule ``"expected"`` found that drafting does not pay."""
        return sum(r.drafted == 0 for r in self.rounds)

    @property
    def accounting(self) -> dict[str, float] | None:
        """Over all emitted tokens: mean ``tv``, ``acceptance`` and ``wasted_distortion`` (over positions that have a q),
        the largest ``max_log_ratio``, and ``kl`` summed over each sequence, averaged over sequences."""
        rows = [row.accounting for row in self.rows]
        tables = [table for table in rows if table is not None]
        if not tables:
            return None
        flat = {name: [x for t in tables for x in t[name]] for name in Accounting._fields}
        totals = {name: _mean([x for x in flat[name] if x == x]) for name in ("tv", "acceptance", "wasted_distortion")}
        return {
            **totals,
            "kl": sum(flat["kl"]) / len(tables),
            "max_log_ratio": max(flat["max_log_ratio"], default=float("nan")),
        }

    def summary(self) -> dict[str, Any]:
        """Everything above as plain numbers, for JSON."""
        return {
            **self.settings,
            "sequences": len(self.rows),
            "rounds": len(self.rounds),
            "plain_rounds": self.plain_rounds,
            "emitted": self.emitted,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "target_forwards": self.target_forwards,
            "draft_forwards": self.draft_forwards,
            "block_efficiency": self.block_efficiency,
            "mean_acceptance_length": self.mean_acceptance_length,
            "draft_acceptance_rate": self.draft_acceptance_rate,
            "acceptance_histogram": self.acceptance_histogram,
            "acceptance_rate_per_position": self.acceptance_rate_per_position,
            "seconds": dict(self.seconds),
            "accounting": self.accounting,
        }


def _ratio(a: float, b: float) -> float:
    return a / b if b else float("nan")


def _mean(values: list[float]) -> float:
    return _ratio(sum(values), len(values))
