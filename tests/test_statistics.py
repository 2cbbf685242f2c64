"""What a call reports, on runs whose rounds were worked out by hand, and against counts and values taken elsewhere."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

import hf_lossy
from hf_lossy.generation import Round, VerificationStats

from . import oracle
from .models import PROMPT, draft, lossy, random_rule, scripted, table, target

N = PROMPT.shape[1]
SCRIPT = [7, 8, 9, 10, 11, 12, 13, 14, 15, 6, 2, 4, 7, 8]
WRONG_AT = (2, 3, 9)
DRAFTED = [3 if i in WRONG_AT else t for i, t in enumerate(SCRIPT)]
A, B, R = "accepted", "bonus", "replaced"


def known_run(**options) -> VerificationStats:
    """γ = 3, and a draft that is wrong at the third, fourth and tenth token."""
    stats = VerificationStats()
    lossy(
        scripted(SCRIPT),
        assistant_model=scripted(DRAFTED),
        num_assistant_tokens=3,
        verification_stats=stats,
        **{"max_new_tokens": 12, **options},
    )
    return stats


# --- definitions -------------------------------------------------------------------------------------------------------


# EAGLE#146, #132, #95, #153, #143, #169; vLLM#17908, #56101: with or without the bonus, counted past the end
@pytest.mark.parametrize("options", [{}, *({"do_sample": True, "coupling": c} for c in ("token", "block"))], ids=str)
def test_every_figure_of_a_run_with_known_accepts(options):
    stats = known_run(**options)
    assert stats.rounds == [
        Round(drafted=3, accepted=2, emitted=3),
        Round(drafted=3, accepted=0, emitted=1),
        Round(drafted=3, accepted=3, emitted=4),
        Round(drafted=3, accepted=1, emitted=2),  # right, wrong, right: the third does not count (vLLM#2658)
        Round(drafted=1, accepted=1, emitted=2, stop="length"),
    ]
    assert stats.rows[0].sources == [A, A, R, R, A, A, A, B, A, R, A, B]
    assert (stats.emitted, stats.drafted, stats.accepted) == (12, 13, 7)
    assert stats.block_efficiency == 12 / 5
    assert stats.mean_acceptance_length == 1 + 7 / 5
    assert stats.draft_acceptance_rate == 7 / 13
    assert stats.acceptance_histogram == {0: 1, 1: 2, 2: 1, 3: 1}
    assert stats.acceptance_rate_per_position == [4 / 5, 2 / 4, 1 / 4]
    assert stats.target_forwards == 5


def test_a_stop_in_the_middle_of_a_block_cuts_every_figure():
    """The block of the third round goes on past the stop; what lies past it is not counted as accepted or emitted."""
    stats = known_run(stopping_criteria=[lambda ids, scores: ids.shape[1] == N + 6])
    assert [(r.drafted, r.accepted, r.emitted) for r in stats.rounds] == [(3, 2, 3), (3, 0, 1), (3, 2, 2)]
    assert stats.rows[0].sources == [A, A, R, R, A, A]
    assert stats.block_efficiency == 6 / 3  # the round that was cut counts with what it emitted
    assert stats.mean_acceptance_length == 1 + 4 / 3
    assert stats.draft_acceptance_rate == 4 / 9
    assert stats.acceptance_histogram == {0: 1, 2: 2}
    assert stats.acceptance_rate_per_position == [2 / 3, 2 / 3, 0]


def test_an_end_token_ends_the_draft_as_well():
    """Nothing is drafted after an end token, and what follows it is not counted."""
    stats = known_run(eos_token_id=SCRIPT[5])
    assert stats.rounds == [Round(3, 2, 3), Round(3, 0, 1), Round(2, 2, 2, "eos")]
    assert stats.rows[0].sources == [A, A, R, R, A, A]
    assert stats.draft_acceptance_rate == 4 / 8


def test_the_figures_of_several_sequences_are_totals():
    stats = VerificationStats()
    for options in ({}, {"eos_token_id": SCRIPT[5]}):
        stats.add(known_run(**options))
    assert len(stats.rows) == 2
    assert stats.block_efficiency == 18 / 8
    assert stats.mean_acceptance_length == 1 + 11 / 8
    assert stats.draft_acceptance_rate == 11 / 21
    assert stats.acceptance_histogram == {0: 2, 1: 2, 2: 3, 3: 1}
    assert stats.acceptance_rate_per_position == [6 / 8, 4 / 7, 1 / 6]


def test_figures_of_nothing_are_not_numbers_that_mislead():
    stats = VerificationStats()
    assert math.isnan(stats.block_efficiency)
    assert math.isnan(stats.draft_acceptance_rate)
    assert stats.acceptance_histogram == {}
    assert stats.accounting is None


def test_a_lookup_that_finds_nothing_emits_a_token_of_the_targets():
    ids = torch.tensor([[0, 1, 2, 3, 4]])
    script = scripted([7, 8, 7, 8, 9, 6])
    out = lossy(script, ids, prompt_lookup_num_tokens=2, max_new_tokens=6, return_dict_in_generate=True)
    # the third token is the first that has been there before: 8 follows, and then not 7
    assert out.verification.rounds == [*[Round(0, 0, 1)] * 3, Round(2, 1, 2), Round(0, 0, 1, "length")]
    assert out.verification.rows[0].sources == [B, B, B, A, R, B]


# mlx-lm#1085: 5 % acceptance for a draft that is the target itself
@pytest.mark.parametrize("coupling", ["token", "block"])
def test_a_draft_that_is_the_target_is_always_accepted(coupling):
    model, stats = table(random_rule(8, 0), 8), VerificationStats()
    lossy(
        model,
        PROMPT % 8,
        assistant_model=model,
        do_sample=True,
        temperature=0.6,
        coupling=coupling,
        max_new_tokens=100,
        verification_stats=stats,
    )
    assert stats.draft_acceptance_rate == 1
    assert set(stats.rows[0].sources) == {A, B}


def test_summary_is_json_of_the_same_figures():
    stats = known_run(accounting=True)
    summary = json.loads(json.dumps(stats.summary()))
    assert summary["block_efficiency"] == stats.block_efficiency
    assert summary["acceptance_histogram"] == {str(k): v for k, v in stats.acceptance_histogram.items()}
    assert summary["law"] == {"method": "lossless"}
    assert summary["accounting"]["tv"] == 0


def test_settings_tell_what_was_used():
    for options, expected in [
        ({}, {"coupling": "greedy", "bonus": "induced", "draft_probs": "head", "do_sample": False}),
        ({"do_sample": True}, {"coupling": "block", "do_sample": True, "num_assistant_tokens": 7}),
        ({"do_sample": True, "coupling": "token", "bonus": "target"}, {"coupling": "token", "bonus": "target"}),
        ({"assistant_model": None, "prompt_lookup_num_tokens": 4}, {"draft_probs": None, "num_assistant_tokens": 4}),
        (
            {
                "assistant_model": None,
                "prompt_lookup_num_tokens": 4,
                "do_sample": True,
                "draft_probs": "point_mass",
                "verification": hf_lossy.Lenience(0.3),
            },
            {"coupling": "tree", "draft_probs": "point_mass", "law": {"method": "lenience", "lenience": 0.3}},
        ),
    ]:
        out = lossy(target(), return_dict_in_generate=True, **{"assistant_model": draft(), **options})
        assert out.verification.settings == out.verification.settings | expected


def test_time_is_split_into_stages():
    stats = known_run()
    assert {"prefill", "draft", "verify", "couple", "cache"} <= set(stats.seconds)
    assert all(seconds > 0 for seconds in stats.seconds.values())


# --- forwards ----------------------------------------------------------------------------------------------------------


# transformers#40739, #33657, #40976: num_assistant_tokens is ignored
@pytest.mark.parametrize("gamma", [1, 3, 5])
def test_exactly_so_many_draft_steps_a_round(gamma):
    big, small, stats = table(random_rule(8, 0), 8), table(random_rule(8, 1), 8), VerificationStats()
    lossy(
        big,
        PROMPT % 8,
        assistant_model=small,
        verification="lenience",
        bonus="target",
        do_sample=True,
        num_assistant_tokens=gamma,
        max_new_tokens=60,
        verification_stats=stats,
    )
    full = [r for r in stats.rounds if r.drafted == gamma]
    assert len(full) >= len(stats.rounds) - gamma > 0  # the last rounds may have less room
    assert len(small.prefixes) == stats.draft_forwards == stats.drafted
    assert len(big.prefixes) == stats.target_forwards == len(stats.rounds)
    # a target forward asks for the drafted positions and the one after them, the first as well
    assert [len(asked) for asked in big.prefixes] == [r.drafted + 1 for r in stats.rounds]


@pytest.mark.parametrize(
    ("law", "steps_for_the_bonus"), [("lossless", 0), ("min_p", 0), ("lenience", 1), ("cos", 1)], ids=str
)
def test_an_induced_bonus_costs_one_draft_step_where_the_law_needs_q(law, steps_for_the_bonus):
    """A step that the next round needs anyway: its first token is not fed twice."""
    small, stats = table(random_rule(8, 0), 8), VerificationStats()
    lossy(
        table(random_rule(8, 0), 8),
        PROMPT % 8,
        assistant_model=small,
        verification=law,
        do_sample=True,
        num_assistant_tokens=3,
        max_new_tokens=80,
        verification_stats=stats,
    )
    whole = sum(r.accepted == r.drafted for r in stats.rounds)
    assert whole > 3
    assert len(small.prefixes) == stats.draft_forwards == stats.drafted + steps_for_the_bonus * whole


def test_no_position_is_forwarded_twice_unless_it_was_refused():
    """The draft's cache is kept from round to round."""
    small = scripted(DRAFTED)
    lossy(scripted(SCRIPT), assistant_model=small, num_assistant_tokens=3, max_new_tokens=12)
    asked = [prefix for forward in small.prefixes for prefix in forward]
    assert len(asked) == len(set(asked))


