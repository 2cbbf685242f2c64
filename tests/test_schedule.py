"""How many tokens are drafted in a round, and that the choice leaves the law alone."""

from __future__ import annotations

import copy
import itertools
import math
import random
import sys
import threading

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import hf_lossy
from hf_lossy import LossyError
from hf_lossy.drafting.schedule import (
    Costs,
    Expected,
    ExpectedLookup,
    ExpectedTree,
    Heuristic,
    Schedule,
    TreeSchedule,
    expected_tokens,
)
from hf_lossy.generation import calibration

from .models import PROMPT, draft, head, lossy, plain, scripted, target
from .test_sampling_law import P_VALUE, chi_square, long_run

FLAT = {1: 1.0, 21: 1.0}


def feed(schedule, acceptance, rounds=200, seed=0):
    """Rounds in which every token is accepted with the same probability; the lengths chosen."""
    coins, lengths = torch.Generator().manual_seed(seed), []
    for _ in range(rounds):
        kept = 0
        while kept < schedule.length and float(torch.rand((), generator=coins)) < acceptance:
            kept += 1
        lengths.append(schedule.length)
        schedule.update([schedule.length], [kept])
    return lengths


def best(acceptance, draft_cost, target=FLAT, bonus=0.0):
    """γ by definition, with t(n) of a line through what was measured."""
    (n0, t0), (n1, t1) = target.items()

    def rate(g):
        verify = t0 + (t1 - t0) * (g + 1 - n0) / (n1 - n0)
        tokens = sum(acceptance**i for i in range(g + 1))
        return tokens / (verify + g * draft_cost + acceptance**g * bonus)

    return max(range(21), key=rate)


