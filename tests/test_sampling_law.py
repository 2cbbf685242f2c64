"""The law of sampled text through the real ``generate()``, against formulas over the models' own logits.

Two kinds of test. A *long run* of a model whose logits depend on the last two tokens: given these, every token follows π,
so that each context is a sample of its own, and one call gives hundreds of tokens. *Many runs* of a model whose logits
depend on the whole prefix: the joint law of the first three tokens, enumerated.

False alarms: seeds are fixed, and a comparison fails below P_VALUE = 1e-6. There are fewer than 100 of them, so that over
seeds the whole file has a rate below 1e-4 (Bonferroni). Cells with an expected count below 5 are merged.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import scipy.stats
import torch

import hf_lossy
from hf_lossy.couplings import BlockCoupling, Coupling, TokenCoupling
from hf_lossy.drafting import stepwise
from hf_lossy.laws import law_class

from . import oracle
from .models import PROMPT, TableModel, draft, lossy, plain, random_rule, sibling, table, target

P_VALUE = 1e-6
V, GAMMA, LENGTH = 4, 2, 3
IDS = PROMPT % V
N = IDS.shape[1]

LAWS = [
    hf_lossy.Lossless(),
    hf_lossy.Lenience(0.4),
    hf_lossy.Cos(0.6),
    hf_lossy.Contrastive(0.5, plausibility=0.1),
    hf_lossy.AdaptiveEnsemble(0.4),
    hf_lossy.CappedEnsemble(0.7, 0.4),
    hf_lossy.GatedCeiling(0.6, 0.4),
    hf_lossy.SpecCascade(0.4, "draft"),
    hf_lossy.SpecCascade(0.4, "target"),
    hf_lossy.SpecCascade(0.6, rule="opt"),
    hf_lossy.Typical(0.15, fallback="draft"),
    hf_lossy.Typical(0.15, fallback="target"),
    hf_lossy.MinP(0.3),
    hf_lossy.MinP(0.3, truncate_draft=True),
    hf_lossy.Eta(0.15),
]


def test_every_law_is_tested_here():
    assert {law.name for law in LAWS} == set(hf_lossy.laws())


# --- expectations ------------------------------------------------------------------------------------------------------


def chi_square(groups: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """The p-value of independent multinomial samples, (counts, probabilities) each."""
    statistic, freedom = 0.0, 0
    for counts, probabilities in groups:
        expected = counts.sum() * probabilities / probabilities.sum()
        assert counts[expected < 1e-9].sum() == 0, "a token of probability zero was emitted"
        small = expected < 5
        cells = [np.append(x[~small], x[small].sum()) for x in (counts, expected)]
        observed, expected = (x[cells[1] > 0.5] for x in cells)
        statistic += ((observed - expected) ** 2 / expected).sum()
        freedom += max(len(observed) - 1, 0)
    assert freedom > 2
    return float(scipy.stats.chi2.sf(statistic, freedom))


def warped(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """Softmax after transformers' warpers, in their order, from their definitions."""
    x = np.array(logits.tolist(), dtype=np.float64) / temperature
    if top_k:
        x = np.where(x >= np.sort(x)[-top_k], x, -np.inf)
    probs = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
    if top_p < 1:
        order = np.argsort(-probs, kind="stable")
        before = np.cumsum(probs[order]) - probs[order]  # mass of the likelier tokens
        probs[order[before >= top_p]] = 0
        probs /= probs.sum()
    if min_p:
        probs[probs < min_p * probs.max()] = 0
        probs /= probs.sum()
    return probs


def induced(law, p, q):
    parameters = law.to_dict()
    return oracle.induced(parameters.pop("method"), p, q, **parameters)


def last_two(seed: int) -> TableModel:
    """A model that looks at the last two tokens, and leaves all of them some chance."""
    return table(random_rule(V, seed, sharpness=1.2), V, order=2)


CONTEXTS = list(itertools.product(range(V), repeat=2))


