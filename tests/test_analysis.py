"""Each analysis against its closed form, which stands here as loops over single vectors and not in the package."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch

from hf_lossy import law
from hf_lossy.analysis import ANALYSES, defaults, differences, divergence, families, lenience, tree, truncation
from hf_lossy.analysis.settings import together
from hf_lossy.bench.rounds import Recorded
from hf_lossy.cli.analyse import analyse as command
from hf_lossy.couplings import TokenCoupling, sibling_walk
from hf_lossy.errors import LossyError
from hf_lossy.tree import Tree

from . import models, oracle
from .pairs import normalised, random_pairs

PAIRS = random_pairs(8, 60, seed=3)
TRUNCATIONS = (("min_p", {"p_base": 0.3}), ("min_p", {"p_base": 0.05}), ("eta", {"epsilon": 0.2}))
VERIFIERS = tuple(
    (name, {knob: strength})
    for name, knob, strengths in (("speccascade", "p_base", (0.1, 0.5)), ("typical", "epsilon", (0.09, 0.3)))
    for strength in strengths
)
truncations = pytest.mark.parametrize(("name", "parameters"), TRUNCATIONS, ids=str)
verifiers = pytest.mark.parametrize(("name", "parameters"), VERIFIERS, ids=str)


def tensors(*vectors: np.ndarray) -> list[torch.Tensor]:
    return [torch.tensor(np.asarray(v)) for v in vectors]


def allowed(p: np.ndarray, parameters: dict[str, float]) -> list[bool]:
    """The set that a law with these parameters truncates to."""
    if "p_base" in parameters:
        return oracle.min_p_set(p, parameters["p_base"])
    return oracle.eta_set(p, parameters["epsilon"], math.sqrt(parameters["epsilon"]))


def parts(p: np.ndarray, q: np.ndarray, keep: list[bool]) -> tuple[float, float, float]:
    """Σ min(p, q), and its change by truncation: gain on A and loss off it."""
    mass = sum(p[x] for x in range(len(p)) if keep[x])
    before = sum(min(p[x], q[x]) for x in range(len(p)))
    gain = sum(min(p[x] / mass, q[x]) - min(p[x], q[x]) for x in range(len(p)) if keep[x])
    loss = sum(min(p[x], q[x]) for x in range(len(p)) if not keep[x])
    return before, gain, loss


def geometric(a: float, b: float, gamma: int) -> float:
    """(Σ_{k≤γ} a^k − Σ_{k≤γ} b^k) / (a − b), without dividing."""
    return sum(a**i * b ** (k - 1 - i) for k in range(1, gamma + 1) for i in range(k))


def of_chains(pairs, gamma: int = 1, seed: int = 0) -> list[tuple[int, Recorded]]:
    """Recorded rounds whose p and q are given; those of one pair at all positions."""
    rng = np.random.default_rng(seed)
    found = []
    for i, (p, q) in enumerate(pairs):
        drafted = torch.tensor(rng.choice(len(q), size=(1, gamma), p=q))
        both = [torch.tensor(np.tile(x, (1, n, 1))) for x, n in ((p, gamma + 1), (q, gamma))]
        found.append((i // 3, Recorded(Tree.chain(drafted), *both, torch.zeros_like(drafted, dtype=torch.bool))))
    return found


def given(monkeypatch, module, found) -> None:
    """Let an analysis look at these rounds."""
    monkeypatch.setattr(module, "recorded", lambda pair, settings, track, **drafting: iter(found))


def test_rounds_of_one_length_are_looked_at_together():
    rounds = [*of_chains(PAIRS[:4], gamma=2), *of_chains(PAIRS[4:7], gamma=1), *of_chains(PAIRS[7:9], gamma=2)]
    found = list(together(rounds))
    assert [(texts, seen.q.shape) for texts, seen in found] == [([0, 0, 0, 1, 0, 0], (6, 2, 8)), ([0, 0, 0], (3, 1, 8))]
    for _, seen in found:
        assert seen.tree.is_chain
        alike = [one for _, one in rounds if one.q.shape[1] == seen.q.shape[1]]
        for row, one in enumerate(alike):
            for whole, single in ((seen.p, one.p), (seen.q, one.q), (seen.tree.tokens, one.tree.tokens)):
                assert torch.equal(whole[row], single[0])


# --- truncation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [None, 0, 2])
def test_the_split_of_a_change_adds_up(stop):
    rng = np.random.default_rng(0)
    before, after = rng.random((2, 5, 4))
    stops = np.zeros((5, 4), dtype=bool)
    if stop is not None:
        stops[:, stop] = True
    after, before, stopped = tensors(after, before, stops)
    found = truncation.split(before, after, (after - before).relu(), (before - after).relu(), stopped)

    def expected(h: list[float]) -> float:
        last = len(h) if stop is None else stop
        return 1 + sum(math.prod(h[:j]) for j in range(1, last + 1))

    change = [expected(a) - expected(b) for a, b in zip(after.tolist(), before.tolist(), strict=True)]
    np.testing.assert_allclose(found.gain - found.loss, change, atol=1e-12)
    assert (found.gain >= 0).all()
    assert (found.loss >= 0).all()
    assert (found.gain > 0).any() == (stop != 0)


@truncations
def test_gain_and_loss_over_all_blocks_are_those_of_the_formula(name, parameters):
    """With the same (p, q) at all positions, E[gain] = S Σ_A (min(p_Θ, q) − min(p, q)) and E[loss] = S Σ_{V∖A} min(p, q),
    S = Σ_k Σ_{i<k} α'^i α^{k−1−i}."""
    gamma = 3
    for p, q in random_pairs(4, 12, seed=1):
        alpha, gain, loss = parts(p, q, allowed(p, parameters))
        scale = geometric(alpha + gain - loss, alpha, gamma)
        blocks = torch.cartesian_prod(*[torch.arange(4)] * gamma)
        p_rows, q_rows = (torch.tensor(x).expand(len(blocks), gamma, -1) for x in (p, q))
        weights = torch.tensor(q)[blocks].prod(1)
        kinds = [TokenCoupling(one, p_rows, q_rows, blocks) for one in (law(name, **parameters), law("lossless"))]
        change = truncation.of_round(*kinds, torch.zeros_like(blocks, dtype=torch.bool))
        kept = weights > 0  # a token of probability zero is never drafted
        assert float(weights[kept] @ change.gain[kept]) == pytest.approx(scale * gain, abs=1e-12)
        assert float(weights[kept] @ change.loss[kept]) == pytest.approx(scale * loss, abs=1e-12)