def test_chunks_of_the_prompt_are_no_rounds():
    stats = known_run(prefill_chunk_size=2)
    assert stats.target_forwards == 5


# --- draft lengths -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drafted", "expected"),
    [(SCRIPT * 3, [3, 5, 7, 9, 2]), ([1] * 42, [3, 2] + [1] * 27 + [0])],
    ids=["always right", "always wrong"],
)
def test_a_heuristic_schedule(drafted, expected):
    stats = VerificationStats()
    lossy(
        scripted(SCRIPT * 3),
        assistant_model=scripted(drafted),
        num_assistant_tokens=3,
        num_assistant_tokens_schedule="heuristic",
        max_new_tokens=30 if drafted[0] == 1 else 31,
        verification_stats=stats,
    )
    assert [r.drafted for r in stats.rounds] == expected


def test_a_heuristic_schedule_of_prompt_lookup():
    stats = VerificationStats()
    ids = torch.tensor([[5, 3, 5, 3, 5]])
    lossy(
        scripted([3, 5] * 20),
        ids,
        prompt_lookup_num_tokens=1,
        num_assistant_tokens_schedule="heuristic",
        max_new_tokens=14,
        verification_stats=stats,
    )
    assert [r.drafted for r in stats.rounds][:3] == [1, 3, 5]