def long_run(law, count=800, q_of=None, warpers=None, **options):
    """One call on table models; (counts, π) of the tokens after each context, apart for bonus tokens, and the output.

    ``q_of`` makes q from the draft's logits where it is not warped like the target.
    """
    warpers, big, small = {"top_k": 0, **(warpers or {})}, last_two(0), last_two(1)
    out = lossy(
        big,
        IDS,
        **{"assistant_model": small, "num_assistant_tokens": GAMMA, **options},
        **warpers,
        verification=law,
        do_sample=True,
        max_new_tokens=count,
        generator=torch.Generator().manual_seed(0),
        return_dict_in_generate=True,
    )
    tokens, sources = out.sequences[0].tolist(), out.verification.rows[0].sources
    seen = {(context, is_bonus): np.zeros(V) for context in CONTEXTS for is_bonus in (True, False)}
    for i, source in enumerate(sources, start=N):
        seen[(tokens[i - 2], tokens[i - 1]), source == "bonus"][tokens[i]] += 1
    groups = []
    for (context, is_bonus), counts in seen.items():
        p, q = warped(big.rule(context), **warpers), (q_of or partial(warped, **warpers))(small.rule(context))
        groups.append((counts, p if is_bonus and options.get("bonus") == "target" else induced(law, p, q)))
    return groups, out


# --- long runs: every law, every coupling ------------------------------------------------------------------------------

COUPLED = [
    (law, coupling)
    for law in LAWS
    for coupling in ("token", "block", "reference")
    if coupling != "reference" or (law.name in ("typical", "speccascade") and law.to_dict().get("rule") != "opt")
]


# Spec-RL#14: after a refusal samples from p; openvino.genai#4476; MTPLX TokenV3; TRT-LLM#891: typical above T = 0
@pytest.mark.parametrize(("law", "coupling"), COUPLED, ids=str)
def test_every_token_follows_the_law(law, coupling):
    """bonus="induced", the default: accepted, replaced and bonus tokens alike."""
    groups, _ = long_run(law, coupling=coupling)
    assert chi_square(groups) > P_VALUE


@pytest.mark.parametrize("coupling", ["token", "block"])
@pytest.mark.parametrize("law", [hf_lossy.Cos(0.9), LAWS[8]], ids=str)
def test_with_the_targets_bonus_that_token_follows_p(law, coupling):
    groups, _ = long_run(law, coupling=coupling, bonus="target")
    assert chi_square(groups) > P_VALUE


@pytest.mark.parametrize("gamma", [1, 3, 7])
def test_the_law_does_not_depend_on_the_draft_length(gamma):
    groups, out = long_run(hf_lossy.Lenience(0.4), num_assistant_tokens=gamma)
    assert chi_square(groups) > P_VALUE
    assert max(r.drafted for r in out.verification.rounds) == gamma


def test_the_law_does_not_depend_on_a_schedule_or_a_threshold():
    options = {"num_assistant_tokens_schedule": "heuristic", "assistant_confidence_threshold": 0.3}
    groups, out = long_run(hf_lossy.Cos(0.5), num_assistant_tokens=4, **options)
    assert chi_square(groups) > P_VALUE
    assert len({r.drafted for r in out.verification.rounds}) > 3


WARPERS = {
    "temperature": {"temperature": 0.4},
    "hot": {"temperature": 3.0},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.3},  # vLLM#42744, #42802, #31982: skipped in verification
    "all": {"temperature": 0.8, "top_k": 3, "top_p": 0.9, "min_p": 0.1},
}


@pytest.mark.parametrize("warpers", WARPERS.values(), ids=WARPERS)
def test_warpers_apply_to_p_and_to_q(warpers):
    groups, _ = long_run(hf_lossy.Cos(0.6), warpers=warpers)
    assert chi_square(groups) > P_VALUE


# vLLM#42744: no token below the cutoff, whatever the draft likes
def test_min_p_lets_nothing_below_its_cutoff_through():
    groups, _ = long_run(hf_lossy.Lossless(), warpers={"min_p": 0.3})
    assert chi_square(groups) > P_VALUE
    outside = []
    for (counts, _), (context, _) in zip(groups, itertools.product(CONTEXTS, (True, False)), strict=True):
        p, q = (warped(last_two(seed).rule(context)) for seed in (0, 1))
        assert counts[p < 0.3 * p.max()].sum() == 0
        outside.append(q[p < 0.3 * p.max()].sum())
    assert max(outside) > 0.3  # the draft alone would put so much there


@pytest.mark.parametrize(("law", "coupling"), [(LAWS[0], "block"), (LAWS[1], "token")], ids=str)
def test_a_draft_with_a_temperature_of_its_own(law, coupling):
    groups, _ = long_run(
        law,
        coupling=coupling,
        draft_temperature=2.0,
        warpers={"temperature": 0.7, "top_k": 3},
        q_of=lambda logits: warped(logits, temperature=2.0, top_k=3),
    )
    assert chi_square(groups) > P_VALUE


