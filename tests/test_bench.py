"""The benchmark's arithmetic: expected tokens a round against enumerated coins, share outside forwards, intervals, files.
Nothing here looks at how long something took."""

from __future__ import annotations

import functools
import itertools
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
import typer
from transformers import CompileConfig

from hf_lossy import bench
from hf_lossy.bench import batches, compiled, memory, throughput, trees
from hf_lossy.bench import coupling as coupling_bench
from hf_lossy.bench.cases import LAWS, cases
from hf_lossy.bench.estimates import bootstrap, clustered_mean, rotated, spread, student
from hf_lossy.bench.rounds import record
from hf_lossy.cli.bench import bench as command
from hf_lossy.compat import CACHE_NAME, default_cache
from hf_lossy.errors import LossyError
from hf_lossy.generation import VerificationStats
from hf_lossy.generation.statistics import Round, RowStats
from hf_lossy.loading import Pair, load_pair

from . import models, oracle
from .pairs import random_pairs

SIZES = [(3, 2), (4, 3)]
every_case = pytest.mark.parametrize(("law_", "kind"), list(cases()), ids=lambda x: getattr(x, "__name__", str(x)))


def positions(vocabulary: int, gamma: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """p and q at each position, whatever was drafted before."""
    return random_pairs(vocabulary, gamma, seed=vocabulary)


def thresholds(law_, name: str, vocabulary: int, gamma: int, block: tuple[int, ...]) -> list[float]:
    """h_1 … h_γ of a drafted block, written out."""
    pairs = positions(vocabulary, gamma)
    pi = [oracle.induced(law_.name, p, q, **law_.parameters()) for p, q in pairs]
    ratios = [pi[i][x] / pairs[i][1][x] for i, x in enumerate(block)]
    if name == "token":
        return [min(1.0, r) for r in ratios]
    if name == "reference":
        rules = [oracle.published(law_.name, p, q, **law_.parameters()) for p, q in pairs]
        return [rules[i][0][x] for i, x in enumerate(block)]
    found, prefix = [], 1.0
    for i, r in enumerate(ratios):
        prefix = min(1.0, prefix * r)
        if i + 1 < gamma:
            q = pairs[i + 1][1]
            spare = sum(max(0.0, prefix * pi[i + 1][v] - q[v]) for v in range(vocabulary))
            found.append(1.0 if spare + 1 - prefix == 0 else spare / (spare + 1 - prefix))
        else:
            found.append(prefix)
    return found


@every_case
@pytest.mark.parametrize(("vocabulary", "gamma"), SIZES)
@pytest.mark.parametrize("stop", [None, 1])
def test_expected_tokens_are_those_of_all_coins(law_, kind, vocabulary, gamma, stop):
    """Every drafted block, every outcome of the γ coins with its probability, the coupling's own decision for each."""
    blocks = list(itertools.product(range(vocabulary), repeat=gamma))
    drafted = torch.tensor(blocks)
    p, q = (
        torch.tensor(np.array([pair[side] for pair in positions(vocabulary, gamma)])).expand(len(blocks), -1, -1)
        for side in (0, 1)
    )
    h = torch.tensor([thresholds(law_, kind.name, vocabulary, gamma, block) for block in blocks], dtype=torch.float64)
    ends = torch.tensor([(*block, stop).index(stop) + 1 if stop in (*block, stop) else 0 for block in blocks])
    counted = torch.zeros(len(blocks), dtype=torch.float64)
    for below in itertools.product((True, False), repeat=gamma):
        low = torch.tensor(below)
        weight = torch.where(low, h, 1 - h).prod(1)
        emitted = kind(law_, p, q, drafted)
        emitted.acceptance()  # as in a round, where it comes before the count
        tokens = emitted.accepted(torch.where(low, h / 2, (1 + h) / 2)) + 1
        counted += weight * (tokens if stop is None else torch.minimum(tokens, ends))
    stops = None if stop is None else drafted == stop
    expected = bench.expected_tokens(kind(law_, p, q, drafted), stops)
    torch.testing.assert_close(expected, counted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("law_", LAWS, ids=str)
def test_over_all_blocks_token_is_the_geometric_sum_and_block_is_no_less(law_):
    vocabulary, gamma = 4, 3
    [(p, q)] = positions(vocabulary, 1)
    blocks = torch.cartesian_prod(*[torch.arange(vocabulary)] * gamma)
    both = (torch.tensor(x).expand(len(blocks), gamma, -1) for x in (p, q))
    weights = torch.tensor(q)[blocks].prod(1)
    p_rows, q_rows = both
    tokens = {
        kind.name: weights @ bench.expected_tokens(kind(law_, p_rows, q_rows, blocks))
        for law, kind in cases()
        if law == law_
    }
    accept = np.minimum(oracle.induced(law_.name, p, q, **law_.parameters()), q).sum()
    assert float(tokens["token"]) == pytest.approx(sum(accept**k for k in range(gamma + 1)), abs=1e-12)
    assert tokens["block"] >= tokens["token"] - 1e-12
    assert tokens.get("reference", tokens["token"]) <= tokens["token"] + 1e-12


# --- rounds recorded on real (tiny) models ------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_recorded_rounds_hold_what_uncached_forwards_give(temperature):
    pair, text = models.tiny_pair(), torch.tensor([[5, 3, 8, 1, 5, 9, 2]])
    lengths = [2, 3, 6]
    found = list(record(pair, text, lengths, torch.Generator().manual_seed(0), temperature))
    for length, seen in zip(lengths, found, strict=True):
        whole = torch.cat([text[:, :length], seen.tree.tokens], 1)
        for probs, model, end in ((seen.p, pair.target, length + 3), (seen.q, pair.draft, length + 2)):
            expected = (model(whole).logits[:, length - 1 : end] / temperature).double().softmax(-1)
            torch.testing.assert_close(probs, expected, rtol=0, atol=1e-6)
        assert not seen.stops.any()


@torch.no_grad()
@pytest.mark.parametrize("shape", [{"draft_mode": "chain"}, {"draft_mode": "tree", "tree_size": 6, "tree_depth": 1}])
def test_recorded_candidates_of_a_head_hold_what_uncached_forwards_give(shape):
    """p at every node by a forward over its own path; q by drafting anew from that prefix alone."""
    pair, text = models.head_pair(), torch.tensor([[5, 3, 8, 1, 5, 9, 2]])
    found = list(record(pair, text, [3, 4, 6], torch.Generator(), 0.7, **shape))
    for length, seen in zip([3, 4, 6], found, strict=True):
        tokens, tree = [0, *seen.tree.tokens[0].tolist()], seen.tree
        assert len(tokens) > 3
        for node in range(len(tokens)):
            whole = torch.cat(
                [
                    text[:, :length],
                    torch.tensor([[tokens[n] for n in tree.seen[0, node].nonzero().flatten().tolist()[1:]]]).long(),
                ],
                1,
            )
            expected = (pair.target(whole).logits[:, -1] / 0.7).double().softmax(-1)
            torch.testing.assert_close(seen.p[:, node], expected, rtol=0, atol=1e-6)
        alone = next(record(pair, text[:, :length], [length], torch.Generator(), 0.7, **shape))
        torch.testing.assert_close(seen.q, alone.q, rtol=0, atol=1e-6, equal_nan=True)
        assert [bool(q.isfinite().all()) for q in seen.q[0]] == [bool(c) for c in tree.children()][: seen.q.shape[1]]


def test_efficiency_of_a_pair():
    found = bench.measure_efficiency(models.tiny_pair(), rounds=12, sequences=4, max_new_tokens=6)
    assert found["expected"]["rounds"] == 6  # one prompt's text, every position of it
    assert set(found["expected"]["laws"]) == set(found["counted"]["laws"]) == {str(law) for law in LAWS}
    for law_, kind in cases():
        for part in ("expected", "counted"):
            assert 1 <= found[part]["laws"][str(law_)][kind.name]["mean"] <= 4
    json.dumps(found)


def test_prompt_lookup_has_no_couplings_to_compare():
    pair = Pair("lookup", models.target(), None, models.char_tokenizer(), ["abab"], {"prompt_lookup_num_tokens": 3})
    assert "left_out" in bench.measure_efficiency(pair, 1, 1, 4)
    names = [m.name for m in throughput.methods(pair, 4)]
    assert not any("cos" in name for name in names)
    assert len(names) == 8


# --- EAGLE-3 heads ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_trees():
    pair = models.head_pair()
    state = torch.get_rng_state()
    found = list(trees.measure_trees(pair, prompts=3, repeats=2, max_new_tokens=8, sequences=4))
    assert torch.equal(torch.get_rng_state(), state)
    assert pair.target.dtype == pair.head.dtype == torch.float32
    return found


def test_trees_are_handed_over_section_by_section(on_trees):
    assert [list(figures)[1:] for figures in on_trees] == [list(trees.SECTIONS[:n]) for n in (1, 2, 3)]
    assert on_trees[-1]["settings"]["sequences"] == 4
    json.dumps(on_trees)


def test_acceptance_of_chains_and_trees(on_trees):
    found = on_trees[-1]["acceptance"]
    assert [(one["name"], one["temperature"]) for one in found] == [
        ("chain, γ = 4", 0),
        ("tree 60/5/10", 0),
        ("chain, γ = 4", 0.7),
        ("tree 60/5/10", 0.7),
        ("sampled chain, γ = 4", 0.7),
    ]
    for one in found:
        assert one["mean_acceptance_length"]["clusters"] == 4
        kept = [position["mean"] for position in one["per_position"]]
        assert len(kept) > 4 if one["name"].startswith("tree") else len(kept) == 4
        assert all(0 <= share <= 1 for share in kept)
    chain, tree = found[:2]
    assert 1 <= chain["mean_acceptance_length"]["mean"] <= tree["mean_acceptance_length"]["mean"]


def test_speed_of_shapes_beside_plain_decoding(on_trees):
    found = on_trees[-1]["speed"]
    assert list(found) == ["float32", "bfloat16"]
    for figures in found.values():
        assert [one["name"] for one in figures["shapes"]] == [trees.shape_name(shape) for shape in trees.SHAPES]
        for one in figures["shapes"]:
            assert one["ratio"]["repeats"] == one["break_even"]["repeats"] == 2
            assert one["mean_acceptance_length"]["clusters"] == 3
            assert one["break_even"]["median"] > 0
        assert figures["pays"] == (max(one["speed_up"]["median"] for one in figures["shapes"]) > 1)
    assert {one["same_text"] for one in found["float32"]["shapes"]} == {3}


def test_laws_on_a_tree_under_both_readings(on_trees):
    found = on_trees[-1]["laws"]
    assert (found["name"], found["prompts"]) == ("tree 60/5/10", 1)
    cases = {(one["law"], one["draft_probs"]): one for one in found["laws"]}
    laws = {law for law, _ in cases}
    assert {(law, reading) for law in laws for reading in trees.READINGS} == cases.keys()
    assert {"lossless", "lenience(0.2)", "lenience(0.6)", "min_p(0.1)", "min_p(0.5)"} <= laws
    assert cases["lossless", "head"]["tv"]["mean"] == 0
    assert cases["lossless", "point_mass"]["tv"]["mean"] == pytest.approx(0, abs=1e-6)  # by another sum
    assert 0 < cases["lenience(0.2)", "head"]["max_log_ratio"] <= math.log(5) + 1e-5
    assert all(one["tokens"] == 8 for one in cases.values())
    # the same law of p alone, whichever way the candidates are read; q = 1 is another rule for the laws of p and q
    assert cases["cos(0.2)", "head"]["tv"] != cases["cos(0.2)", "point_mass"]["tv"]


def test_a_tree_in_another_dtype_leaves_the_first_alone():
    pair = models.head_pair()
    pair.head.borrow_embedding(pair.target)
    before = [p.clone() for p in pair.target.parameters()]
    twin = trees.in_dtype(pair, torch.bfloat16)
    assert twin.target.dtype == twin.draft.dtype == torch.bfloat16
    assert twin.draft.rotary.inv_freq.dtype == torch.float32
    assert all(torch.equal(a, b) for a, b in zip(before, pair.target.parameters(), strict=True))
    assert pair.head.embed(torch.tensor([[1]])).dtype == torch.float32


def test_mean_acceptance_length_counts_the_rounds_that_drafted():
    rounds = [Round(0, 0, 1), Round(4, 2, 3), Round(4, 4, 5)]
    rows = [RowStats(rounds=rounds), RowStats(rounds=[Round(0, 0, 1), Round(9, 1, 2, depth=3)])]
    assert trees.acceptance_length(rows)["mean"] == pytest.approx((3 + 5 + 2) / 3)
    assert trees.acceptance_length(rows[:1], [7])["mean"] == 4
    kept = [position["mean"] for position in trees.per_position(rows)]
    assert kept == pytest.approx([1, 2 / 3, 1 / 3, 1 / 2])  # the last level was drafted in two rounds only


def test_the_clock_leaves_the_prompt_out():
    pair, clock = models.head_pair(), trees.Clock()
    for _ in range(2):
        pair.target.generate(**pair.inputs("hello"), do_sample=False, max_new_tokens=6, streamer=clock)
    assert [steps for _, steps in clock.calls] == [5, 5]
    clock.calls = [(1.0, 5), (2.0, 5), (9.0, 3)]
    assert clock.step(slice(0, 2)) == pytest.approx(0.3)


def test_parts_that_make_no_sense_are_left_out():
    pair = models.head_pair()
    assert "left_out" in bench.measure_throughput(pair, 1, 1, 4)
    assert "left_out" in bench.measure_efficiency(pair, 1, 1, 4)
    assert ["left_out" in figures for figures in bench.measure_trees(models.tiny_pair(), 1, 1, 4, 1)] == [True]


def test_the_command_prints_and_writes_the_trees(on_trees, tmp_path, monkeypatch, capsys):
    module = sys.modules[command.__module__]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module.console, "_width", 200)
    monkeypatch.setattr(module, "open_pair", lambda *_: models.head_pair())
    monkeypatch.setattr("hf_lossy.bench.report.measure_trees", lambda *_, **__: iter(on_trees))
    command(pair=["smollm2-eagle3"], only=["throughput", "efficiency", "trees"], write=True)
    written = json.loads((tmp_path / bench.RESULTS / "smollm2-eagle3.json").read_text())
    assert written["trees"].keys() == {*on_trees[-1], "provenance"}
    assert "left_out" in written["efficiency"]
    said = capsys.readouterr().out
    assert said.count("4 prompts of 8 tokens") == 1  # each section is printed once
    for text in ("throughput left out", "tree 60/5/10", "bfloat16", "lenience(0.2)", "overshoot"):
        assert text in said


# --- throughput ---------------------------------------------------------------------------------------------------------


def test_throughput_compares_equal_work_and_puts_the_draft_back():
    pair = models.tiny_pair()
    before, state = pair.draft.generation_config, torch.get_rng_state()
    found = bench.measure_throughput(pair, prompts=3, repeats=2, max_new_tokens=8)
    assert pair.draft.generation_config is before
    assert torch.equal(torch.get_rng_state(), state)
    assert found["same_greedy_text"] == {"ours, greedy": 3, "transformers, greedy": 3}
    assert {m["tokens"] for m in found["methods"].values()} == {2 * 3 * 8}
    assert [(r["of"], r["to"]) for r in found["ratios"]] == list(throughput.COMPARISONS)
    assert all(r["repeats"] == 2 and len(r["interval"]) == 2 for r in found["ratios"])
    assert found["methods"]["ours, sampled"]["statistics"]["emitted"] == 2 * 3 * 8
    json.dumps(found)


def test_transformers_drafts_as_many_tokens_as_we_do():
    pair, fed = models.tiny_pair(), []
    hook = pair.target.register_forward_pre_hook(
        lambda _, args, kw: fed.append(kw["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        with throughput.transformers_draft_length(pair.draft, 3):
            pair.target.generate(**pair.inputs("hello"), assistant_model=pair.draft, do_sample=False, max_new_tokens=20)
    finally:
        hook.remove()
    assert fed[0] == 5 + 3  # the prompt and the first block
    assert max(fed[1:]) == fed[1] == 1 + 3


def test_rate_ratios():
    method = throughput.Method("a", False, {})
    fast = throughput.Measured(method, [[10, 30], [20, 20]], [[1, 1], [1, 1]], forwards=[[3, 3], [3, 3]])
    slow = throughput.Measured(method, [[10, 10], [10, 10]], [[1, 1], [2, 2]], forwards=[[4, 4], [4, 8]])
    found = throughput.ratio(fast, slow)
    assert found["median"] == pytest.approx((2 + 4) / 2)
    assert found["interval"] is None  # two prompts tell nothing about others
    assert found["rounds_per_second"]["median"] == pytest.approx((3 / 4 + 3 / 3) / 2)


def test_outside_forwards_leaves_the_first_round_out():
    stats = VerificationStats(rows=[RowStats(rounds=[Round(3, 2, 3), Round(3, 3, 4), Round(3, 1, 2)])])
    stats.seconds |= {"prefill": 0.9, "draft": 1.6, "verify": 3.0, "couple": 1.0, "cache": 0.5}
    stats.add_forwards((0.8, 0.4), (3.5, 2.2))
    found = bench.outside_forwards(stats)
    # rounds after the first: 1.6 + 3.0 + 1.0 + 0.5; forwards in them: 2.7 of the target, 1.8 of the draft
    assert found["share"] == pytest.approx((6.1 - 2.7 - 1.8) / 6.1)
    assert found["rounds"] == 2
    each = found["microseconds_per_round"]
    assert each == pytest.approx({"round": 3.05e6, "target_forward": 1.35e6, "draft_forward": 0.9e6, "outside": 0.8e6})
    assert found["stage_microseconds_per_round"]["draft"] == pytest.approx(0.8e6)
    parts = found["outside_microseconds_per_round"]
    assert parts == pytest.approx({"draft_and_couple": 0.4e6, "verify": 0.15e6, "cache": 0.25e6})


# --- one coupling -------------------------------------------------------------------------------------------------------


def test_only_methods_of_a_name_are_measured():
    pair = load_pair("arithmetic")
    found = throughput.measure_throughput(pair, 2, 1, 8, holding="T = 1e-4")
    assert list(found["methods"]) == ["transformers, sampled at T = 1e-4", "ours, sampled at T = 1e-4"]
    assert [(r["of"], r["to"]) for r in found["ratios"]] == [tuple(reversed(found["methods"]))]
    assert found["same_greedy_text"] == {}
    with pytest.raises(LossyError, match=r"no method's name holds 'colder': there are plain, greedy"):
        throughput.measure_throughput(pair, 2, 1, 8, holding="colder")


def test_batches_beside_single_texts():
    pair = load_pair("arithmetic")
    found = batches.measure_batches(pair, prompts=5, repeats=2, max_new_tokens=24)
    assert found["settings"]["prompts"] == 8  # whole batches
    assert found["same_greedy_text"] == 8
    for mode in ("greedy", "sampled"):
        assert [one["batch_size"] for one in found["modes"][mode]] == [1, 8]
        one, eight = (case["tokens_per_second"]["median"] for case in found["modes"][mode])
        assert found["modes"][mode][0]["ratio"]["median"] == 1
        assert 0.3 * eight / one < found["modes"][mode][1]["ratio"]["median"] < 3 * eight / one
    json.dumps(found)


@pytest.mark.parametrize("name", ["arithmetic", "arithmetic-eagle3"])
def test_a_length_that_follows_beside_fixed_ones(name):
    found = batches.measure_schedule(load_pair(name), prompts=2, repeats=1, max_new_tokens=16)
    assert found["same_text"] == 2
    assert {"expected", "γ = 1", "γ = 20", "plain"} <= found["methods"].keys()
    assert set(found["best"].values()) <= found["methods"].keys()
    schedules = {"expected"} if name == "arithmetic" else {"expected", "expected tree"}
    assert {one["of"] for one in found["ratios"]} == found["best"].keys() == found["mean_length"].keys() == schedules
    assert {one["of"] for one in found["ratios"] if one["to"] == "plain"} == schedules
    assert 0 < found["mean_length"]["expected"] <= 20
    assert found["target_seconds"].keys() == schedules
    assert {1, 2, 3, 4, 8, 21} == found["target_seconds"]["expected"].keys()
    json.dumps(found)


def test_compiled_forwards_beside_others(monkeypatch):
    monkeypatch.setattr(
        compiled, "CompileConfig", functools.partial(CompileConfig, backend="eager")
    )  # needs no compiler
    found = compiled.measure_compiled(load_pair("arithmetic"), prompts=2, repeats=1, max_new_tokens=8)
    torch.compiler.reset()
    assert found["settings"]["compile_config"]["backend"] == "eager"
    refused = set(found["refused"])  # by older transformers, whose assisted generation took no static cache
    assert refused in (set(), {f"transformers, {mode}, compiled" for mode in ("greedy", "sampled")})
    assert len(found["methods"]) + len(refused) == 12
    assert found["warm_up_seconds"].keys() == found["methods"].keys()
    assert set(found["same_greedy_text"].values()) == {2}
    pairs = {(r["of"], r["to"]) for r in found["ratios"]}
    for mode in ("greedy", "sampled"):
        ours, theirs = (f"{who}, {mode}, compiled" for who in ("ours", "transformers"))
        beside = {(ours, theirs), (ours, f"transformers, {mode}"), (theirs, f"transformers, {mode}")}
        assert {pair for pair in beside if not refused & {*pair}} <= pairs
    assert "left_out" in compiled.measure_compiled(load_pair("arithmetic-eagle3"), 2, 1, 8)
    json.dumps(found)


def test_memory_is_noted_through_a_long_text():
    pair = load_pair("arithmetic")
    found = memory.measure_memory(pair, tokens=1000)
    assert [tokens for tokens, _ in found["points"]] == [0, 500, 1000]  # no end of text stopped it
    cache = default_cache(pair.target)
    with torch.no_grad():
        pair.target(torch.ones(1, 7, dtype=torch.long), **{CACHE_NAME: cache})
    held = sum(x.numel() * x.element_size() for layer in cache.layers for x in (layer.keys, layer.values))
    assert memory.cache_bytes(pair.target) == held / 7
    assert found["cache_bytes_per_token"] > held / 7
    assert "left_out" in memory.measure_memory(load_pair("arithmetic-eagle3"))
    json.dumps(found)


def test_one_coupling_is_the_loops_own():
    found = bench.measure_coupling(repeats=3, vocabulary=50, gamma=4)
    assert [(c["law"], c["coupling"]) for c in found["couplings"]] == [(str(law), kind.name) for law, kind in cases()]
    assert all(0 <= c["mean_accepted"] <= 4 and c["peak_memory"] > 0 for c in found["couplings"])
    assert all(c["softmax_pairs"]["repeats"] == 3 for c in found["couplings"])
    json.dumps(found)


def test_refusals_come_at_every_place():
    rounds = [coupling_bench.peaked(500, 7, seed, torch.device("cpu")) for seed in range(200)]
    coins = torch.Generator().manual_seed(0)
    law_, kind = next(iter(cases()))
    accepted = [coupling_bench.round_of(law_, kind, case, coins)()[0] for case in rounds]
    assert set(accepted) == set(range(8))
    top = torch.stack([case.p.amax(-1) for case in rounds])
    assert 0.3 < float(top.median()) < 0.95


def test_peak_memory_is_what_is_held_at_once():
    x = torch.zeros(100_000)
    # two results at once; the scalars that become tensors on the way are a few bytes
    assert coupling_bench.peak_bytes(lambda: x * 2 + 1, x.device) == pytest.approx(2 * x.nbytes, rel=1e-3)


# --- estimates ----------------------------------------------------------------------------------------------------------


def test_rotation_puts_everything_first_once():
    assert [rotated("abc", turn) for turn in (0, 1, 2, -1)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["c", "a", "b"],
    ]


def test_spread():
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == {"median": 3.0, "quartiles": [2.0, 4.0], "repeats": 5}
    assert spread([7.0]) == {"median": 7.0, "quartiles": [7.0, 7.0], "repeats": 1}


@pytest.mark.parametrize(("degrees", "tolerance"), [(2, 0.04), (5, 2e-3), (20, 1e-4), (1000, 1e-6)])
def test_student(degrees, tolerance):
    assert student(degrees) == pytest.approx(scipy.stats.t.ppf(0.975, degrees), rel=tolerance)


def test_clustered_mean_with_clusters_of_one_is_the_usual_interval():
    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
    found = clustered_mean(values, [1.0] * 8, range(8))
    assert found["mean"] == pytest.approx(np.mean(values))
    usual = student(7) * np.std(values, ddof=1) / math.sqrt(8)
    assert found["half_width"] == pytest.approx(usual)
    doubled = clustered_mean(values * 2, [1.0] * 16, [*range(8), *range(8)])
    assert doubled["half_width"] == pytest.approx(usual)  # repeating what is known tells nothing new
    assert clustered_mean([1.0, 2.0], [1.0, 1.0], "ab")["half_width"] is None


def test_bootstrap():
    values = np.random.default_rng(0).normal(size=200)
    low, high = bootstrap(200, lambda chosen: float(values[chosen].mean()))
    half = 1.96 * values.std() / math.sqrt(200)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.2 * half)
    assert bootstrap(2, lambda chosen: 0.0) is None


# --- the command and its files ------------------------------------------------------------------------------------------


def test_a_part_is_written_whole_beside_the_others(tmp_path):
    path = bench.save(tmp_path, "arithmetic", "efficiency", {"x": 1})
    bench.save(tmp_path, "arithmetic", "throughput", {"y": 2})
    bench.save(tmp_path, "arithmetic", "efficiency", {"x": 3})
    assert json.loads(path.read_text()) == {"name": "arithmetic", "throughput": {"y": 2}, "efficiency": {"x": 3}}


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = bench.save(tmp_path, "arithmetic", "efficiency", {"x": 1})
    whole = path.read_text()

    def interrupted(self, text, **kwargs):
        with self.open("w") as file:
            file.write(text[: len(text) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.save(tmp_path, "arithmetic", "throughput", {"y": 2})
    assert path.read_text() == whole
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["/x/bin/hf-lossy", "bench", "--method", "T = 1e-4"], "hf-lossy bench --method 'T = 1e-4'"),
        (["/x/hf_lossy/__main__.py", "bench"], "python -m hf_lossy bench"),
    ],
)
def test_provenance_names_a_command_that_can_be_run(argv, command, monkeypatch):
    monkeypatch.setattr("sys.argv", argv)
    assert bench.with_provenance({})["provenance"]["command"] == command


def test_provenance_is_with_every_part():
    assert {"command", "versions", "machine"} <= set(bench.with_provenance({"x": 1})["provenance"])


def test_defaults_give_way_to_what_was_given():
    usual = bench.defaults("arithmetic", prompts=None)
    assert bench.defaults("arithmetic", prompts=3, repeats=None).prompts == 3
    assert bench.defaults("arithmetic", prompts=3).repeats == usual.repeats


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"pair": ["arithmatic"]}, "Did you mean 'arithmetic'"), ({"only": ["couplings"]}, "Did you mean 'coupling'")],
)
def test_unknown_names(arguments, message):
    with pytest.raises(LossyError, match=message):
        command(**arguments)