@pytest.mark.parametrize(
    ("sample", "threshold", "drafted"),
    [(False, 0.0, 3), (False, 0.55, 3), (False, 0.65, 1), (True, 0.35, 3), (True, 0.65, 1)],
)
def test_a_confidence_threshold_ends_the_draft_after_an_unsure_token(sample, threshold, drafted):
    """The draft puts 0.6 and 0.4 on two tokens, always."""
    small, stats = table(lambda prefix: torch.tensor([0.6, 0.4, 0.0, 0.0]).log(), 4), VerificationStats()
    lossy(
        table(random_rule(4, 0), 4),
        PROMPT % 4,
        assistant_model=small,
        num_assistant_tokens=3,
        assistant_confidence_threshold=threshold,
        do_sample=sample,
        max_new_tokens=20,
        verification_stats=stats,
    )
    assert {r.drafted for r in stats.rounds[:-3]} == {drafted}


# --- accounting --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def warped(model, ids, temperature):
    """A model's distribution at every position, [V] each, in double precision."""
    return (model(ids).logits[0].double() / temperature).softmax(-1).numpy()


@pytest.mark.parametrize("bonus", ["induced", "target"])
@pytest.mark.parametrize("sample", [True, False], ids=["sampled", "greedy"])
@pytest.mark.parametrize(
    "law",
    [hf_lossy.Lenience(0.7), hf_lossy.Cos(0.3), hf_lossy.SpecCascade(0.3, "target"), hf_lossy.MinP(0.2)],
    ids=str,
)
def test_accounting_is_what_the_models_say(law, sample, bonus):
    temperature = 0.8 if sample else 1.0
    out = lossy(
        target(),
        assistant_model=draft(),
        verification=law,
        accounting=True,
        bonus=bonus,
        do_sample=sample,
        num_assistant_tokens=2,
        max_new_tokens=40,
        generator=torch.Generator().manual_seed(0),
        return_dict_in_generate=True,
        **({"temperature": temperature, "top_k": 0} if sample else {}),
    )
    row, parameters = out.verification.rows[0], law.to_dict()
    method = parameters.pop("method")
    at = slice(N - 1, -1)
    ps, qs = (warped(m, out.sequences, temperature)[at] for m in (target(), draft()))
    expected = {name: [] for name in row.accounting}
    for p, q, source in zip(ps, qs, row.sources, strict=True):
        from_p = bonus == "target" and source == "bonus"
        pi = p if from_p else oracle.induced(method, p, q, **parameters)
        expected["tv"].append(oracle.tv(pi, p))
        expected["kl"].append(oracle.kl(pi, p))
        expected["max_log_ratio"].append(oracle.max_log_ratio(pi, p))
        expected["acceptance"].append(math.nan if from_p else oracle.acceptance(pi, q))
        expected["wasted_distortion"].append(math.nan if from_p else oracle.waste(p, q, pi))
    assert {"bonus", "accepted", "replaced"} == set(row.sources)
    for name, values in expected.items():
        np.testing.assert_allclose(row.accounting[name], values, rtol=1e-3, atol=1e-5, err_msg=name)
    totals = out.verification.accounting
    for name in ("tv", "acceptance", "wasted_distortion"):
        assert totals[name] == pytest.approx(np.nanmean(expected[name]), rel=1e-3, abs=1e-5)
    assert totals["kl"] == pytest.approx(sum(expected["kl"]), rel=1e-3, abs=1e-5)
    assert totals["max_log_ratio"] == pytest.approx(max(expected["max_log_ratio"]), rel=1e-3, abs=1e-5)