# transformers#32867 (from #30778): a greedy draft, and a ratio as if it had been sampled
@pytest.mark.parametrize("coupling", ["token", "block"])
@pytest.mark.parametrize("law", [LAWS[0], LAWS[2]], ids=str)
def test_a_greedy_draft_has_a_point_mass_for_q(law, coupling):
    groups, _ = long_run(
        law,
        coupling=coupling,
        draft_temperature=0,
        warpers={"temperature": 0.7},
        q_of=lambda logits: np.eye(V)[int(logits.argmax())],
    )
    assert chi_square(groups) > P_VALUE


# SGLang#10308: the wrong q at top_k = 1
def test_top_k_of_one_is_greedy_for_both_models():
    big, small = last_two(0), last_two(1)
    ours = lossy(big, IDS, assistant_model=small, do_sample=True, top_k=1, max_new_tokens=30)
    assert torch.equal(ours, plain(big, IDS, max_new_tokens=30))


# openvino.genai#2331: prompt lookup under multinomial sampling
@pytest.mark.parametrize("law", [LAWS[0], LAWS[12], LAWS[14]], ids=str)
def test_prompt_lookup_emits_the_law(law):
    options = {"assistant_model": None, "prompt_lookup_num_tokens": 3, "num_assistant_tokens": None}
    groups, out = long_run(law, **options)
    assert chi_square(groups) > P_VALUE
    assert out.verification.settings["coupling"] == "tree"


# --- many runs: joint laws, everything seen ----------------------------------------------------------------------------

Distribution = Callable[[tuple[int, ...]], np.ndarray]


def joint(probabilities: Distribution) -> np.ndarray:
    """The law of LENGTH tokens that are drawn one by one, in lexicographic order."""
    tree = {x: probabilities(x) for n in range(LENGTH) for x in itertools.product(range(V), repeat=n)}
    return np.array([oracle.product(tree, x) for x in oracle.sequences(V, LENGTH)])


def with_bonus(law, p: Distribution, q: Distribution, whole: Callable) -> np.ndarray:
    """The law of γ + 1 = LENGTH tokens where the bonus token follows p; ``whole`` is one of oracle.all_accepted_*."""
    blocks = [x for n in range(GAMMA + 1) for x in itertools.product(range(V), repeat=n)]
    pi, qs = {x: induced(law, p(x), q(x)) for x in blocks}, {x: q(x) for x in blocks}
    last = oracle.sequences(V, GAMMA)
    block = np.array([oracle.product(pi, x) for x in last])
    kept = np.array([whole(pi, qs, x) for x in last])
    after = [np.array([table_[x] for x in last]) for table_ in (pi, {x: p(x) for x in last})]
    return oracle.emitted(block, kept, *after).flatten()


def many_runs(count, generate) -> np.ndarray:
    """How often each sequence of LENGTH tokens came out; a generator for all calls."""
    generator, index = torch.Generator().manual_seed(0), {x: i for i, x in enumerate(oracle.sequences(V, LENGTH))}
    counts = np.zeros(len(index))
    for _ in range(count):
        counts[index[tuple(generate(generator)[0, N : N + LENGTH].tolist())]] += 1
    return counts


def rules(p_seed=0, q_seed=1):
    """Rules that look at the whole prefix."""
    return random_rule(V, p_seed), random_rule(V, q_seed)


def after_prompt(rule, process=warped) -> Distribution:
    return lambda x: process(rule((*IDS[0].tolist(), *x)))


SAMPLED = {"do_sample": True, "top_k": 0, "num_assistant_tokens": GAMMA}


@pytest.mark.parametrize(
    ("law", "coupling", "bonus"),
    [
        (hf_lossy.Lenience(0.4), "block", "induced"),
        (hf_lossy.Cos(0.6), "block", "target"),
        (hf_lossy.SpecCascade(0.4, "target"), "reference", "target"),
    ],
    ids=str,
)
def test_the_joint_law_of_the_first_tokens(law, coupling, bonus):
    p_rule, q_rule = rules()
    big, small = table(p_rule, V), table(q_rule, V)
    counts = many_runs(
        400,
        lambda generator: lossy(
            big,
            IDS,
            assistant_model=small,
            verification=law,
            coupling=coupling,
            bonus=bonus,
            generator=generator,
            **SAMPLED,
            max_new_tokens=LENGTH if bonus == "induced" else LENGTH + GAMMA,  # nothing else is a bonus among the first
        ),
    )
    p, q = after_prompt(p_rule), after_prompt(q_rule)
    if bonus == "induced":
        expected = joint(lambda x: induced(law, p(x), q(x)))
    else:
        whole = {"token": oracle.all_accepted_token, "block": oracle.all_accepted_block}.get(coupling)
        if whole is None:
            allowed = {
                x: np.array(oracle.min_p_set(p(x), law.p_base), dtype=float)
                for n in range(GAMMA)
                for x in itertools.product(range(V), repeat=n)
            }
            whole = lambda pi, q_, x: oracle.all_accepted_reference(allowed, q_, x)  # noqa: E731
        expected = with_bonus(law, p, q, whole)
    assert chi_square([(counts, expected)]) > P_VALUE