def test_a_pair_that_fails_costs_only_itself(tmp_path, monkeypatch, capsys):
    """One pair is not installed, one fails, the third is measured and written."""

    def open_pair(name, *_):
        if name == "qwen-coder":
            raise LossyError("not there: install it")
        return Pair(name, None, None, None, [])

    def measure_pair(pair, settings, parts, done, track):
        done("efficiency", {"left_out": "for a test"})
        if pair.name == "arithmetic":
            raise RuntimeError("boom")

    module = sys.modules[command.__module__]  # hf_lossy.cli.bench names the function
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "open_pair", open_pair)
    monkeypatch.setattr(module, "measure_pair", measure_pair)
    with pytest.raises(typer.Exit) as exit_:
        command(write=True, only=["efficiency"])
    assert exit_.value.exit_code == 1
    written = sorted(p.stem for p in (tmp_path / bench.RESULTS).iterdir())
    assert written == ["arithmetic", "arithmetic-eagle3", "smollm2", "smollm2-eagle3"]
    said = capsys.readouterr().err
    assert "left out qwen-coder: not there: install it" in said
    assert "RuntimeError: boom" in said
    with pytest.raises(typer.Exit):  # named, it has to be there
        command(pair=["qwen-coder"], only=["efficiency"])
    assert "qwen-coder failed: not there: install it" in capsys.readouterr().err
