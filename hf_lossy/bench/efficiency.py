"""Tokens a round of the block, token and reference couplings at equal law: exactly from recorded rounds, and as counted.

The exact way needs neither ``generate`` nor coins. The target writes a text; at many of its prefixes the draft proposes γ
tokens and the target looks at them once; given p, q and the drafted block, the expected number of emitted tokens is a
formula. All laws and couplings see the same rounds, so that their differences are sharp.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..cached_model import CachedModel
from ..compat import default_cache
from ..couplings import BlockCoupling
from ..generation import VerificationStats, generate
from ..loading import Pair
from ..numerics import sample
from .cases import AnyCoupling, cases
from .estimates import Track, clustered_mean, untracked
from .throughput import SAMPLED, draft_length


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


class Recorded(NamedTuple):
    """One round: p and q at the drafted positions, the drafted tokens, and which of them end the text."""

    p: Float[Tensor, "1 drafted vocab"]
    q: Float[Tensor, "1 drafted vocab"]
    drafted: Int[Tensor, "1 drafted"]
    stops: Bool[Tensor, "1 drafted"]


@torch.no_grad()
def record(
    pair: Pair, text: Int[Tensor, "1 length"], lengths: list[int], gamma: int, generator: torch.Generator
) -> Iterator[Recorded]:
    """A round at each of some prefixes of a text, given by their lengths in ascending order; temperature 1, no warpers."""
    assert pair.draft is not None
    target = CachedModel(pair.target, default_cache(pair.target), "target")
    draft = CachedModel(pair.draft, default_cache(pair.draft), "draft")
    vocabulary = min(m.config.get_text_config(decoder=True).vocab_size for m in (pair.target, pair.draft))
    device, ends = pair.target.device, eos(pair)
    for length in lengths:
        tokens, q = text[:, :length], []
        for _ in range(gamma):
            logits = draft(tokens[:, draft.held[0] :]).logits[:, -1, :vocabulary]
            q.append(logits.double().softmax(-1).to(device))
            tokens = torch.cat([tokens, sample(q[-1], torch.rand(1, generator=generator).to(device))[:, None]], 1)
        logits = target(tokens[:, target.held[0] :], logits=gamma + 1).logits[:, -gamma - 1 : -1, :vocabulary]
        drafted = tokens[:, length:]
        stops = torch.isin(drafted, ends.to(device))
        yield Recorded(logits.double().softmax(-1), torch.stack(q, 1), drafted, stops)
        for model in (target, draft):
            model.crop([length - 1])


def eos(pair: Pair) -> Int[Tensor, "ids"]:
    """The tokens that end a text."""
    ids = pair.target.generation_config.eos_token_id
    return torch.tensor([] if ids is None else [ids] if isinstance(ids, int) else ids, dtype=torch.long)


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
        "settings": {
            "num_assistant_tokens": draft_length(pair),
            "max_new_tokens": max_new_tokens,
            "sampled": SAMPLED,
            "dtype": str(pair.target.dtype).removeprefix("torch."),
            "device": str(pair.target.device),
            "seed": seed,
        },
        "expected": expected_efficiency(pair, rounds, max_new_tokens, seed, track),
        "counted": counted_efficiency(pair, sequences, max_new_tokens, seed, track),
    }


def expected_efficiency(pair: Pair, rounds: int, max_new_tokens: int, seed: int, track: Track) -> dict[str, Any]:
    """The exact way, over prefixes spread evenly over texts that the target wrote."""
    gamma, generator = draft_length(pair), torch.Generator().manual_seed(seed)
    prompts = pair.prompts[: max(1, -(-rounds // 16))]
    devices = [pair.target.device] if pair.target.device.type == "cuda" else []
    texts, positions = [], []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        for i, prompt in enumerate(track(prompts, f"{pair.name}: the target writes")):
            inputs = pair.inputs(prompt)
            texts.append(pair.target.generate(**inputs, **SAMPLED, max_new_tokens=max_new_tokens))
            positions += [(i, length) for length in range(inputs["input_ids"].shape[1], texts[-1].shape[1])]
    step = max(1.0, len(positions) / rounds)
    chosen = [positions[int(k * step)] for k in range(min(rounds, len(positions)))]
    of_text = [(i, [length for _, length in group]) for i, group in itertools.groupby(chosen, key=lambda c: c[0])]
    found: dict[str, dict[str, list[float]]] = {}
    clusters: list[int] = []
    for i, lengths in track(of_text, f"{pair.name}: expected tokens a round"):
        for p, q, drafted, stops in record(pair, texts[i], lengths, gamma, generator):
            clusters.append(i)
            for law, kind in cases():
                expected = expected_tokens(kind(law, p, q, drafted), stops)
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