def test_processors_that_look_at_the_prefix_apply_to_p_and_q():
    """A repetition penalty and a ban on repeated pairs, from their definitions."""
    penalty, p_rule, q_rule = 1.7, *rules(4, 5)

    def processed(rule):
        def at(x):
            prefix = (*IDS[0].tolist(), *x)
            logits = rule(prefix).double().numpy().copy()
            for token in set(prefix):
                logits[token] = logits[token] * penalty if logits[token] < 0 else logits[token] / penalty
            pairs = set(itertools.pairwise(prefix))
            logits[[t for t in range(V) if (prefix[-1], t) in pairs]] = -np.inf
            return warped(logits, temperature=0.8)

        return at

    law = hf_lossy.Lenience(0.4)
    big, small = table(p_rule, V), table(q_rule, V)
    options = {"repetition_penalty": penalty, "no_repeat_ngram_size": 2, "temperature": 0.8}
    counts = many_runs(
        400,
        lambda generator: lossy(
            big,
            IDS,
            assistant_model=small,
            verification=law,
            generator=generator,
            max_new_tokens=LENGTH,
            **options,
            **SAMPLED,
        ),
    )
    p, q = processed(p_rule), processed(q_rule)
    assert chi_square([(counts, joint(lambda x: induced(law, p(x), q(x))))]) > P_VALUE


def test_texts_that_end_early_follow_the_law_too():
    """With an end token: the law of whole texts, of one to three tokens."""
    p_rule, q_rule = rules(2, 3)
    big, small, end = table(p_rule, V), table(q_rule, V), 1
    generator, counts = torch.Generator().manual_seed(0), Counter()
    law = hf_lossy.Lenience(0.4)
    for _ in range(400):
        out = lossy(
            big,
            IDS,
            assistant_model=small,
            verification=law,
            generator=generator,
            eos_token_id=end,
            max_new_tokens=LENGTH,
            **SAMPLED,
        )
        counts[tuple(out[0, N:].tolist())] += 1
    p, q = after_prompt(p_rule), after_prompt(q_rule)
    expected: Counter = Counter()
    for x, mass in zip(oracle.sequences(V, LENGTH), joint(lambda x: induced(law, p(x), q(x))), strict=True):
        expected[x[: x.index(end) + 1] if end in x else x] += mass
    assert set(counts) <= set(expected)
    assert chi_square([(np.array([counts[x] for x in expected]), np.array(list(expected.values())))]) > P_VALUE


def test_real_models():
    """T and D with five tokens, the law from whole forwards over all prefixes of two more."""
    big, small, vocabulary, law = target(5), sibling(target(5)), 5, hf_lossy.Cos(0.5)
    ids, temperature = PROMPT % vocabulary, 2.0
    generator, counts = torch.Generator().manual_seed(0), np.zeros(vocabulary**2)
    for _ in range(400):
        out = lossy(
            big,
            ids,
            assistant_model=small,
            verification=law,
            generator=generator,
            temperature=temperature,
            max_new_tokens=2,
            **SAMPLED,
        )
        counts[int(out[0, -2]) * vocabulary + int(out[0, -1])] += 1
    prefixes = [ids, *(torch.cat([ids, torch.tensor([[t]])], 1) for t in range(vocabulary))]
    with torch.no_grad():
        pis = [induced(law, *(warped(m(x).logits[0, -1], temperature) for m in (big, small))) for x in prefixes]
    expected = np.concatenate([pis[0][t] * pis[1 + t] for t in range(vocabulary)])
    assert chi_square([(counts, expected)]) > P_VALUE