@pytest.mark.parametrize("acceptance", [0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("cost", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("verify", [FLAT, {1: 1.0, 21: 3.0}], ids=["flat", "rising"])
def test_the_length_comes_near_the_best_one(acceptance, cost, verify):
    schedule = Expected(Costs(verify, {1: cost}), asks_bonus=False)
    lengths = [length for length in feed(schedule, acceptance)[50:] if length != Expected.PROBE]
    wanted, spread = best(acceptance, cost, verify), [best(acceptance + d, cost, verify) for d in (-0.2, 0.15)]
    if wanted or lengths:
        middle = sorted(lengths)[len(lengths) // 2] if lengths else wanted
        assert min(spread) <= middle <= max(spread)


def test_expected_tokens_and_costs_are_those_of_the_formula():
    schedule = Expected(Costs({1: 1.0, 5: 2.0}, {1: 0.25}), asks_bonus=True)
    assert schedule.seconds(2, 0.64) == pytest.approx(1.5 + 2 * 0.25 + 0.64 * 0.25)
    tree = ExpectedTree(Costs({1: 1.0, 2: 1.0, 64: 32.0}, {1: 0.25, 4: 0.5}), asks_bonus=True)
    assert tree.choose(lambda: [1.0, 1.0, 0.0]) == 3
    assert tree.seconds(0, 1.0) == 1.25
    assert tree.seconds(1, 0.0) == pytest.approx(1.5 + 0.25)
    assert tree.seconds(2, 0.5) == pytest.approx(1.5 + 0.25 + 0.5 + 0.5 * 0.25)
    assert tree.seconds(3, 0.5) == pytest.approx(2.0 + 0.25 + 2 * 0.5 + 0.5 * 0.25)  # a node for each level
    assert expected_tokens(0.5, 3) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert expected_tokens(1.0, 3) == 4


@pytest.mark.parametrize("bonus", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_the_length_is_the_best_one_for_the_rounds_seen(seed, bonus):
    """By definition, from lists of what was seen at each place and how long ago, in batches too."""
    dice = random.Random(seed)
    rising, cost = {1: 1.0, 21: dice.uniform(1, 3)}, dice.uniform(0.01, 0.4)

    def a_round():
        drafted = dice.randint(1, 9)
        return dice.choice([0, 1, 2, drafted, drafted]) % (drafted + 1), drafted

    before, batches = [a_round() for _ in range(3)], [[a_round() for _ in range(2)] for _ in range(12)]
    schedule = Expected(Costs(rising, {1: cost}, before), asks_bonus=bonus)
    for batch in batches:
        schedule.update([drafted for _, drafted in batch], [accepted for accepted, _ in batch])
    looks = [
        (place, place < accepted, 0.97 ** (len(batches) - 1 - i))
        for i, batch in enumerate([before, *batches], start=-1)
        for accepted, drafted in batch
        for place in range(drafted)
        if place <= accepted
    ]
    overall = (0.8 + sum(w for _, kept, w in looks if kept)) / (1 + sum(w for _, _, w in looks))

    def rate(gamma):
        reached = [1.0]
        for place in range(gamma):
            here = [(kept, w) for at, kept, w in looks if at == place]
            kept = 4 * overall + sum(w for kept, w in here if kept)
            reached.append(reached[-1] * kept / (4 + sum(w for _, w in here)))
        verify = 1 + (rising[21] - 1) * gamma / 20
        return sum(reached) / (verify + gamma * cost + bonus * reached[-1] * cost)

    assert rate(schedule.length) == pytest.approx(max(map(rate, range(21))), rel=1e-12)


def test_a_pattern_of_refusals_is_seen():
    """The first drafted token is always kept and the second never: half of those that are looked at, but γ above 1 only asks
    whether that is still so."""
    schedule, lengths = Expected(Costs(FLAT, {1: 0.05}), asks_bonus=False), []
    for _ in range(100):
        lengths.append(schedule.length)
        schedule.update([schedule.length], [min(1, schedule.length)])
    assert best(0.5, 0.05) == 3
    assert set(lengths[20:]) == {1, 2}


def test_a_draft_that_does_not_pay_is_left_out_and_tried_again_in_a_while():
    schedule = Expected(Costs(FLAT, {1: 0.5}), asks_bonus=False)
    lengths = feed(schedule, 0.0, rounds=400)
    drafted = [i for i, length in enumerate(lengths) if length]
    gaps = [b - a for a, b in itertools.pairwise(drafted) if b - a > 1]
    assert sum(length == 0 for length in lengths) > 340
    assert gaps == sorted(gaps)
    assert max(gaps) > 2 * min(gaps)
    again = feed(schedule, 1.0, rounds=400)
    assert again[-1] > 0  # and comes back when it pays


def test_the_others():
    constant = Schedule(3)
    constant.update([3], [3])
    assert constant.length == 3
    heuristic = Heuristic(3)
    lengths = []
    for kept in ([3], [2], [4, 4], [0, 6]):
        heuristic.update([heuristic.length] * len(kept), kept)
        lengths.append(heuristic.length)
    assert lengths == [5, 4, 6, 5]


def test_a_trees_size_is_the_best_one():
    """By brute force over all sizes, before and after the head's promises were found too high."""
    costs = Costs({1: 1.0, 4: 1.1, 64: 4.0}, {1: 0.2, 4: 0.3})
    schedule = ExpectedTree(costs, asks_bonus=False)
    reach = [0.9, 0.7, 0.5, 0.3, 0.1, 0.05, 0.01]

    def wanted(trust):
        def rate(n):
            verify = 1 + 0.1 * (n - 1) / 3 if n <= 4 else 1.1 + 2.9 * (n - 4) / 60
            return (1 + trust * sum(reach[: n - 1])) / (verify + 0.2 + (schedule.length - 1) * 0.3)

        return max(range(2, 9), key=rate)

    first = schedule.choose(lambda: reach)
    assert first == wanted(1.0) == schedule.size
    for _ in range(60):  # of what the head promises a quarter is accepted
        promised = sum(reach[: schedule.choose(lambda: reach) - 1])
        schedule.update(
            [schedule.length] * 40, [round(promised / 4 * (i + 1)) - round(promised / 4 * i) for i in range(40)]
        )
        if not schedule.length:
            break
    assert schedule.trust == pytest.approx(0.25, abs=0.05)


def test_a_trees_depth_follows_the_acceptance_of_its_levels():
    deep, shallow = (ExpectedTree(Costs({1: 1.0, 64: 2.0}, {1: 0.1}), asks_bonus=False) for _ in range(2))
    for _ in range(40):
        deep.choose(lambda: [0.9] * 20)
        deep.update([deep.length], [deep.length])
        shallow.update([shallow.length], [0])
    assert deep.length == ExpectedTree.MOST
    assert shallow.length in (0, ExpectedTree.PROBE)


@pytest.mark.parametrize("slope", [0.01, 0.03, 0.06, 0.12])
def test_a_small_tree_is_left_when_everything_is_accepted(slope):
    """A forward gets dearer with each node, and no sibling is worth one: the tree has to become deeper to become larger."""
    times = {n: 1 + slope * (n - 1) for n in (1, 2, 3, 4, 8, 16, 32, 64)}
    schedule = ExpectedTree(Costs(times, {1: 0.1, 4: 0.12}), asks_bonus=False)

    def reach():
        chain = [0.97**d for d in range(1, schedule.length + 1)]
        return sorted([*chain, *(0.03 * x * 0.5**i for x in [1, *chain[:-1]] for i in (1, 2, 3))], reverse=True)

    for accepted in (False, True):
        for _ in range(200):
            if schedule.length:
                schedule.choose(reach)
            schedule.update([schedule.length], [schedule.length * accepted])
    assert schedule.length == ExpectedTree.MOST
    assert schedule.size > ExpectedTree.MOST


def test_no_level_is_searched_that_the_tree_has_no_node_for():
    """A forward over three nodes costs what one over one does, and over four three times as much: two levels are all that
    three nodes can hold, however much is accepted."""
    schedule = ExpectedTree(Costs({1: 1.0, 3: 1.0, 4: 3.0, 64: 30.0}, {1: 0.1, 4: 0.1}), asks_bonus=False)
    for _ in range(20):
        schedule.choose(lambda: [0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
        schedule.update([schedule.length], [min(schedule.length, schedule.size - 1)])
    assert (schedule.size, schedule.length) == (3, 2)


def test_a_fixed_tree_does_not_look_at_its_candidates():
    assert TreeSchedule(8, 3).choose(lambda: pytest.fail("looked")) == 8


@pytest.mark.parametrize("seed", range(20))
def test_a_lookup_offers_the_best_length_for_the_matches(seed):
    """By definition, from lists of what became of candidates after so many matching tokens and how long ago."""
    dice = random.Random(seed)
    slope, far, looks = dice.uniform(0.005, 0.3), sys.maxsize, []
    schedule = ExpectedLookup(Costs({1: 1.0, 21: 1 + 20 * slope}, {1: 0.0}))

    def rate(matched, gamma):
        def alpha(k):
            k = min(k, 16)
            here = [(kept, 0.99**age) for at, kept, age in looks if at == k]
            return (4 * k / (k + 3) + sum(w for kept, w in here if kept)) / (4 + sum(w for _, w in here))

        tokens = len(matched)
        for n in filter(None, matched):
            tokens += sum(math.prod(alpha(n + i) for i in range(j)) for j in range(1, gamma + 1))
        return tokens / (1 + slope * gamma)

    for _ in range(25):
        rows, most = (
            [dice.choice([0, 0, 1, 1, 2, 5, 14, far]) for _ in range(dice.choice([1, 3]))],
            dice.choice([3, 20]),
        )
        offered = schedule.offer(rows, most)
        gamma = max(offered)
        assert offered == [gamma if n else 0 for n in rows]
        assert gamma <= most
        assert rate(rows, gamma) == pytest.approx(max(rate(rows, g) for g in range(most + 1)), rel=1e-12)
        tried = dice.randint(0, gamma)  # what processors forbid is taken off
        accepted = [dice.randint(0, tried) for _ in rows]
        schedule.update([tried] * len(rows), accepted)
        looks = [(at, kept, age + 1) for at, kept, age in looks]
        for n, kept in zip(rows, accepted, strict=True):
            looks += [(min(n + j, 16), j < kept, 0) for j in range(min(kept + 1, tried)) if n]


def test_chance_matches_do_not_shorten_a_copy():
    """Of 200 matches of one token none goes on; then 30 tokens have been copied."""
    schedule = ExpectedLookup(Costs({1: 1.0, 21: 3.0}, {1: 0.0}))
    assert schedule.offer([1], 20) != [0]
    chosen = []
    for _ in range(200):
        chosen += schedule.offer([1], 20)
        schedule.update(chosen[-1:], [0])
    assert sum(chosen[50:]) < 20  # one is tried again in a while
    assert sum(chosen[50:]) > 0
    assert schedule.offer([0], 20) == [0]
    for _ in range(4):
        offered = schedule.offer([30], 20)
        assert offered[0] > 5
        schedule.update(offered, offered)
    assert schedule.offer([30], 20)[0] > 15


# --- through generate() -------------------------------------------------------------------------------------------------

DRAFTS = {
    "D": lambda: {"assistant_model": draft()},
    "prompt lookup": lambda: {"prompt_lookup_num_tokens": 4},
    "head": lambda: {"assistant_model": head(target()), "draft_mode": "chain"},
    "tree": lambda: {"assistant_model": head(target()), "draft_mode": "tree"},
}


@pytest.mark.parametrize("drafted", DRAFTS.values(), ids=DRAFTS)
def test_the_text_is_plain_greedy_text(drafted):
    assert torch.equal(lossy(target(), num_assistant_tokens_schedule="expected", **drafted()), plain(target()))


def made(monkeypatch, costs):
    monkeypatch.setattr(calibration, "_known", type(calibration._known)())
    monkeypatch.setattr(calibration, "measured", lambda *models: costs)


LAWS = [hf_lossy.Lenience(0.4), hf_lossy.SpecCascade(0.4, "target")]
LOOKUP = {"assistant_model": None, "prompt_lookup_num_tokens": 3}


@pytest.mark.parametrize(("law", "more"), [*((law, {}) for law in LAWS), (hf_lossy.MinP(0.3), LOOKUP)], ids=str)
def test_the_law_is_not_touched(law, more, monkeypatch):
    """Lengths move between 0 and 20 with the acceptance, which the coins decide."""
    made(monkeypatch, Costs({1: 1.0, 21: 1.5}, {1: 0.28}))
    groups, out = long_run(law, num_assistant_tokens=None, num_assistant_tokens_schedule="expected", **more)
    assert chi_square(groups) > P_VALUE
    assert len({r.drafted for r in out.verification.rounds}) > 3


def test_a_seed_gives_the_same_choices(monkeypatch):
    made(monkeypatch, Costs({1: 1.0, 21: 1.5}, {1: 0.1}))
    options = {"assistant_model": draft(), "do_sample": True, "num_assistant_tokens_schedule": "expected"}
    runs = []
    for _ in range(2):
        stats = hf_lossy.VerificationStats()
        text = lossy(
            target(),
            max_new_tokens=60,
            generator=torch.Generator().manual_seed(3),
            verification_stats=stats,
            **options,
        )
        runs.append((text.tolist(), [r.drafted for r in stats.rounds]))
    assert runs[0] == runs[1]
    assert len(set(runs[0][1])) > 2
    assert stats.settings["num_assistant_tokens_schedule"] == "expected"
    assert stats.settings["draft_seconds"] == {1: 0.1}


@pytest.mark.parametrize("drafted", DRAFTS.values(), ids=DRAFTS)
@pytest.mark.parametrize("longest", range(1, 9))
def test_rows_that_have_no_room_left_end(drafted, longest):
    """The first round of a text may be its last, and so may any later one of a row."""
    rows = torch.cat([PROMPT, torch.full_like(PROMPT, 5), torch.tensor([[1, 2, 3, 4, 5]])])
    for ids in (PROMPT, rows):
        text = lossy(target(), ids, num_assistant_tokens_schedule="expected", max_new_tokens=longest, **drafted())
        assert torch.equal(text, plain(target(), ids, max_new_tokens=longest))


@pytest.mark.parametrize(
    ("options", "pays"),
    [
        ({}, False),
        ({"accounting": True}, True),
        ({"accounting": True, "bonus": "target"}, False),
        ({"verification": "lenience"}, True),
        ({"verification": "lenience", "bonus": "target"}, False),
    ],
    ids=str,
)
def test_a_draft_that_is_asked_anyway_may_as_well_draft(options, pays, monkeypatch):
    """Plain decoding costs t(1) = 1, or 1.6 where q is wanted at every token; 21 accepted tokens 25, or 25.6."""
    made(monkeypatch, Costs({1: 1.0, 21: 13.0}, {1: 0.6}))
    how = {
        "num_assistant_tokens_schedule": "expected",
        "return_dict_in_generate": True,
        "max_new_tokens": 40,
        **options,
    }
    out = lossy(target(), assistant_model=target(), **how)
    assert (max(r.drafted for r in out.verification.rounds) > Expected.PROBE) == pays


def test_what_does_not_pay_is_said_in_the_statistics(monkeypatch):
    made(monkeypatch, Costs({1: 1.0, 21: 9.0}, {1: 5.0}))
    stats = hf_lossy.VerificationStats()
    lossy(target(), assistant_model=draft(), num_assistant_tokens_schedule="expected", verification_stats=stats)
    assert stats.summary()["plain_rounds"] == stats.plain_rounds > 15
    assert stats.block_efficiency < 1.3


def test_forwards_are_timed_once_for_a_pair(monkeypatch):
    calls = []

    def measured(*models):
        calls.append(models)
        return Costs(FLAT, {1: 0.1})

    monkeypatch.setattr(calibration, "_known", type(calibration._known)())
    monkeypatch.setattr(calibration, "measured", measured)
    for ids in (PROMPT, PROMPT, PROMPT[:, :2], PROMPT.repeat(2, 1)):
        lossy(target(), ids, assistant_model=draft(), num_assistant_tokens_schedule="expected")
    assert len(calls) == 2  # one sequence, and two


@pytest.mark.parametrize("length", [5, 40, 56])
@pytest.mark.parametrize("drafted", ["model", "lookup"])
def test_nothing_is_measured_beyond_the_last_position(length, drafted):
    """A model with absolute positions takes no token more."""
    sizes = {"vocab_size": 32, "n_positions": 64, "n_embd": 32, "n_head": 2, "bos_token_id": None, "eos_token_id": None}
    big, small = (GPT2LMHeadModel(GPT2Config(n_layer=layers, **sizes)).eval() for layers in (2, 1))
    ids = torch.randint(0, 32, (1, length))
    how = {"assistant_model": small} if drafted == "model" else {"prompt_lookup_num_tokens": 3}
    text = lossy(big, ids, max_new_tokens=8, num_assistant_tokens_schedule="expected", **how)
    assert torch.equal(text, plain(big, ids, max_new_tokens=8))


def test_measuring_throws_none_of_the_calls_coins():
    big, small, texts = copy.deepcopy(target()), copy.deepcopy(draft()), []
    for _ in range(2):  # the first call measures
        torch.manual_seed(5)
        how = {"do_sample": True, "num_assistant_tokens_schedule": "expected"}
        texts.append(lossy(big, assistant_model=small, **how).tolist())
        after = torch.get_rng_state()
        lossy(copy.deepcopy(big), assistant_model=small, generator=torch.Generator().manual_seed(1), **how)
        assert torch.equal(torch.get_rng_state(), after)
    assert texts[0] == texts[1]


def test_measuring_does_not_count_as_the_texts_time(monkeypatch):
    clock = [1000.0]

    def measured(*models):
        clock[0] += 100
        return Costs(FLAT, {1: 0.1})

    monkeypatch.setattr(calibration, "_known", type(calibration._known)())
    monkeypatch.setattr(calibration, "measured", measured)
    monkeypatch.setattr("time.time", lambda: clock[0])
    text = lossy(target(), assistant_model=draft(), max_time=50.0, num_assistant_tokens_schedule="expected")
    assert clock[0] == 1100
    assert torch.equal(text, plain(target()))


def test_a_pair_that_is_known_waits_for_nobody(monkeypatch):
    made(monkeypatch, Costs(FLAT, {1: 0.1}))
    how = {"assistant_model": draft(), "num_assistant_tokens_schedule": "expected"}
    lossy(target(), **how)
    with calibration._measuring:
        other = threading.Thread(target=lambda: lossy(target(), **how))
        other.start()
        other.join(60)
        waited = other.is_alive()
    other.join()
    assert not waited


def test_real_times_are_positive_and_finite():
    stats = hf_lossy.VerificationStats()
    lossy(target(), assistant_model=draft(), num_assistant_tokens_schedule="expected", verification_stats=stats)
    seconds = [*stats.settings["target_seconds"].values(), *stats.settings["draft_seconds"].values()]
    assert all(0 < s < math.inf for s in seconds)


@pytest.mark.parametrize(
    ("drafted", "acceptance"),
    [
        (lambda: {"assistant_model": target()}, 1.0),
        (lambda: {"assistant_model": scripted([3] * 40, 32)}, 0.0),
        (lambda: {"assistant_model": draft()}, None),
    ],
    ids=["agrees", "never", "D"],
)
def test_it_begins_with_the_rounds_of_a_short_text(drafted, acceptance):
    """Also in a batch, whose first row has padding that is left out."""
    big = scripted([*range(4, 14)] * 4, 32) if acceptance == 0 else copy.deepcopy(target())
    text = PROMPT if acceptance != 0 else PROMPT[:, :4]
    padded = torch.cat([text.new_zeros(1, 2), text], 1).repeat(2, 1)
    mask = torch.ones_like(padded)
    mask[0, :2] = 0
    for ids, given in ((text, {}), (padded, {"attention_mask": mask, "pad_token_id": 0})):
        stats = hf_lossy.VerificationStats()
        more = {"num_assistant_tokens_schedule": "expected", "verification_stats": stats, **given}
        lossy(big, ids, **drafted(), **more)
        rounds = stats.settings["first_rounds"]
        kept, tried = (sum(numbers) for numbers in zip(*rounds, strict=True))
        assert len(rounds) + kept == 32
        assert 0 <= kept <= tried if acceptance is None else kept == acceptance * tried


def test_times_of_trees_are_measured_over_nodes():
    stats = hf_lossy.VerificationStats()
    tree = {"assistant_model": head(target()), "draft_mode": "tree"}
    lossy(target(), num_assistant_tokens_schedule="expected", verification_stats=stats, **tree)
    assert max(stats.settings["target_seconds"]) == ExpectedTree.READS
    assert 2 <= stats.settings["tree_size"] <= ExpectedTree.READS


@pytest.mark.parametrize("given", [{"tree_size": 8}, {"tree_depth": 2}], ids=str)
def test_a_shape_beside_it_is_refused(given):
    with pytest.raises(LossyError, match=r"tree_\w+=\d has no meaning with .*'expected'.*leave it out"):
        lossy(target(), assistant_model=head(target()), num_assistant_tokens_schedule="expected", **given)


def test_the_heuristic_of_chains_is_refused_for_a_tree():
    with pytest.raises(LossyError, match=r"'heuristic' is for chains: use 'expected'"):
        lossy(target(), assistant_model=head(target()), num_assistant_tokens_schedule="heuristic")


def test_a_length_beside_it_is_refused():
    with pytest.raises(LossyError, match=r"num_assistant_tokens=5 has no meaning with .*'expected'.*leave it out"):
        lossy(target(), assistant_model=draft(), num_assistant_tokens=5, num_assistant_tokens_schedule="expected")
