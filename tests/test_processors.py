"""Laws and allowed sets as LogitsProcessor subclasses, in transformers' own loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import LogitsProcessorList, MinPLogitsWarper

import hf_lossy
from hf_lossy import LossyError
from hf_lossy.processors import DraftScores, EtaSetLogitsProcessor, LawLogitsProcessor, MinPSetLogitsProcessor

from . import oracle
from .models import PROMPT, sibling, target

V = 6
P_VALUE = 1e-6  # nine tests of this kind in this file: a false alarm in all of them together below 1e-5


def softmax(model, ids):
    with torch.no_grad():
        return model(ids).logits[0, -1].double().softmax(-1).numpy()


@pytest.fixture(scope="module")
def pair():
    big = target(V)
    return big, sibling(big), PROMPT % V


def counted(model, ids, n, **kwargs):
    """Counts of the two tokens after the prompt in n samples of transformers' own generate."""
    torch.manual_seed(0)
    counts = np.zeros(V * V)
    for _ in range(n):
        out = model.generate(ids, do_sample=True, top_k=0, max_new_tokens=2, min_new_tokens=2, **kwargs)[0, -2:]
        counts[int(out[0]) * V + int(out[1])] += 1
    return counts


def expected(big, small, ids, law):
    """The law's joint distribution of two tokens, from the oracle, over whole forwards of both models."""
    first = oracle.induced(law.name, softmax(big, ids), softmax(small, ids), **law.parameters())
    joint = []
    for t in range(V):
        longer = torch.cat([ids, torch.tensor([[t]])], 1)
        joint.append(
            first[t]
            * np.asarray(oracle.induced(law.name, softmax(big, longer), softmax(small, longer), **law.parameters()))
        )
    return np.concatenate(joint)


def agrees(counts, law):
    possible = law > 1e-12
    assert counts[~possible].sum() == 0
    likely = possible & (law * counts.sum() >= 5)
    observed = [*counts[likely], counts[possible & ~likely].sum()]
    wanted = [*(law[likely] * counts.sum()), law[possible & ~likely].sum() * counts.sum()]
    if wanted[-1] < 1e-9:
        observed, wanted = observed[:-1], wanted[:-1]
    return chisquare(observed, np.array(wanted) * sum(observed) / sum(wanted)).pvalue > P_VALUE


LAWS = [
    hf_lossy.Lenience(0.3),
    hf_lossy.Cos(0.6),
    hf_lossy.SpecCascade(0.7, "target"),
    hf_lossy.Typical(0.02, fallback="target"),
]


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_plain_sampling_behind_the_processor_emits_the_law(pair, law):
    big, small, ids = pair
    with torch.no_grad():
        big.generation_config.eos_token_id = None
        processor = LawLogitsProcessor(law, DraftScores(small, V))
        counts = counted(big, ids, 500, logits_processor=LogitsProcessorList([processor]))
    assert agrees(counts, expected(big, small, ids, law))


def test_the_stock_assisted_loop_with_prompt_lookup_emits_the_law(pair):
    big, small, ids = pair
    law = hf_lossy.Lenience(0.3)
    big.generation_config.eos_token_id = None
    processor = LawLogitsProcessor(law, DraftScores(small, V))
    longer = torch.cat([ids, ids], 1)  # something to look up
    counts = counted(big, longer, 500, logits_processor=LogitsProcessorList([processor]), prompt_lookup_num_tokens=2)
    assert agrees(counts, expected(big, small, longer, law))


def test_draft_scores_follow_jumps_of_the_prefix(pair):
    _, small, ids = pair
    scores = DraftScores(small, V)
    for prefix in (ids, torch.cat([ids, ids], 1), ids[:, :3], torch.cat([ids[:, :4], ids], 1), ids):
        torch.testing.assert_close(
            scores(prefix).double().softmax(-1)[0].numpy(), softmax(small, prefix), atol=1e-6, rtol=1e-5
        )


def test_a_law_that_needs_the_draft_says_so():
    with pytest.raises(LossyError, match=r"cos\(0.2\) needs the draft's probabilities.*draft_scores"):
        LawLogitsProcessor("cos")
    scores = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    kept = LawLogitsProcessor({"method": "min_p", "p_base": 0.4})(PROMPT, scores).exp()
    for row, p in zip(kept.double().numpy(), scores.double().softmax(-1).numpy(), strict=True):
        np.testing.assert_allclose(row, oracle.induced("min_p", p, p, p_base=0.4, truncate_draft=False), atol=1e-6)


def test_allowed_sets_are_those_of_transformers_and_of_the_oracle():
    scores = 2 * torch.randn(200, 12, generator=torch.Generator().manual_seed(1))
    ours = MinPSetLogitsProcessor(0.2)(PROMPT, scores)
    assert torch.equal(ours, MinPLogitsWarper(0.2)(PROMPT, scores))
    eta = EtaSetLogitsProcessor(0.15)(PROMPT, scores).isfinite()
    for row, s in zip(eta, scores.double(), strict=True):
        p = s.softmax(-1).numpy()
        entropy = -(p * np.log(p)).sum()
        threshold = min(0.15, np.sqrt(0.15) * np.exp(-entropy))
        assert row.tolist() == [x >= threshold or x == p.max() for x in p]
    with pytest.raises(LossyError, match="p_base must be in"):
        MinPSetLogitsProcessor(1.5)
    with pytest.raises(LossyError, match="epsilon must be in"):
        EtaSetLogitsProcessor(0)