@pytest.mark.parametrize("law", [hf_lossy.Lenience(0.4), hf_lossy.Cos(0.3)], ids=str)
def test_prompt_lookup_with_a_point_mass_follows_the_law_of_that_q(law):
    """q is one on the candidate where there is one; where there is none, and after the last, the target's p."""
    ids = torch.tensor([[0, 1, 2, 0, 1]])  # 2 and 0 follow, and nothing is repeated earlier
    assert ids.shape[1] == N
    p_rule, _ = rules(6)
    big = table(p_rule, V)
    counts = many_runs(
        400,
        lambda generator: lossy(
            big,
            ids,
            prompt_lookup_num_tokens=GAMMA,
            draft_probs="point_mass",
            verification=law,
            generator=generator,
            do_sample=True,
            top_k=0,
            max_new_tokens=1 + GAMMA,
        ),
    )
    p = lambda x: warped(p_rule((*ids[0].tolist(), *x)))  # noqa: E731
    first = induced(law, p(()), np.eye(V)[2])
    marginal = counts.reshape(V, V, V).sum((1, 2))
    assert (
        chi_square([(marginal, first), (counts.reshape(V, V, V)[2].sum(1), induced(law, p((2,)), np.eye(V)[0]))])
        > P_VALUE
    )


# --- against transformers ----------------------------------------------------------------------------------------------


# transformers#45865, #45979
def test_cos_is_transformers_ensemble():
    """Both, with the target's bonus, against one expectation; and λ = 1 − w."""
    weight, (p_rule, q_rule) = 0.4, rules(8, 9)
    law = hf_lossy.Cos(1 - weight)
    big, small = table(p_rule, V), table(q_rule, V)
    small.generation_config.num_assistant_tokens = GAMMA
    small.generation_config.num_assistant_tokens_schedule = "constant"
    small.generation_config.assistant_confidence_threshold = 0.0
    call = {"assistant_model": small, "do_sample": True, "top_k": 0, "max_new_tokens": LENGTH + GAMMA}
    expected = with_bonus(law, after_prompt(p_rule), after_prompt(q_rule), oracle.all_accepted_token)
    options = {"verification": law, "coupling": "token", "bonus": "target", "num_assistant_tokens": GAMMA}
    ours = many_runs(400, lambda generator: lossy(big, IDS, generator=generator, **options, **call))
    assert chi_square([(ours, expected)]) > P_VALUE
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = many_runs(400, lambda _: plain(big, IDS, assistant_ensemble_weight=weight, **call))
    assert chi_square([(theirs, expected)]) > P_VALUE


# --- what must hold for every draw -------------------------------------------------------------------------------------


@pytest.fixture
def spied(monkeypatch):
    """The q's that drafts were drawn from, with what was drawn, and the q's and tokens that couplings were given."""
    drawn, verified = [], []

    def sample(q, coins):
        token = original_sample(q, coins)
        drawn.append((q.clone(), token.clone()))
        return token

    def init(self, law, p, q, drafted):
        original_init(self, law, p, q, drafted)
        verified.append((q, drafted.clone()))

    original_sample, original_init = stepwise.sample, Coupling.__init__
    monkeypatch.setattr(stepwise, "sample", sample)
    monkeypatch.setattr(Coupling, "__init__", init)
    return drawn, verified


# transformers#47932, #47961: q in the ratio is not the law that drafts were sampled from
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.7, "top_k": 5, "top_p": 0.9},
        {"top_k": 1},  # SGLang#10308
        {"min_p": 0.2, "repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "bad_words_ids": [[3], [4, 5]]},
        {"draft_temperature": 1.7, "temperature": 0.5},
        {"verification": hf_lossy.MinP(0.3, truncate_draft=True)},
        {"draft": "bfloat16"},
    ],
    ids=str,
)
def test_q_in_verification_is_the_q_that_was_sampled_from_bit_by_bit(options, spied):
    drawn, verified = spied
    options = dict(options)
    small = draft() if options.pop("draft", None) is None else copy.deepcopy(draft()).bfloat16()
    lossy(
        target(),
        assistant_model=small,
        do_sample=True,
        generator=torch.Generator().manual_seed(0),
        **{"verification": "lenience", "num_assistant_tokens": 3, **options},
    )
    qs = torch.cat([q for q, _ in verified], 1)
    assert qs.shape[1] == len(drawn) > 10
    assert torch.equal(qs, torch.stack([q for q, _ in drawn], 1))
    assert torch.equal(torch.cat([t for _, t in verified], 1), torch.stack([t for _, t in drawn], 1))


