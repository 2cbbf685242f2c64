"""The time of one coupling, in units of two float32 softmaxes over tensors of the same shapes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..drafting import Proposal
from ..generation.loop import Run, match
from ..laws import Law
from ..numerics import sample
from ..timing import timed
from .cases import AnyCoupling, cases
from .estimates import Track, rotated, spread, untracked

VOCABULARY, GAMMA = 151_936, 7
ROUNDS = 8


class Case(NamedTuple):
    """A round: raw scores of both models, their softmaxes, and the drafted tokens."""

    target_scores: Float[Tensor, "1 drafted_1 vocab"]
    draft_scores: Float[Tensor, "1 drafted vocab"]
    p: Float[Tensor, "1 drafted_1 vocab"]
    q: Float[Tensor, "1 drafted vocab"]
    q_bonus: Float[Tensor, "1 vocab"]
    drafted: Int[Tensor, "1 drafted"]


def peaked(vocabulary: int, gamma: int, seed: int, device: torch.device) -> Case:
    """A round with distributions as language models have them: from nearly certain to a long tail (probability ∝
    rank^−α, α from 1.2 to 4, tokens in random order), a draft that is off by normal noise, tokens drawn from it."""
    generator = torch.Generator().manual_seed(seed)
    decay = 1.2 + 2.8 * torch.rand(gamma + 1, 1, generator=generator)
    ranks = torch.stack([torch.randperm(vocabulary, generator=generator) for _ in range(gamma + 1)])
    target = -decay * (ranks + 1).log()
    draft = target + 0.7 * torch.randn(gamma + 1, vocabulary, generator=generator)
    target, draft = target.to(device)[None], draft.to(device)[None]
    q = draft.softmax(-1)
    drafted = sample(q[:, :gamma], torch.rand(1, gamma, generator=generator).to(device))
    scores = draft[:, :gamma].contiguous()
    return Case(target, scores, target.softmax(-1), q[:, :gamma].contiguous(), q[:, gamma].contiguous(), drafted)


def round_of(law: Law, kind: type[AnyCoupling], case: Case, generator: torch.Generator) -> Callable[[], list[int]]:
    """One call of the loop's own ``match``, as in a round of ``generate``: induced law, acceptance, accepted count,
    residual and replacement, or the bonus token of the induced law; the draft's forward at the bonus position is not in
    it. Returns the accepted counts."""
    device = case.p.device

    def coins(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator).to(device)

    draft = SimpleNamespace(
        next_probs=lambda tokens, lengths, nodes: case.q_bonus,
        samples=True,
        num_assistant_tokens=case.drafted.shape[1],
        without_q=lambda: set(),
    )
    run = SimpleNamespace(
        law=law,
        coupling=kind,
        coins=coins,
        draft=draft,
        tokens=case.drafted,
        lengths=[0],
        sampled=True,
        induced_bonus=True,
        point_mass=False,
        accounting=False,
        stops=SimpleNamespace(eos=set()),
    )
    proposal = Proposal.chain(case.drafted, case.q)
    return lambda: [len(path) - 1 for path in match(cast(Run, run), proposal, case.p, case.p).paths]


def two_softmaxes(case: Case) -> None:
    """The unit: p and q from scores."""
    case.target_scores.softmax(-1)
    case.draft_scores.softmax(-1)


def copied(case: Case) -> None:
    """What moving the bytes of p and q costs."""
    case.p.clone()
    case.q.clone()


@torch.no_grad()
def measure_coupling(
    repeats: int = 160,
    vocabulary: int = VOCABULARY,
    gamma: int = GAMMA,
    device: str = "cpu",
    seed: int = 0,
    track: Track = untracked,
) -> dict[str, Any]:
    """Time one coupling of every law and kind on the same rounds, in rotating order, the unit among them.

    Returns:
        ``settings``; ``two_softmaxes``: seconds; ``copy``: seconds of a copy of p and q on the device; ``couplings``: for
        each law and coupling the ratio to the unit (median and quartiles over the repeats), seconds, mean accepted tokens,
        and the memory that one call needs at its peak, in units of p and q together.
    """
    where = torch.device(device)
    rounds = [peaked(vocabulary, gamma, seed + i, where) for i in range(ROUNDS)]
    found = list(cases())
    generator = torch.Generator().manual_seed(seed)
    seconds: list[list[float]] = [[] for _ in range(len(found) + 2)]
    accepted: list[list[int]] = [[] for _ in found]

    for repeat in track(range(-1, repeats), f"one coupling at V = {vocabulary:,}"):
        case = rounds[repeat % ROUNDS]
        calls = [round_of(law, kind, case, generator) for law, kind in found]
        for i in rotated(range(len(found) + 2), repeat):
            if i >= len(found):
                _, took = timed(partial((copied, two_softmaxes)[i - len(found)], case), where)
            else:
                kept, took = timed(calls[i], where)
            if repeat >= 0:  # the first is a warm-up
                seconds[i].append(took)
                if i < len(found):
                    accepted[i] += kept
    size = (2 * gamma + 1) * vocabulary * 4
    couplings = [
        {
            "law": str(law),
            "coupling": kind.name,
            "softmax_pairs": spread([a / b for a, b in zip(seconds[i], seconds[-1], strict=True)]),
            "seconds": spread(seconds[i]),
            "mean_accepted": sum(accepted[i]) / len(accepted[i]),
            "peak_memory": peak_bytes(round_of(law, kind, rounds[0], generator), where) / size,
        }
        for i, (law, kind) in enumerate(found)
    ]
    return {
        "settings": {
            "vocabulary": vocabulary,
            "gamma": gamma,
            "repeats": repeats,
            "rounds": ROUNDS,
            "dtype": "float32",
            "device": device,
            "seed": seed,
        },
        "two_softmaxes": spread(seconds[-1]),
        "copy": spread(seconds[-2]),
        "bytes_of_p_and_q": size,
        "couplings": couplings,
    }


def peak_bytes(call: Callable[[], Any], device: torch.device) -> int:
    """The most memory that a call holds at once beside what was there before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return int(torch.cuda.max_memory_allocated(device) - before)
    with (
        _quiet(),
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile,
    ):
        call()
    held = peak = 0
    for event in sorted(profile.events(), key=lambda e: e.time_range.end):
        held += event.self_cpu_memory_usage
        peak = max(peak, held)
    return peak


@contextmanager
def _quiet() -> Iterator[None]:
    """Send what the process writes to stderr nowhere: torch's profiler reports its starts and stops there, from C++."""
    before, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)
