"""Rounds as they come in ``generate``, recorded before any coin is thrown.

The target writes texts; at many of their prefixes the draft proposes once, and the target looks at the candidates once. All
laws and couplings can then be computed on the same p, q and candidates, so that their differences are sharp.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessorList,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
)

from ..compat import CACHE_NAME, default_cache
from ..couplings import Coupling
from ..errors import LossyError
from ..generation.api import prepare
from ..generation.loop import Run, propose, verify
from ..generation.options import NAMES, Options
from ..laws import Law
from ..loading import Pair
from ..tree import Tree
from .estimates import Track
from .throughput import SAMPLED

AHEAD = 64
"""Tokens that a draft may be deep at the end of a text."""
K = TypeVar("K", bound=Coupling)


class Text(NamedTuple):
    """What the target wrote: the whole sequence, and how many of its tokens are the prompt."""

    ids: Int[Tensor, "1 length"]
    prompt: int


class Recorded(NamedTuple):
    """One round; or several of them whose chains have the same length, one a row.

    Attributes:
        tree: the candidates, N of them; a chain is a tree of width one.
        p: the target's distribution after the prefix and after each candidate, in double.
        q: the draft's, in double: those that the candidates of a chain come from; of a tree those at its nodes, the root
            first, NaN where a node has no candidates.
        stops: which candidates end the text.
    """

    tree: Tree
    p: Float[Tensor, "batch nodes_1 vocab"]
    q: Float[Tensor, "batch drafted vocab"]
    stops: Bool[Tensor, "batch nodes"]

    def verified(self, kind: type[K], law: Law) -> K:
        """The verification of a chain."""
        drafted = self.tree.tokens
        return kind(law, self.p[:, : drafted.shape[1]], self.q, drafted)


def eos(pair: Pair) -> Int[Tensor, "ids"]:
    """The tokens that end a text."""
    ids = pair.target.generation_config.eos_token_id
    return torch.tensor([] if ids is None else [ids] if isinstance(ids, int) else ids, dtype=torch.long)


def write_texts(pair: Pair, count: int, max_new_tokens: int, temperature: float, seed: int, track: Track) -> list[Text]:
    """What the target alone writes after the first ``count`` prompts; the global generator is left as it was."""
    devices = [pair.target.device] if pair.target.device.type == "cuda" else []
    arguments = {**SAMPLED, "temperature": temperature, "max_new_tokens": max_new_tokens}
    texts = []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        for prompt in track(pair.prompts[:count], f"{pair.name}: the target writes"):
            inputs = pair.inputs(prompt)
            texts.append(Text(pair.target.generate(**inputs, **arguments), inputs["input_ids"].shape[1]))
    return texts


def spread_out(texts: Sequence[Text], rounds: int) -> list[tuple[int, list[int]]]:
    """Evenly spread prefixes, at most ``rounds``: for each text that has any its index and their lengths, ascending."""
    positions = [(i, length) for i, text in enumerate(texts) for length in range(text.prompt, text.ids.shape[1])]
    step = max(1.0, len(positions) / rounds)
    chosen = [positions[int(k * step)] for k in range(min(rounds, len(positions)))]
    return [(i, [length for _, length in group]) for i, group in itertools.groupby(chosen, key=lambda c: c[0])]


@torch.no_grad()
def record(
    pair: Pair,
    text: Int[Tensor, "1 length"],
    lengths: Sequence[int],
    generator: torch.Generator,
    temperature: float = 1.0,
    **drafting: Any,
) -> Iterator[Recorded]:
    """A round at each of some prefixes of a text, given by their lengths in ascending order.

    Args:
        temperature: of both models; there are no other warpers.
        **drafting: arguments of ``generate`` that say how it is drafted, in place of the pair's.

    Raises:
        LossyError: a pair without a draft model, which has no q.
    """
    if pair.draft is None:
        raise LossyError(f"{pair.name} has no draft model and so no q to record: use a pair with a draft or a head")
    given = {name: value for name, value in pair.drafting(**drafting).items() if name in NAMES}
    run = prepare(
        pair.target,
        text,
        LogitsProcessorList([TemperatureLogitsWarper(float(temperature))] if temperature != 1 else []),
        StoppingCriteriaList([EosTokenCriteria(eos(pair).tolist())]),
        GenerationConfig(do_sample=True, max_length=text.shape[1] + AHEAD),
        Options(verification="lossless", generator=generator, **given),
        {CACHE_NAME: default_cache(pair.target)},
    )
    run.rows = [0]
    for length in lengths:
        run.lengths = [length]
        if run.target.held[0] < length - 1:  # what a head drafts from
            run.target(run.tokens[:, run.target.held[0] : length - 1])
        proposal = propose(run)
        tree = proposal.tree
        logits = verify(run, proposal).logits
        q = proposal.q if proposal.q is not None else _at_nodes(run, tree, length)
        p = run.scorer.scores(logits, run.tokens, run.lengths).double().softmax(-1)
        q = q.double() / q.double().sum(-1, keepdim=True)
        yield Recorded(tree, p, q, torch.isin(tree.tokens, eos(pair).to(tree.tokens.device)))
        run.target.crop([length - 1])
        run.draft.settle(run.lengths)


def _at_nodes(run: Run, tree: Tree, length: int) -> Float[Tensor, "1 nodes_1 vocab"]:
    """q at the nodes of a tree that have candidates, all of which the draft has looked at; NaN at the others."""
    unknown = torch.full((1, run.scorer.vocabulary), torch.nan, device=run.tokens.device)
    found = [
        run.draft.next_probs(run.tokens, [length + depth], [node]) if below else unknown
        for node, (depth, below) in enumerate(zip(tree.depths[0].tolist(), tree.children(), strict=True))
    ]
    return torch.stack([unknown if q is None else q for q in found], 1)