@torch.no_grad()
def test_q_is_the_drafts_processed_softmax(spied):
    """Taken after the warpers: the mutation "q taken before the warpers" leaves q and p consistent, and is wrong."""
    _, verified = spied
    out = lossy(
        target(),
        assistant_model=draft(),
        verification="lenience",
        do_sample=True,
        temperature=0.7,
        top_k=5,
        top_p=0.9,
        min_p=0.1,
        num_assistant_tokens=3,
        generator=torch.Generator().manual_seed(0),
        return_dict_in_generate=True,
    )
    length = N
    for (q, drafted), r in zip(verified, out.verification.rounds, strict=True):
        prefix = torch.cat([out.sequences[:, :length], drafted], 1)
        logits = draft()(prefix).logits[0, length - 1 : -1].double()
        for at, given in zip(logits, q[0], strict=True):
            np.testing.assert_allclose(given, warped(at, 0.7, 5, 0.9, 0.1), atol=1e-5)
        length += r.emitted


# SGLang#35771 (and the same code in transformers): r = 0 accepts a token of p = 0
@pytest.mark.parametrize("coupling", ["token", "block", "reference"])
@pytest.mark.parametrize("fallback", ["draft", "target"])
def test_a_coin_of_zero_accepts_nothing_of_probability_zero(coupling, fallback, monkeypatch):
    monkeypatch.setattr("hf_lossy.scores.Coins.__call__", lambda self, *shape: torch.zeros(shape))
    law = hf_lossy.SpecCascade(0.5, fallback) if coupling == "reference" else hf_lossy.Lossless()
    big = table(lambda prefix: torch.tensor([0.5, 0.5, 0.0, 0.0]).log(), V)
    small = table(lambda prefix: torch.tensor([0.0, 0.0, 1.0, 0.0]).log(), V)
    out = lossy(
        big,
        IDS,
        assistant_model=small,
        verification=law,
        coupling=coupling,
        do_sample=True,
        return_dict_in_generate=True,
    )
    assert set(out.sequences[0, N:].tolist()) <= {0, 1}
    assert out.verification.accepted == 0


@pytest.mark.parametrize("coupling", ["token", "block"])
def test_tokens_that_the_law_forbids_never_come(coupling):
    """speccascade, typical and min_p keep to their sets even where the draft hardly ever does."""
    for law in (hf_lossy.SpecCascade(0.9), hf_lossy.Typical(0.4), hf_lossy.MinP(0.9)):
        groups, _ = long_run(law, count=400, coupling=coupling)
        for counts, pi in groups:
            assert counts[pi == 0].sum() == 0
        assert law_class(law.name) is type(law)


# jaymody/speculative-sampling#5, MTPLX#82: p = q and a refusal leave a residual of zero, and NaN
@pytest.mark.parametrize("coupling", [TokenCoupling, BlockCoupling], ids=lambda coupling: coupling.name)
def test_a_refusal_where_p_is_q_is_replaced_from_p(coupling, monkeypatch):
    accepted = coupling.accepted

    def refuse(self, coins):
        return accepted(self, coins) * 0

    monkeypatch.setattr(coupling, "accepted", refuse)
    groups, out = long_run(hf_lossy.Lossless(), coupling=coupling.name, assistant_model=last_two(0))
    assert chi_square(groups) > P_VALUE
    assert out.verification.accepted == 0


@pytest.mark.parametrize("ban", [{"suppress_tokens": [2]}, {"bad_words_ids": [[2]]}], ids=str)
def test_a_looked_up_candidate_that_is_banned_does_not_come(ban):
    """With a point mass the law would give it nine tenths."""
    ids, big = torch.tensor([[0, 1, 2, 0, 1]]), table(random_rule(V, 6), V)
    options = {"prompt_lookup_num_tokens": 2, "draft_probs": "point_mass", "verification": hf_lossy.Cos(0.9)}
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        out = lossy(big, ids, do_sample=True, top_k=0, max_new_tokens=4, generator=generator, **options, **ban)
        assert 2 not in out[0, 5:].tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_coins_are_fine_whatever_the_default_dtype_is(dtype):
    """Of 1,000 tokens that are equally likely 2,000 draws show 865 ± 10; coins of half precision, bfloat16 above all, meet
    too few of them."""
    models = [table(lambda prefix: torch.zeros(1000, dtype=torch.float32), 1000) for _ in range(2)]
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        text = lossy(models[0], assistant_model=models[1], do_sample=True, top_k=0, max_new_tokens=2000)
    finally:
        torch.set_default_dtype(before)
    assert len(set(text[0, PROMPT.shape[1] :].tolist())) > 800