@truncations
def test_gain_and_loss_of_positions_are_those_of_the_formula(name, parameters):
    gamma = 7
    p, q = (torch.tensor(np.array(side)) for side in zip(*PAIRS, strict=True))
    change = truncation.of_positions(law(name, **parameters), p, q, gamma)
    for i, pair in enumerate(PAIRS):
        alpha, gain, loss = parts(*pair, allowed(pair[0], parameters))
        scale = geometric(alpha + gain - loss, alpha, gamma)
        assert float(change.gain[i]) == pytest.approx(scale * gain, abs=1e-12)
        assert float(change.loss[i]) == pytest.approx(scale * loss, abs=1e-12)


def test_the_truncation_figure_holds_the_formula(monkeypatch):
    """One drafted token a round: the change is that of its acceptance."""
    found = of_chains(PAIRS)
    given(monkeypatch, truncation, found)
    figures = truncation.measure(models.tiny_pair(), defaults(True))
    assert figures["settings"]["rounds_recorded"] == len(PAIRS)
    for one in figures["laws"]:
        knob = {"p_base" if one["law"] == "min_p" else "epsilon": one["strength"]}
        gains, losses, discarded = [], [], []
        for (p, q), (_, seen) in zip(PAIRS, found, strict=True):
            x, keep = int(seen.tree.tokens), allowed(p, knob)
            mass = sum(p[y] for y in range(len(p)) if keep[y])
            before = min(1, p[x] / q[x])
            gains.append(min(1, p[x] / mass / q[x]) - before if keep[x] else 0)
            losses.append(0 if keep[x] else before)
            discarded.append(1 - mass)
        for name, values in (("gain", gains), ("loss", losses), ("discarded", discarded)):
            assert one[name]["mean"] == pytest.approx(np.mean(values), abs=1e-12)
            assert one[name]["clusters"] == len(PAIRS) // 3
        assert one["net"]["mean"] == pytest.approx(np.mean(gains) - np.mean(losses), abs=1e-12)
        assert one["block_net"]["mean"] == pytest.approx(one["net"]["mean"], abs=1e-12)  # one position is no block
    for family in figures["families"]:
        assert len(family["laws"]) == len(figures["laws"])