def test_accounting_changes_nothing_else():
    calls = [
        lossy(
            target(),
            assistant_model=draft(),
            verification="lenience",
            do_sample=sample,
            generator=torch.Generator().manual_seed(1),
            accounting=accounting,
        )
        for sample in (True, False)
        for accounting in (True, False)
    ]
    assert torch.equal(calls[0], calls[1])
    assert torch.equal(calls[2], calls[3])


def test_accounting_is_cut_at_the_stop():
    stats = known_run(eos_token_id=SCRIPT[5], accounting=True)
    assert [len(values) for values in stats.rows[0].accounting.values()] == [6] * 5


def test_no_accounting_unless_it_was_asked_for():
    assert known_run().rows[0].accounting is None


def test_accounting_of_prompt_lookup_has_no_q_but_candidates():
    out = lossy(
        target(),
        prompt_lookup_num_tokens=3,
        verification="min_p",
        accounting=True,
        do_sample=True,
        max_new_tokens=9,
        return_dict_in_generate=True,
    )
    table_ = out.verification.rows[0].accounting
    assert len(table_["tv"]) == 9
    # π of the candidate where there was one, and nothing where there was none
    has_candidate = [i < r.drafted for r in out.verification.rounds for i in range(r.emitted)]
    assert any(has_candidate)
    assert [0 <= x <= 1 for x in table_["acceptance"]] == has_candidate
    assert all(math.isnan(x) for x in table_["wasted_distortion"])
    assert all(0 < x < 1 for x in table_["tv"])
