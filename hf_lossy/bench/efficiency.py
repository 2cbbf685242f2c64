"""Tokens a round of the block, token and reference couplings at equal law: exactly from recorded rounds, and as counted.

The exact way needs neither ``generate`` nor coins: given p, q and the drafted block of a recorded round, the expected number
of emitted tokens is a formula. All laws and couplings see the same rounds, so that their differences are sharp.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..couplings import BlockCoupling
from ..generation import VerificationStats, generate
from ..loading import Pair
from .cases import AnyCoupling, cases
from .estimates import Track, clustered_mean, untracked
from .rounds import record, spread_out, write_texts
from .throughput import SAMPLED, draft_length, setting


def survival(verification: AnyCoupling) -> Float[Tensor, "batch drafted"]:
    """P(at least j drafted tokens are accepted | the drafted block), j = 1 … G.

    Token and reference coupling stop at the first refusal: Π_{i≤j} h_i. Block verification takes the largest i with
    u_i < h_i: 1 − Π_{i≥j} (1 − h_i).
    """
    h = verification.acceptance()
    if isinstance(verification, BlockCoupling):
        return 1 - (1 - h).flip(1).cumprod(1).flip(1)
    return h.cumprod(1)


def expected_tokens(
    verification: AnyCoupling, stops: Bool[Tensor, "batch drafted"] | None = None
) -> Float[Tensor, "batch"]:
    """E[emitted tokens | the drafted block] = 1 + Σ_j P(at least j are accepted).

    Args:
        verification: a round: law, p, q and the drafted tokens.
        stops: drafted tokens that end the text; nothing after the first of them is emitted.
    """
    reached = survival(verification)
    if stops is not None:
        reached = reached * (~stops).long().cumprod(1)
    return 1 + reached.sum(1)


def measure_efficiency(
    pair: Pair, rounds: int, sequences: int, max_new_tokens: int, seed: int = 0, track: Track = untracked
) -> dict[str, Any]:
    """Expected tokens a round from about ``rounds`` recorded rounds, and block efficiency counted over ``sequences`` calls
    of ``generate`` for each law and coupling."""
    if pair.draft is None:
        return {"left_out": "prompt lookup has no q and one coupling only"}
    if pair.head is not None:
        return {"left_out": "the trees and chains of an EAGLE-3 head have one coupling only; see the part trees"}
    return {
        "settings": setting(
            pair,
            seed,
            num_assistant_tokens=draft_length(pair),
            max_new_tokens=max_new_tokens,
            sampled=SAMPLED,
        ),
        "expected": expected_efficiency(pair, rounds, max_new_tokens, seed, track),
        "counted": counted_efficiency(pair, sequences, max_new_tokens, seed, track),
    }


def expected_efficiency(pair: Pair, rounds: int, max_new_tokens: int, seed: int, track: Track) -> dict[str, Any]:
    """The exact way, over prefixes spread evenly over texts that the target wrote."""
    generator = torch.Generator().manual_seed(seed)
    texts = write_texts(pair, max(1, -(-rounds // 16)), max_new_tokens, SAMPLED["temperature"], seed, track)
    of_text = spread_out(texts, rounds)
    found: dict[str, dict[str, list[float]]] = {}
    clusters: list[int] = []
    for i, lengths in track(of_text, f"{pair.name}: expected tokens a round"):
        for seen in record(pair, texts[i].ids, lengths, generator, num_assistant_tokens=draft_length(pair)):
            clusters.append(i)
            for law, kind in cases():
                expected = expected_tokens(seen.verified(kind, law), seen.stops)
                found.setdefault(str(law), {}).setdefault(kind.name, []).append(float(expected))
    ones = [1.0] * len(clusters)
    return {
        "rounds": len(clusters),
        "texts": len(of_text),
        "laws": {
            law: {
                **{name: clustered_mean(values, ones, clusters) for name, values in kinds.items()},
                **{
                    f"block minus {name}": clustered_mean(
                        [b - v for b, v in zip(kinds["block"], values, strict=True)], ones, clusters
                    )
                    for name, values in kinds.items()
                    if name != "block"
                },
            }
            for law, kinds in found.items()
        },
    }


def counted_efficiency(pair: Pair, sequences: int, max_new_tokens: int, seed: int, track: Track) -> dict[str, Any]:
    """Emitted tokens / target forwards over calls of ``generate``, rounds that a stop cut included."""
    found: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    which = [i % len(pair.prompts) for i in range(sequences)]
    arguments = {**pair.drafting(), **SAMPLED, "max_new_tokens": max_new_tokens}
    for k, i in enumerate(track(which, f"{pair.name}: tokens a round in generate()")):
        inputs = pair.inputs(pair.prompts[i])
        for law, kind in cases():
            generator = torch.Generator(pair.target.device).manual_seed(seed + k)
            stats = VerificationStats()
            how = {"verification": law, "coupling": kind.name, "generator": generator, "verification_stats": stats}
            generate(pair.target, **inputs, **arguments, **how)
            emitted, rounds = found.setdefault(str(law), {}).setdefault(kind.name, ([], []))
            emitted.append(stats.emitted)
            rounds.append(len(stats.rounds))
    return {
        "sequences": sequences,
        "bonus": "induced",
        "laws": {
            law: {
                name: {**clustered_mean(emitted, rounds, which), "rounds": int(sum(rounds))}
                for name, (emitted, rounds) in kinds.items()
            }
            for law, kinds in found.items()
        },
    }