def test_random_families_are_sharper_or_flatter_as_they_say():
    entropies = {}
    for name, sharpness in families.SHARPNESS.items():
        p, q = families.random_family(sharpness, 50, vocabulary=200)
        for side in (p, q):
            assert side.shape == (50, 200)
            np.testing.assert_allclose(side.sum(-1), 1, atol=1e-12)
        entropies[name] = float(torch.special.entr(q).sum(-1).mean())
    assert entropies["flatter draft"] > entropies["draft of the same sharpness"] > entropies["sharper draft"]


# --- divergence -------------------------------------------------------------------------------------------------------


@verifiers
def test_lemma_2_kl_of_a_sampled_draft(name, parameters):
    """KL(q_A ‖ p_A) = Σ_A q/q(A) log(q/p) + log(p(A)/q(A)), written out."""
    seen = 0
    for p, q in PAIRS:
        keep = [x for x, ok in enumerate(allowed(p, parameters)) if ok]
        p_set, q_set = sum(p[x] for x in keep), sum(q[x] for x in keep)
        expected = sum(q[x] / q_set * math.log(q[x] / p[x]) for x in keep if q[x] > 0) + math.log(p_set / q_set)
        found = divergence.divergence(law(name, **parameters), *tensors(p, q))
        assert float(found.kl) == pytest.approx(expected, abs=1e-10)
        assert float(found.kl_on_set) == pytest.approx(expected, abs=1e-10)
        assert float(found.outside) == 0
        seen += len(keep) > 1
    assert seen > 10


@verifiers
def test_lemma_2_vanishes_with_the_square_of_the_distance(name, parameters):
    """KL((1 − t) p + t q on A ‖ p_A) = t²/2 · Var_{p_A}(q/p) + O(t³)."""
    checked = 0
    for p, q in PAIRS:
        keep = [x for x, ok in enumerate(allowed(p, parameters)) if ok]
        if len(keep) < 2 or min(p) < 1e-4:
            continue
        mass = sum(p[x] for x in keep)
        ratio = [q[x] / p[x] for x in keep]
        mean = sum(p[x] / mass * r for x, r in zip(keep, ratio, strict=True))
        variance = sum(p[x] / mass * (r - mean) ** 2 for x, r in zip(keep, ratio, strict=True))
        t = 1e-4 / max(1.0, *ratio)
        tensor_p, tensor_q = tensors(p, q)
        found = divergence.divergence(law(name, **parameters), tensor_p, families.blended(tensor_p, tensor_q, t))
        assert float(found.kl) / t**2 == pytest.approx(variance / 2, rel=0.02, abs=1e-15 / t**2)
        checked += variance > 0.01
    assert checked > 10


@verifiers
def test_the_target_fallback_leaves_the_set(name, parameters):
    """(1 − q(A))(1 − p(A)) of π is outside A; as q → p, TV(π, p_Θ) goes to (1 − p(A))²."""
    infinite = 0
    for p, q in PAIRS:
        keep = allowed(p, parameters)
        off_p, off_q = (sum(side[x] for x in range(len(p)) if not keep[x]) for side in (p, q))
        one = law(name, **parameters, fallback="target")
        found = divergence.divergence(one, *tensors(p, q))
        assert float(found.outside) == pytest.approx(off_p * off_q, abs=1e-12)
        if off_p * off_q > 1e-12:
            assert math.isinf(found.kl)
            infinite += 1
        at_p = divergence.divergence(one, *tensors(p, p))
        assert float(at_p.tv) == pytest.approx(off_p**2, abs=1e-12)
        assert float(at_p.kl_on_set) == pytest.approx(0, abs=1e-12)
    assert infinite > 10


@verifiers
@pytest.mark.parametrize("fallback", ["draft", "target"])
def test_proposition_1_kl_of_a_point_mass(name, parameters, fallback):
    """−log p_Θ(c) for a candidate in A, also as q → p; what the tree coupling emits for one candidate is that point mass."""
    one, inside, positive = law(name, **parameters, fallback=fallback), 0, 0
    for p, q in PAIRS:
        keep = allowed(p, parameters)
        mass = sum(p[x] for x in range(len(p)) if keep[x])
        c = int(np.argmax(q))
        tensor_p, tensor_q = tensors(p, q)
        found = divergence.divergence(one, tensor_p, divergence.likeliest(tensor_q))
        if keep[c]:
            inside += 1
            assert float(found.kl) == pytest.approx(-math.log(p[c] / mass), abs=1e-12)
            assert float(found.tv) == pytest.approx(1 - p[c] / mass, abs=1e-12)
            emitted = sibling_walk(one, tensor_p, torch.tensor([c]))
            torch.testing.assert_close(emitted, one.induced(tensor_p, divergence.likeliest(tensor_q)))
        elif fallback == "draft":
            assert float(found.kl) == pytest.approx(0, abs=1e-12)
        expected = -math.log(max(p) / mass)
        assert float(divergence.limit(one, tensor_p)) == pytest.approx(expected, abs=1e-12)
        near = divergence.divergence(one, tensor_p, divergence.likeliest(families.blended(tensor_p, tensor_q, 0.0)))
        assert float(near.kl) == pytest.approx(expected, abs=1e-12)
        positive += expected > 0.1
    assert inside > 10
    assert positive > 5


def test_the_divergence_figure_holds_the_formulas(monkeypatch):
    given(monkeypatch, divergence, of_chains(PAIRS))
    figures = divergence.measure(models.tiny_pair(), defaults(True))
    json.dumps(figures, allow_nan=False)
    assert figures["settings"]["positions"] == len(PAIRS)
    by_name = {one["law"]: one for one in figures["laws"]}
    for one in divergence.LAWS:
        rows = by_name[str(one)]["shares"]
        assert rows[0]["share"] == 1
        distances = [row["distance"]["mean"] for row in rows]
        expected = np.mean([oracle.tv(p, q) for p, q in PAIRS])
        np.testing.assert_allclose(distances, [expected * row["share"] for row in rows], rtol=1e-9)
        near, far = (rows[k]["sampled"]["kl_on_set"]["mean"] for k in (-1, 0))
        assert near < 1e-3 * far
        point = [row["point_mass"]["kl_on_set"]["mean"] for row in rows]
        assert point[-1] == pytest.approx(by_name[str(one)]["limit"]["mean"], rel=0.05)
        assert point[-1] > 0.1
        infinite = rows[0]["sampled"]["infinite"]["mean"]
        assert (infinite > 0) == (one.fallback == "target")


# --- trees ------------------------------------------------------------------------------------------------------------

TREE = Tree(torch.tensor([[3, 0, 2, 1, 5, 4]]), torch.tensor([[0, 0, 1, 1, 2, 4]]))
"""Root: 3, 0; below 3: 2, 1; below 0: 5; below 1: 4."""


def of_trees(seed: int = 0, count: int = 9, stop: int | None = None) -> list[tuple[int, Recorded]]:
    rng = np.random.default_rng(seed)
    nodes, found = 7, []
    for i in range(count):
        p, q = (torch.tensor(rng.dirichlet(np.full(6, a), size=(1, nodes))) for a in (0.5, 1.0))
        q[0, [n for n in range(nodes) if not TREE.children()[n]]] = torch.nan
        stops = torch.tensor([[stop == n for n in range(1, nodes)]])
        found.append((i // 2, Recorded(TREE, p, q, stops)))
    return found


@pytest.mark.parametrize("stop", [None, 1])
def test_a_walk_is_the_sum_over_all_texts(stop):
    """Every text of three tokens with its probability: how far into the tree it goes."""
    emitted = torch.tensor(np.random.default_rng(1).dirichlet(np.ones(6), size=7))
    stops = torch.tensor([stop == n for n in range(1, 7)])
    child = {(parent, int(TREE.tokens[0, n])): n + 1 for n, parent in enumerate(TREE.parents[0].tolist())}
    reached, accepted = np.zeros(7), 0.0
    for text in itertools.product(range(6), repeat=3):
        weight, node, depth, at = 1.0, 0, 0, [0]
        for token in text:
            weight *= float(emitted[node, token]) if node is not None else 1 / 6
            node = None if node is None or (node and bool(stops[node - 1])) else child.get((node, token))
            if node is not None:
                at.append(node)
                depth += 1
        reached[at] += weight
        accepted += weight * depth
    found = tree.walk(TREE, emitted, stops)
    np.testing.assert_allclose(found.reach, reached, atol=1e-12)
    assert found.accepted == pytest.approx(accepted, abs=1e-12)
    asked = [n for n in range(7) if TREE.children()[n] and not (stop == 1 and n in (1, 4))]
    assert found.asks.nonzero().flatten().tolist() == asked
    for node in asked:
        candidates = [int(TREE.tokens[0, n - 1]) for n in TREE.children()[node]]
        assert float(found.accepts[node]) == pytest.approx(float(emitted[node, candidates].sum()), abs=1e-12)


@pytest.mark.parametrize("one", tree.LAWS, ids=str)
def test_acceptance_at_a_node_is_the_formula(one):
    """1[C ∩ A ≠ ∅], q(C ∩ A)/q(A), p_Θ(C) and p(C)."""
    kinds = set()
    for _, seen in of_trees(count=40):
        walks = {r: tree.walk(TREE, tree.at_nodes(seen, tree.emission(one, r)), seen.stops[0]) for r in tree.READINGS}
        hit = tree.hits(one, seen)
        for node in (n for n in range(7) if TREE.children()[n]):
            p, q = seen.p[0, node].numpy(), seen.q[0, node].numpy()
            candidates = [int(TREE.tokens[0, n - 1]) for n in TREE.children()[node]]
            keep = allowed(p, {k: v for k, v in one.parameters().items() if k in ("p_base", "epsilon")})
            both = [c for c in candidates if keep[c]]
            kinds.add(bool(both))
            p_set, q_set = (sum(side[x] for x in range(6) if keep[x]) for side in (p, q))
            expected = {
                "point_mass": float(bool(both)),
                "head": sum(q[c] for c in both) / q_set,
                "baseline": sum(p[c] for c in both) / p_set,
                "lossless": sum(p[c] for c in candidates),
            }
            assert float(hit[node]) == expected["point_mass"]
            if one.name == "typical" and not keep[candidates[0]]:
                del expected["point_mass"]  # the set is asked for anew on what is left of p
            for reading, value in expected.items():
                assert float(walks[reading].accepts[node]) == pytest.approx(value, abs=1e-9), reading
    assert kinds == {True, False}


def test_the_tree_figure_holds_the_formulas(monkeypatch):
    found = of_trees(seed=2)
    given(monkeypatch, tree, found)
    figures = tree.measure(models.head_pair(), defaults(True))
    json.dumps(figures, allow_nan=False)
    one = tree.LAWS[1]
    for shape in figures["shapes"]:
        rows = {row["reading"]: row for row in shape["laws"] if row["law"] == str(one)}
        sums = np.zeros((4, 3))
        for _, seen in found:
            p = seen.p[0].numpy()
            reach = [1.0] + [0.0] * 6
            for n, parent in enumerate(TREE.parents[0].tolist(), start=1):
                reach[n] = reach[parent] * p[parent, int(TREE.tokens[0, n - 1])]
            for node in (n for n in range(7) if TREE.children()[n]):
                candidates = [int(TREE.tokens[0, n - 1]) for n in TREE.children()[node]]
                keep = oracle.min_p_set(p[node], one.p_base)
                mass = sum(p[node, x] for x in range(6) if keep[x])
                depth = int(TREE.depths[0, node])
                sums[0, depth] += reach[node]
                sums[1, depth] += reach[node] * any(keep[c] for c in candidates)
                sums[2, depth] += reach[node] * sum(p[node, c] for c in candidates if keep[c]) / mass
                sums[3, depth] += reach[node] * sum(p[node, c] for c in candidates)
        for k, reading in enumerate(("point_mass", "baseline", "lossless"), start=1):
            means = [place["mean"] for place in rows[reading]["positions"]]
            np.testing.assert_allclose(means, sums[k] / sums[0], atol=1e-9)
        assert shape["agreement"] > 0.9


def test_a_pair_without_a_head_has_no_trees():
    with pytest.raises(LossyError, match="no EAGLE-3 head"):
        tree.measure(models.tiny_pair(), defaults(True))


# --- lenience ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ell", lenience.LENIENCES)
def test_delta_is_what_the_ceiling_cuts_off(ell):
    for p, q in PAIRS:
        over = sum(max(0.0, q[x] - p[x] / ell) for x in range(len(p)))
        room = sum(max(0.0, p[x] - q[x]) for x in range(len(p)))
        for name in ("lenience", "adaptive_ensemble"):
            found = lenience.delta(law(name, lenience=ell), *tensors(p, q))
            assert float(found) == pytest.approx(over / room, abs=1e-9)


@pytest.mark.parametrize("ell", lenience.LENIENCES)
def test_two_tokens_have_a_delta_in_closed_form(ell, monkeypatch):
    """p = (s, 1 − s), q = (s + d, 1 − s − d): Δ = (1 − s (1/ℓ − 1)/d)+."""
    given(monkeypatch, lenience, of_chains(PAIRS))
    found = lenience.measure(models.tiny_pair(), defaults(True))["two_tokens"]
    s = found["p"]
    expected = [max(0.0, 1 - s * (1 / ell - 1) / d) for d in found["distance"]]
    np.testing.assert_allclose(found["delta"][f"{ell:g}"], expected, atol=1e-9)
    assert found["distance"][-1] == pytest.approx(1 - s)
    assert max(expected) > 0


def test_the_lenience_figure_holds_the_formulas(monkeypatch):
    pairs = [pair for pair in random_pairs(8, 90, seed=5) if oracle.tv(*pair) > 0.01]
    pairs += [(p := np.full(8, 0.125), normalised(p * (1 + 1e-4 * np.arange(8))))]  # too close for a bin
    given(monkeypatch, lenience, of_chains(pairs))
    figures = lenience.measure(models.tiny_pair(), defaults(True))
    json.dumps(figures, allow_nan=False)
    assert figures["settings"]["below_the_first_bin"] == 1
    assert sum(one["positions"] for one in figures["bins"]) == len(pairs) - 1
    ceiling = math.log(1 / 0.4)
    touched = False
    for one in figures["bins"]:
        inside = [(p, q) for p, q in pairs if one["from"] <= oracle.tv(p, q) < one["to"]]
        assert len(inside) == one["positions"]
        for ell in lenience.LENIENCES:
            deltas = [sum(np.maximum(q - p / ell, 0)) / sum(np.maximum(p - q, 0)) for p, q in inside]
            assert one["delta"][f"{ell:g}"]["mean"] == pytest.approx(np.mean(deltas), abs=1e-9)
        largest = one["overshoot"]["lenience(0.4)"]["largest"]
        assert largest <= ceiling + 1e-9
        touched |= largest == pytest.approx(ceiling, abs=1e-9)
        mixtures = [max(math.log((0.4 * q[x] + 0.6 * p[x]) / p[x]) for x in range(8) if p[x] > 0) for p, q in inside]
        assert one["overshoot"]["cos(0.4)"]["mean"] == pytest.approx(np.mean(mixtures), abs=1e-9)
    assert touched


# --- differences ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "at"), [([1, 2, 3], [1, 5, 3], 1), ([1, 2], [1, 2, 3], None), ([4], [4], None), ([4], [5], 0)]
)
def test_first_difference(a, b, at):
    assert differences.first_difference(a, b) == at


@torch.no_grad()
def test_divergences_show_what_uncached_forwards_and_the_formulas_say():
    pair = models.tiny_pair()
    figures = differences.measure(pair, defaults(False, texts=3, max_new_tokens=16))
    json.dumps(figures, allow_nan=False)
    checked = 0
    for one, found in zip(differences.LAWS, figures["laws"], strict=True):
        assert found["law"] == str(one)
        assert found["parted"] == len(found["examples"]) <= figures["settings"]["prompts"] == 3
        baseline = one.matched_baseline()
        for example in found["examples"]:
            settings = {"do_sample": True, "temperature": 0.7, "top_k": 0, "max_new_tokens": 16}
            texts = [
                models.lossy(
                    pair.target,
                    ids=pair.inputs(pair.prompts[example["prompt"]])["input_ids"],
                    assistant_model=pair.draft,
                    num_assistant_tokens=3,
                    verification=which,
                    generator=torch.Generator().manual_seed(example["prompt"]),
                    **settings,
                )[0]
                for which in (one, baseline)
            ]
            at = len(pair.prompts[example["prompt"]]) + example["position"]
            assert texts[0][:at].tolist() == texts[1][:at].tolist()
            p, q = (
                (model(texts[0][None, :at]).logits[0, -1] / 0.7).double().softmax(-1).numpy()
                for model in (pair.target, pair.draft)
            )
            pi, base = (oracle.induced(x.name, p, q, **x.parameters()) for x in (one, baseline))
            for whose, text in (("law", texts[0]), ("baseline", texts[1])):
                token = int(text[at])
                assert example[whose]["token"] == pair.tokenizer.decode([token])
                for name, side in (("p", p), ("q", q), ("pi", pi), ("pi_baseline", base)):
                    assert example[whose][name] == pytest.approx(side[token], abs=1e-5)
            assert texts[0][at] != texts[1][at]
            assert example["tv"] == pytest.approx(oracle.tv(pi, base), abs=1e-5)
            checked += 1
    assert checked > 3


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ANALYSES)
def test_an_analysis_writes_figure_numbers_and_readme(name, tmp_path):
    command([name], out=tmp_path, texts=4, rounds=12)
    folder = tmp_path / name
    written = json.loads((folder / "numbers.json").read_text(), parse_constant=pytest.fail)
    assert {"settings", "provenance"} <= set(written)
    assert "arithmetic" in written["settings"]["pair"]
    text = (folder / "README.md").read_text()
    assert written["settings"]["pair"] in text
    assert "T = 0.7" in text
    assert "nan" not in text
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "figure.svg").read_text()
    del written["provenance"]
    assert ANALYSES[name].describe(written) == text  # made from the numbers alone


def test_an_unknown_analysis_is_named(tmp_path):
    with pytest.raises(LossyError, match="Did you mean 'truncation'"):
        command(["truncations"], out=tmp_path)
