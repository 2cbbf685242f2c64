"""Couplings: the joint law of what a round emits, enumerated exactly, and the decisions that coins make.

One round is enumerated over every drafted block, every outcome of every coin and every replacement, with p and q
different at every prefix, and continued with π to γ + 1 tokens. It is compared with the closed form of tests/oracle.py.

False alarms: every seed is fixed. Taken over seeds, the one statistical test here has a rate of 1e-5.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import scipy.stats
import torch

from hf_lossy import laws
from hf_lossy.couplings import (
    BlockCoupling,
    Coupling,
    DescendCoupling,
    GreedyCoupling,
    PointMassCoupling,
    ReferenceCoupling,
    TokenCoupling,
    coupling,
    couplings,
    descend,
    sibling_walk,
)
from hf_lossy.errors import LossyError
from hf_lossy.laws.base import Law, law, law_class
from hf_lossy.numerics import sample
from hf_lossy.tree import Tree

from . import oracle
from .pairs import one_hot, random_pairs, structured_pairs

EXAMPLES = [e for name in laws.names() for e in law_class(name).examples() if name in oracle.LAWS]
SIZES = [(v, gamma) for v in (3, 4) for gamma in (1, 2, 3)]
KINDS = ("random", "structured")
TOLERANCE = 1e-12

every_law = pytest.mark.parametrize("law_", EXAMPLES, ids=str)


# --- distributions at every prefix -----------------------------------------------------------------------------------


@functools.cache
def tables(kind: str, vocabulary: int):
    """p and q at every prefix of up to three tokens, no two alike."""
    prefixes = [x for n in range(4) for x in oracle.sequences(vocabulary, n)]
    pairs = random_pairs(vocabulary, len(prefixes), seed=vocabulary)
    if kind == "structured":
        corners = [c for seed in range(6) for c in structured_pairs(vocabulary, seed).values()]
        order = np.random.default_rng(vocabulary).permutation(len(corners))
        pairs = [corners[i] for i in order]
    return tuple({x: pair[side] for x, pair in zip(prefixes, pairs, strict=False)} for side in (0, 1))


@functools.cache
def induced_table(law_: Law, kind: str, vocabulary: int):
    """π at every prefix, by the oracle."""
    p, q = tables(kind, vocabulary)
    return {x: oracle.induced(law_.name, p[x], q[x], **law_.parameters()) for x in p}


def at_depth(table, vocabulary: int, depth: int) -> torch.Tensor:
    """The rows of a table after ``depth`` tokens, [V^depth, V], prefixes in lexicographic order."""
    return torch.tensor(np.array([table[x] for x in oracle.sequences(vocabulary, depth)]))


def along(table, vocabulary: int, drafted: torch.Tensor) -> torch.Tensor:
    """The distributions that blocks meet, [B, γ, V]."""
    gamma = drafted.shape[1]
    rows = [at_depth(table, vocabulary, i)[index(drafted[:, :i], vocabulary)] for i in range(gamma)]
    return torch.stack(rows, 1)


def index(tokens: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Where sequences [B, n] stand in lexicographic order."""
    place = torch.zeros(len(tokens), dtype=torch.long)
    for i in range(tokens.shape[1]):
        place = place * vocabulary + tokens[:, i]
    return place


def probability(table, vocabulary: int, drafted: torch.Tensor) -> torch.Tensor:
    """Of each block [B, γ] being drawn from a table."""
    return along(table, vocabulary, drafted).gather(2, drafted[:, :, None]).squeeze(2).prod(1)


def every(vocabulary: int, length: int) -> torch.Tensor:
    return torch.tensor(oracle.sequences(vocabulary, length)).view(-1, length)


def coins_for_tokens(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For every token: a coin amid its share of [0, 1), and the share; both shaped like ``weights``."""
    share = weights / weights.sum(-1, keepdim=True)
    return share.cumsum(-1) - share / 2, share


# --- enumerating a round ---------------------------------------------------------------------------------------------


class Round:
    """What rounds emit: the mass of every sequence by its length, and of every fully accepted block; a row a round."""

    def __init__(self, vocabulary: int, gamma: int, rounds: int = 1):
        self.vocabulary, self.gamma = vocabulary, gamma
        self.stopped = [torch.zeros(rounds, vocabulary ** (n + 1), dtype=torch.float64) for n in range(gamma)]
        self.whole = torch.zeros(rounds, vocabulary**gamma, dtype=torch.float64)

    def add(self, drafted, accepted, replacement, weight, which=0) -> None:
        """Outcomes with their weights: the accepted tokens of a block, then the replacement unless all were accepted."""
        which = torch.as_tensor(which).expand_as(accepted)
        sequence = torch.cat([drafted, replacement[:, None]], 1).scatter(1, accepted[:, None], replacement[:, None])
        for n, mass in enumerate([*self.stopped, self.whole]):
            rows = accepted == n
            emitted = sequence[rows, : min(n + 1, self.gamma)]
            mass.index_put_((which[rows], index(emitted, self.vocabulary)), weight[rows], accumulate=True)

    def tokens(self) -> torch.Tensor:
        """Expected number of tokens a round emits, with the bonus."""
        return sum((n + 1) * mass.sum(1) for n, mass in enumerate([*self.stopped, self.whole]))

    def law(self, pi, bonus) -> torch.Tensor:
        """The first γ + 1 tokens, [rounds, V^(γ+1)]: short rounds continued with π, whole ones with ``bonus``."""
        law_ = torch.zeros(len(self.whole), 1, dtype=torch.float64)
        for n, mass in enumerate(self.stopped):
            law_ = follow(law_, pi, self.vocabulary, n) + mass
        law_ = follow(law_, pi, self.vocabulary, self.gamma)
        return law_ + follow(self.whole, bonus, self.vocabulary, self.gamma)


def follow(mass: torch.Tensor, table, vocabulary: int, depth: int) -> torch.Tensor:
    """The mass of sequences of ``depth`` tokens, spread over the next token."""
    return (mass[:, :, None] * at_depth(table, vocabulary, depth)).flatten(1)


def sampled_round(cls: type[Coupling], law_: Law, p, q, vocabulary: int, gamma: int, draft=None) -> Round:
    """All blocks that ``draft`` (q unless given) may propose, and all outcomes of the coins that verify them.

    A coin is put at 0, which accepts unless h = 0, or at h itself, which must refuse: u < h, strictly.
    """
    blocks, outcomes = every(vocabulary, gamma), torch.tensor(oracle.sequences(2, gamma)).bool()
    proposed = probability(q if draft is None else draft, vocabulary, blocks)
    blocks, proposed = blocks[proposed > 0], proposed[proposed > 0]
    drafted, proposed = (x.repeat_interleave(len(outcomes), 0) for x in (blocks, proposed))
    keeps = outcomes.repeat(len(blocks), 1)

    made = cls(law_, along(p, vocabulary, drafted), along(q, vocabulary, drafted), drafted)
    h = made.acceptance()
    assert ((h >= 0) & (h <= 1)).all()
    coins = torch.where(keeps, 0.0, h)
    accepted = made.accepted(coins)
    if isinstance(made, BlockCoupling):  # as for a large vocabulary on a CPU
        assert torch.equal(made._by_looking(coins), accepted)
    weight = proposed * torch.where(keeps, h, 1 - h).prod(1)

    residual = made.residual(accepted)
    last = made.pi[torch.arange(len(drafted)), accepted.clamp_max(gamma - 1)]
    coins, share = coins_for_tokens(torch.where(residual.sum(1, keepdim=True) > 0, residual, last))
    result = Round(vocabulary, gamma)
    result.add(drafted, accepted, accepted, weight.where(accepted == gamma, 0.0))
    for token in range(vocabulary):
        mass = (weight * share[:, token]).where(accepted < gamma, 0.0)
        result.add(drafted, accepted, made.replace(accepted, coins[:, token]), mass)
    return result


def tree_rounds(law_: Law, p, q, vocabulary: int, gamma: int) -> Round:
    """A round for every chain of given candidates, and for each all tokens that its nodes may draw."""
    chains = draws = every(vocabulary, gamma)
    which = torch.arange(len(chains)).repeat_interleave(len(draws))
    drafted, drawn = chains[which], draws.repeat(len(chains), 1)

    made = DescendCoupling(law_, along(p, vocabulary, drafted), along(q, vocabulary, drafted), drafted)
    coins, share = (x.gather(2, drawn[:, :, None]).squeeze(2) for x in coins_for_tokens(made.pi))
    accepted = made.accepted(coins)
    result = Round(vocabulary, gamma, len(chains))
    result.add(drafted, accepted, made.replace(accepted, coins[:, 0]), share.prod(1), which)
    return result


@functools.cache
def enumerated(name: str, law_: Law, kind: str, vocabulary: int, gamma: int) -> Round:
    p, q = tables(kind, vocabulary)
    cls = coupling(name)
    if cls.samples_draft:
        return sampled_round(cls, law_, p, q, vocabulary, gamma)
    return tree_rounds(law_, p, q, vocabulary, gamma)


@functools.cache
def expected_whole(name: str, law_: Law, kind: str, vocabulary: int, gamma: int) -> np.ndarray:
    """The probability of each block being accepted as a whole, [rounds, V^γ], by the oracle."""
    _, q = tables(kind, vocabulary)
    pi, blocks = induced_table(law_, kind, vocabulary), oracle.sequences(vocabulary, gamma)
    if name == "token":
        return np.array([[oracle.all_accepted_token(pi, q, x) for x in blocks]])
    if name == "block":
        return np.array([[oracle.all_accepted_block(pi, q, x) for x in blocks]])
    if name == "reference":
        h = published_table(law_, kind, vocabulary)
        return np.array([[oracle.all_accepted_reference(h, q, x) for x in blocks]])
    if name == "tree":
        return np.diag([oracle.all_accepted_tree(pi, x, x) for x in blocks])
    raise NotImplementedError(f"say in tests/oracle.py what the coupling {name!r} accepts")


@functools.cache
def published_table(law_: Law, kind: str, vocabulary: int):
    p, q = tables(kind, vocabulary)
    return {x: oracle.published(law_.name, p[x], q[x], **law_.parameters())[0] for x in p}


COMBINATIONS = [(law_, name) for law_ in EXAMPLES for name in couplings() if coupling(name).supports(law_)]


@pytest.mark.parametrize(("law_", "name"), COMBINATIONS, ids=lambda x: str(x))
def test_a_round_emits_the_law(law_, name, record_property):
    distances, count = [], 0
    for kind in KINDS:
        for vocabulary, gamma in SIZES:
            p, _ = tables(kind, vocabulary)
            pi = induced_table(law_, kind, vocabulary)
            result = enumerated(name, law_, kind, vocabulary, gamma)
            block = np.array([oracle.product(pi, x) for x in oracle.sequences(vocabulary, gamma)])
            after = at_depth(pi, vocabulary, gamma).numpy()
            for bonus in (pi, p):
                ours = result.law(pi, bonus).numpy()
                for found, whole in zip(ours, expected_whole(name, law_, kind, vocabulary, gamma), strict=True):
                    bonus_after = at_depth(bonus, vocabulary, gamma).numpy()
                    expected = oracle.emitted(block, whole, after, bonus_after).ravel()
                    distances.append(np.abs(found - expected).sum() / 2)
                count += 1
    worst = np.max(distances)  # NaN if one of them is
    assert worst <= TOLERANCE
    record_property("enumerated", count)
    record_property("worst_tv", float(worst))


def test_the_induced_bonus_makes_every_token_follow_the_law():
    """What the comparison above comes to with bonus="induced": the product law, whatever was accepted."""
    for name in couplings():
        pi = induced_table(law("speccascade"), "random", 3)
        law_ = enumerated(name, law("speccascade"), "random", 3, 2).law(pi, pi).numpy()
        expected = [oracle.product(pi, x) for x in oracle.sequences(3, 3)]
        np.testing.assert_allclose(law_, np.broadcast_to(expected, law_.shape), rtol=0, atol=TOLERANCE)


# --- how many tokens -------------------------------------------------------------------------------------------------


@every_law
def test_token_coupling_accepts_the_overlap(law_):
    for kind in KINDS:
        p, q = tables(kind, 4)
        overlap = oracle.acceptance(oracle.induced(law_.name, p[()], q[()], **law_.parameters()), q[()])
        assert enumerated("token", law_, kind, 4, 1).tokens().item() == pytest.approx(1 + overlap, abs=TOLERANCE)


@every_law
def test_block_never_emits_fewer_than_token_nor_token_fewer_than_reference(law_):
    for kind in KINDS:
        for size in SIZES:
            token = enumerated("token", law_, kind, *size).tokens().item()
            assert enumerated("block", law_, kind, *size).tokens().item() >= token - TOLERANCE
            if ReferenceCoupling.supports(law_):
                assert enumerated("reference", law_, kind, *size).tokens().item() <= token + TOLERANCE


@pytest.mark.parametrize(
    "law_",
    [law("lossless"), law("lenience"), law("cos", draft_weight=0.4), law("speccascade", p_base=0.4, fallback="target")],
    ids=str,
)
def test_block_gains(law_):
    token, block = (enumerated(name, law_, "random", 4, 3).tokens().item() for name in ("token", "block"))
    assert block > token + 1e-3


@pytest.mark.parametrize("law_", [law("speccascade", p_base=0.4), law("typical")], ids=str)
def test_the_draft_fallback_gains_nothing(law_):
    """π/q is constant on A, so that neither the block nor the best tokenwise coupling improves on the published rule."""
    for kind in KINDS:
        for size in SIZES:
            token, block, reference = (
                enumerated(name, law_, kind, *size).tokens().item() for name in ("token", "block", "reference")
            )
            assert block == pytest.approx(token, abs=TOLERANCE)
            assert reference == pytest.approx(token, abs=TOLERANCE)


def test_the_target_fallback_gains_over_the_published_rule():
    for law_ in (law("speccascade", p_base=0.4, fallback="target"), law("typical", fallback="target")):
        token, reference = (enumerated(name, law_, "random", 4, 3).tokens().item() for name in ("token", "reference"))
        assert token > reference + 1e-3


@every_law
def test_a_chain_accepts_what_the_law_gives_it(law_):
    """1 + Σ_i Π_{j ≤ i} π_j(c_j) tokens, for every chain of candidates."""
    pi = induced_table(law_, "random", 3)
    expected = [1 + sum(oracle.product(pi, c[: i + 1]) for i in range(3)) for c in oracle.sequences(3, 3)]
    np.testing.assert_allclose(enumerated("tree", law_, "random", 3, 3).tokens(), expected, rtol=0, atol=TOLERANCE)


# --- trees -----------------------------------------------------------------------------------------------------------

TREE = {(): (2, 0), (2,): (1, 2), (0,): (0,)}
"""The children of each node of a tree of depth two, by the tokens on the way to it."""


def built(children) -> tuple[list[int], list[int], list[oracle.Prefix]]:
    """Tokens and parents of a tree's nodes, and the prefix of every node with the root first."""
    prefixes: list[oracle.Prefix] = [()]
    tokens, parents = [], []
    for node in range(sum(map(len, children.values())) + 1):
        for token in children.get(prefixes[node], ()):
            tokens.append(token)
            parents.append(node)
            prefixes.append((*prefixes[node], token))
    return tokens, parents, prefixes


def walks(tree: Tree, at_nodes: torch.Tensor) -> list[tuple[list[int], int, float]]:
    """Every way to walk a tree: the nodes, the last token, and the probability of the tokens drawn on the way."""
    found, pending, vocabulary = [], [()], at_nodes.shape[1]
    while pending:
        script, weights = list(pending.pop()), []

        def draw(paths, script=script, weights=weights):
            (path,) = paths
            if len(path) > len(script):  # nothing is decided here yet: token 0 now, the others later
                pending.extend((*script, other) for other in range(1, vocabulary))
                script.append(0)
            token = script[len(path) - 1]
            coins, share = coins_for_tokens(at_nodes[path[-1]])
            weights.append(share[token].item())
            assert share[token] == 0 or int(sample(at_nodes[path[-1]], coins[token])) == token
            return torch.tensor([token])

        (path,), (last,), (leaf,) = descend(tree, draw)
        assert leaf == (path[-1] not in tree.parents)
        found.append((path, last, math.prod(weights)))
    return found


@pytest.mark.parametrize("reading", ["head", "point_mass"])
@pytest.mark.parametrize("vocabulary", [3, 4])
@pytest.mark.parametrize("law_", EXAMPLES, ids=str)
def test_a_tree_emits_the_law(law_, vocabulary, reading, record_property):
    """Every token that every node may draw, for a tree with siblings at two depths and in both orders of them."""
    distances = []
    for kind in KINDS:
        p, q = tables(kind, vocabulary)
        for children in (TREE, {x: c[::-1] for x, c in TREE.items()}):
            tokens, parents, prefixes = built(children)
            tree = Tree(torch.tensor([tokens]), torch.tensor([parents]))
            if reading == "head":
                pi = induced_table(law_, kind, vocabulary)
                at_nodes = law_.induced(*(torch.tensor(np.array([t[x] for x in prefixes])) for t in (p, q)))
            else:
                visited = {x: children.get(x, ()) for x in p}
                pi = {x: oracle.sibling_walk(law_.name, p[x], visited[x], **law_.parameters()) for x in p}
                rows = [sibling_walk(law_, torch.tensor(p[x]), torch.tensor(visited[x]).long()) for x in prefixes]
                at_nodes = torch.stack(rows)
            outcomes = walks(tree, at_nodes)
            reach = sum(oracle.product(pi, x) for x in prefixes)
            assert sum(w * len(path) for path, _, w in outcomes) == pytest.approx(reach, abs=TOLERANCE)
            law_of_three = np.zeros([vocabulary] * 3)
            for path, last, weight in outcomes:
                emitted = (*prefixes[path[-1]], last)
                for rest in oracle.sequences(vocabulary, 3 - len(emitted)):
                    x = (*emitted, *rest)
                    law_of_three[x] += weight * math.prod(pi[x[:j]][x[j]] for j in range(len(emitted), 3))
            expected = np.array([oracle.product(pi, x) for x in oracle.sequences(vocabulary, 3)])
            distances.append(np.abs(law_of_three.flatten() - expected).sum() / 2)
    worst = np.max(distances)
    assert worst <= TOLERANCE
    record_property("enumerated", 2 * len(KINDS))
    record_property("worst_tv", float(worst))


@every_law
def test_a_chain_of_point_masses_keeps_what_the_sibling_walk_keeps(law_):
    p, q = (torch.tensor(np.array([pair[side] for pair in random_pairs(4, 5, seed=2)]))[None] for side in (0, 1))
    drafted = q.argmax(-1)
    pi = PointMassCoupling(law_, p, None, drafted).pi[0]
    for row, x, c in zip(pi, p[0], drafted[0].tolist(), strict=True):
        expected = oracle.sibling_walk(law_.name, x.numpy(), [c], **law_.parameters())
        np.testing.assert_allclose(row, expected, atol=TOLERANCE)


def test_the_order_of_siblings_does_not_matter_to_the_lossless_law_and_does_to_others():
    p = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    orders = [torch.tensor(x) for x in ([0, 1], [1, 0])]
    lossless = [sibling_walk(law("lossless"), p, order) for order in orders]
    assert all(torch.allclose(x, p, atol=1e-15) for x in lossless)
    lenient = [sibling_walk(law("lenience", lenience=0.5), p, order) for order in orders]
    # p(0)/0.5 = 1: nothing is left for the second; the other way round 0.3/0.5 = 0.6 goes to token 1 first
    assert lenient[0].tolist() == [1, 0, 0, 0]
    np.testing.assert_allclose(lenient[1], [0.4, 0.6, 0, 0], atol=1e-15)


def test_a_walk_ends_at_a_token_that_ends_the_text():
    def drawn(paths):
        return torch.tensor([[1, 2, 1, 9][len(path) - 1] for path in paths])

    for tree in (Tree.chain(torch.tensor([[1, 2, 1]])), Tree(torch.tensor([[1, 2, 1]]), torch.tensor([[0, 1, 2]]))):
        assert descend(tree, drawn) == ([[0, 1, 2, 3]], [9], [True])
        assert descend(tree, drawn, ends={2}) == ([[0, 1, 2]], [2], [False])
        assert descend(tree, lambda paths: torch.tensor([7]), ends={7}) == ([[0]], [7], [False])


def test_each_row_walks_its_own_tree():
    """The first ends where no child carries the token drawn, the second two nodes later. A row that has arrived stays,
    whatever it is given meanwhile."""
    tree = Tree(torch.tensor([[5, 6, 7], [4, 5, 6]]), torch.tensor([[0, 1, 1], [0, 0, 2]]))
    scripts, asked = [[5, 9, 8], [5, 6, 7]], []

    def draw(paths):
        asked.append([list(path) for path in paths])
        if len(asked) == 3:
            scripts[0][1] = 6
        return torch.tensor([script[len(path) - 1] for script, path in zip(scripts, paths, strict=True)])

    assert descend(tree, draw) == ([[0, 1], [0, 2, 3]], [9, 7], [False, True])
    assert asked == [[[0], [0]], [[0, 1], [0, 2]], [[0, 1], [0, 2, 3]]]


def test_what_a_tree_knows_of_itself():
    #        0
    #      1   2
    #     3 4   5
    # and a chain of the same size
    tree = Tree(torch.tensor([[5, 6, 7, 8, 7], [1, 2, 3, 4, 5]]), torch.tensor([[0, 0, 1, 1, 2], [0, 1, 2, 3, 4]]))
    assert tree.depths.tolist() == [[0, 1, 1, 2, 2, 2], [0, 1, 2, 3, 4, 5]]
    assert tree.children() == [[1, 2], [3, 4], [5], [], [], []]
    assert tree.children(1) == [[1], [2], [3], [4], [5], []]
    nodes = torch.tensor([1, 3])
    assert tree.candidates(nodes).tolist() == [[7, 8], [4, -1]]
    assert tree.candidates(torch.tensor([3, 5])).shape == (2, 0)
    assert tree.below(nodes).tolist() == [[False, False, True, True, False], [False, False, False, True, False]]
    assert tree.child(nodes, torch.tensor([8, 4])).tolist() == [4, 4]
    assert tree.child(nodes, torch.tensor([7, 5])).tolist() == [3, 0]
    assert tree.is_leaf(torch.tensor([3, 4])).tolist() == [True, False]
    expected = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 4], [0, 2, 5]]
    assert [row.nonzero().flatten().tolist() for row in tree.seen[0]] == expected
    assert [row.nonzero().flatten().tolist() for row in tree.seen[1]] == [list(range(n + 1)) for n in range(6)]


def test_a_chain_is_a_tree():
    tokens = torch.tensor([[5, 6, 5], [1, 2, 3]])
    chain, tree = Tree.chain(tokens), Tree(tokens, torch.tensor([[0, 1, 2]] * 2))
    assert torch.equal(chain.parents, tree.parents)
    for nodes in (torch.tensor([0, 3]), torch.tensor([2, 1])):
        assert torch.equal(chain.is_leaf(nodes), tree.is_leaf(nodes))
    none = Tree.chain(tokens[:, :0])
    assert none.is_leaf(torch.zeros(2, dtype=torch.long)).all()
    assert none.seen.tolist() == [[[True]]] * 2


@every_law
def test_rows_with_fewer_candidates_ignore_what_fills_them_up(law_):
    p = torch.tensor(np.array([pair[0] for pair in random_pairs(5, 3, seed=3)]))
    candidates = torch.tensor([[0, 2, 4], [3, -1, -1], [-1, -1, -1]])
    together = sibling_walk(law_, p, candidates)
    for row, c in zip(range(3), ([0, 2, 4], [3], []), strict=True):
        expected = oracle.sibling_walk(law_.name, p[row].numpy(), c, **law_.parameters())
        np.testing.assert_allclose(together[row], expected, atol=TOLERANCE)


# --- candidates that were not sampled --------------------------------------------------------------------------------


@pytest.mark.parametrize("law_", [law("lossless"), law("lenience"), law("cos")], ids=str)
def test_the_check_sees_the_wrong_rule_for_greedy_candidates(law_):
    """min(1, π/q) on candidates that were never sampled from q breaks the law; the same check then is far from zero."""
    p, q = tables("random", 3)
    pi = induced_table(law_, "random", 3)
    greedy = {x: one_hot(int(q[x].argmax()), 3) for x in q}
    expected = torch.tensor([oracle.product(pi, x) for x in oracle.sequences(3, 3)])

    def distance(*arguments):
        return (sampled_round(*arguments).law(pi, pi)[0] - expected).abs().sum().item() / 2

    assert distance(TokenCoupling, law_, p, q, 3, 2, greedy) > 0.05
    assert distance(BlockCoupling, law_, p, q, 3, 2, greedy) > 0.05
    assert distance(TokenCoupling, law_, p, q, 3, 2) <= TOLERANCE


def test_greedy_candidates_are_exact_with_a_one_hot_draft():
    """With q a point mass on the candidate the ratio rule is right again."""
    p, q = tables("random", 3)
    greedy = {x: one_hot(int(q[x].argmax()), 3) for x in q}
    expected = [oracle.product(p, x) for x in oracle.sequences(3, 3)]
    for cls in (TokenCoupling, BlockCoupling):
        found = sampled_round(cls, law("lossless"), p, greedy, 3, 2).law(p, p)[0]
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


# --- decisions -------------------------------------------------------------------------------------------------------


def made(cls, law_, p, q, drafted):
    """A coupling of one row, from nested lists."""
    p, q = (torch.tensor([x], dtype=torch.float64) for x in (p, q))
    return cls(law_, p, q, torch.tensor([drafted]))


@pytest.mark.parametrize("name", ["token", "block", "reference"])
def test_a_token_without_mass_is_refused_at_coin_zero(name):
    law_ = law("speccascade", p_base=0.5, fallback="draft")  # token 2 is not allowed
    for gamma in (1, 2, 3):
        p, q = [[0.5, 0.5, 0.0]] * gamma, [[0.2, 0.2, 0.6]] * gamma
        round_ = made(coupling(name), law_, p, q, [2] * gamma)
        assert round_.accepted(torch.zeros(1, gamma)).item() == 0
        assert round_.replace(torch.tensor([0]), torch.tensor([0.0])).item() == 0


@pytest.mark.parametrize("cls", [TokenCoupling, BlockCoupling], ids=lambda c: c.name)
def test_a_token_that_the_target_rules_out_is_refused_at_coin_zero(cls):
    round_ = made(cls, law("lossless"), [[0.5, 0.5, 0.0]], [[0.0, 0.0, 1.0]], [2])
    assert round_.accepted(torch.zeros(1, 1)).item() == 0


def test_acceptance_is_strict_and_cumulative():
    p, q, drafted = [[0.5, 0.25, 0.25]] * 3, [[0.25, 0.5, 0.25]] * 3, [1, 1, 1]  # each is accepted with 1/2
    round_ = made(TokenCoupling, law("lossless"), p, q, drafted)
    below = np.nextafter(0.5, 0)
    for coins, accepted in [
        ([0, 0.9, 0], 1),  # 1, 0, 1
        ([0.9, 0, 0], 0),
        ([0, 0, 0.9], 2),
        ([below, below, below], 3),
        ([0.5, 0, 0], 0),
        ([below, 0.5, below], 1),
    ]:
        assert round_.accepted(torch.tensor([coins], dtype=torch.float64)).item() == accepted


def test_reference_acceptance_is_cumulative():
    law_ = law("speccascade", p_base=0.5, fallback="target")
    round_ = made(ReferenceCoupling, law_, [[0.5, 0.4, 0.1]] * 3, [[0.2, 0.2, 0.6]] * 3, [0, 2, 1])
    assert round_.accepted(torch.full((1, 3), 0.99)).item() == 1
    residual = round_.residual(torch.tensor([1]))
    assert residual.tolist() == [[0.5, 0.4, 0.1]]  # the target itself, as published


def test_block_accepts_up_to_the_last_coin_below_its_h():
    """A refusal on the way is forgotten if a later prefix is accepted, and h is that of the formula."""
    p, q = [[0.2, 0.8], [0.7, 0.3], [0.6, 0.4]], [[0.5, 0.5], [0.3, 0.7], [0.5, 0.5]]
    round_ = made(BlockCoupling, law("lossless"), p, q, [0, 0, 1])
    prefix_1, prefix_2 = 0.4, 0.4 * 7 / 3
    s_1 = max(0.4 * 0.7 - 0.3, 0) + max(0.4 * 0.3 - 0.7, 0)
    s_2 = max(prefix_2 * 0.6 - 0.5, 0) + max(prefix_2 * 0.4 - 0.5, 0)
    h = [s_1 / (s_1 + 1 - prefix_1), s_2 / (s_2 + 1 - prefix_2), prefix_2 * 0.8]
    np.testing.assert_allclose(round_.acceptance()[0], h, atol=1e-15)
    h = round_.acceptance()[0].tolist()
    assert h[0] == 0 < h[1] < h[2]
    for coins, accepted in [
        ([0, 0, 0], 3),
        ([0.9, 0.9, np.nextafter(h[2], 0)], 3),
        ([0, 0, h[2]], 2),
        ([0.9, np.nextafter(h[1], 0), 0.99], 2),
        ([0, h[1], 0.99], 0),
    ]:
        assert round_.accepted(torch.tensor([coins], dtype=torch.float64)).item() == accepted
    residual = round_.residual(torch.tensor([2]))[0]
    np.testing.assert_allclose(residual, [max(prefix_2 * 0.6 - 0.5, 0), 0], atol=1e-15)


@pytest.mark.parametrize("law_", [law("lossless"), law("cos")], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_long_blocks_of_very_different_ratios(law_, dtype):
    """h_γ = P_γ follows the recursion, P_i = min(1, P_{i−1} π_i(x_i)/q_i(x_i)), through 64 tokens."""
    rng = np.random.default_rng(10)
    p, q = (torch.from_numpy(rng.dirichlet(np.full(6, 0.2), size=(300, 64))).to(dtype) for _ in range(2))
    p = torch.where(torch.arange(300)[:, None, None] % 2 == 0, p, (0.9 * q + 0.1 * p))  # every other row nearly agrees
    drafted = sample(q, torch.from_numpy(rng.random((300, 64))))
    round_ = BlockCoupling(law_, p, q, drafted)
    pi, q_ = (x.double().gather(2, drafted[:, :, None]).squeeze(2).numpy() for x in (round_.pi, q))
    kept = np.ones(300)
    for i in range(64):
        kept = np.minimum(1, kept * pi[:, i] / q_[:, i])
    assert ((kept > 0.1) & (kept < 1)).sum() > 10
    np.testing.assert_allclose(round_.acceptance()[:, -1], kept, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-12)
    assert round_.acceptance().isfinite().all()


@pytest.mark.parametrize("cls", [TokenCoupling, BlockCoupling], ids=lambda c: c.name)
@pytest.mark.parametrize("law_", [law("lossless"), law("lenience"), law("cos")], ids=str)
def test_where_draft_equals_target_a_forced_refusal_draws_from_the_target(cls, law_):
    p = torch.tensor([0.1, 0.0, 0.6, 0.3], dtype=torch.float64)
    rows = p.expand(400, 3, 4)
    round_ = cls(law_, rows, rows, torch.full((400, 3), 2))
    assert torch.equal(round_.accepted(torch.zeros(400, 3)), torch.full((400,), 3))
    accepted = round_.accepted(torch.ones(400, 3))  # coins are below one: this refuses whatever h is
    assert torch.equal(accepted, torch.zeros(400, dtype=torch.long))
    drawn = round_.replace(accepted, (torch.arange(400) + 0.5) / 400)
    np.testing.assert_allclose(drawn.bincount(minlength=4) / 400, p, atol=1 / 400)


def test_replacement_is_drawn_from_the_residual_and_not_from_the_target():
    round_ = made(TokenCoupling, law("lossless"), [[0.5, 0.3, 0.2]], [[0.2, 0.2, 0.6]], [2])
    coins = (torch.arange(400) + 0.5) / 400
    drawn = torch.stack([round_.replace(torch.tensor([0]), coin.view(1))[0] for coin in coins])
    np.testing.assert_allclose(drawn.bincount(minlength=3) / 400, [0.75, 0.25, 0], atol=1 / 400)


@pytest.mark.parametrize("name", ["token", "block", "reference", "tree"])
def test_rows_of_a_batch_are_verified_on_their_own(name):
    """Rows with different numbers of accepted tokens, together and each alone."""
    law_, gamma = law("typical", fallback="target"), 4
    generator = torch.Generator().manual_seed(6)
    p, q = (torch.rand(40, gamma, 5, generator=generator).pow(3) for _ in range(2))
    p, q = (x / x.sum(-1, keepdim=True) for x in (p, q))
    drafted = sample(q, torch.rand(40, gamma, generator=generator))
    coins, last = torch.rand(40, gamma, generator=generator), torch.rand(40, generator=generator)
    together = coupling(name)(law_, p, q, drafted)
    accepted = together.accepted(coins)
    replaced = together.replace(accepted, last)
    assert len(accepted.unique()) > 2
    for i in range(40):
        alone = coupling(name)(law_, p[i : i + 1], q[i : i + 1], drafted[i : i + 1])
        assert torch.equal(alone.accepted(coins[i : i + 1]), accepted[i : i + 1])
        if accepted[i] < gamma:
            assert torch.equal(alone.replace(accepted[i : i + 1], last[i : i + 1]), replaced[i : i + 1])


@every_law
def test_greedy_accepts_the_leading_matches_with_the_argmax(law_):
    """For every drafted pair; ties go to the lowest token id, and no coin matters."""
    p, q = tables("structured", 4)
    pi = induced_table(law_, "structured", 4)
    drafted = every(4, 2)
    round_ = GreedyCoupling(law_, along(p, 4, drafted), along(q, 4, drafted), drafted)
    accepted = round_.accepted(torch.full((16, 2), 0.999))
    replaced = round_.replace(accepted, torch.zeros(16))
    for i, (x, y) in enumerate(drafted.tolist()):
        best = [next(t for t in range(4) if pi[z][t] > pi[z].max() - 1e-14) for z in ((), (x,))]
        assert accepted[i] == (0 if x != best[0] else 1 if y != best[1] else 2)
        if accepted[i] < 2:
            assert replaced[i] == best[accepted[i]]


def test_greedy_ties():
    round_ = made(GreedyCoupling, law("lossless"), [[0.2, 0.4, 0.4]] * 2, [[0.3, 0.3, 0.4]] * 2, [1, 2])
    accepted = round_.accepted(torch.zeros(1, 2))
    assert accepted.item() == 1
    assert round_.replace(accepted, torch.zeros(1)).item() == 1


@pytest.mark.parametrize("name", ["token", "block", "reference", "tree"])
def test_a_missing_draft_distribution_is_refused_where_it_is_read(name):
    """Taking p for q would accept whatever was drafted."""
    drafted, p = torch.tensor([[0]]), torch.tensor([[[0.5, 0.5]]])
    with pytest.raises(LossyError, match="draft"):
        coupling(name)(law("typical"), p, None, drafted)
    if name in ("token", "block"):  # they compare with q whatever the law is
        with pytest.raises(LossyError, match="draft"):
            coupling(name)(law("lossless"), p, None, drafted)
    if name == "tree":
        assert coupling(name)(law("min_p"), p, None, drafted).accepted(torch.tensor([[0.1]])).item() == 1
        assert coupling(name)(law("lenience", lenience=1), p, None, drafted).accepted(torch.tensor([[0.9]])).item() == 0


def test_couplings_are_found_by_name():
    assert {"token", "block", "tree", "reference"} <= set(couplings())
    assert all(coupling(name).name == name for name in couplings())
    with pytest.raises(LossyError, match=r"unknown coupling 'tokn'.*Did you mean 'token'"):
        coupling("tokn")
    assert not coupling("tree").samples_draft
    assert all(coupling(name).samples_draft for name in ("token", "block", "reference"))


@every_law
def test_reference_exists_where_the_published_rule_differs(law_):
    rule = oracle.published(law_.name, np.full(2, 0.5), np.full(2, 0.5), **law_.parameters())
    assert ReferenceCoupling.supports(law_) == (rule is not None)


# --- sampling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sample_never_draws_a_token_without_weight(dtype):
    generator = torch.Generator().manual_seed(7)
    weights = torch.rand(2000, 50, generator=generator, dtype=dtype)
    weights *= torch.rand(2000, 50, generator=generator) < torch.rand(2000, 1, generator=generator)  # from few to many
    weights[:, 25] += 1e-6
    weights[:500] *= torch.arange(50) <= 25  # the last tokens have none
    weights[500:1000] *= torch.arange(50) >= 25  # nor the first
    weights[1000:1500] *= 1e-20
    weights[1500:] *= 1e6
    last = torch.nextafter(torch.ones((), dtype=dtype), torch.zeros((), dtype=dtype))
    for coin in (torch.zeros((), dtype=dtype), last, last / 2):
        drawn = sample(weights, coin.expand(2000))
        assert (weights.gather(1, drawn[:, None]) > 0).all()
    positive = weights > 0
    assert torch.equal(sample(weights, torch.zeros(2000, dtype=dtype)), positive.long().argmax(1))


def test_sample_with_many_tokens_in_float32():
    """At a large vocabulary the running sum rounds: no token without weight is drawn all the same."""
    generator = torch.Generator().manual_seed(8)
    weights = torch.randn(20, 50_000, generator=generator).mul(3).softmax(-1)
    weights[:, 1::2] = 0
    for coins in (torch.zeros(20), torch.full((20,), 1 - 2**-24), torch.rand(20, generator=generator)):
        drawn = sample(weights, coins)
        assert (weights.gather(1, drawn[:, None]) > 0).all()


def test_of_a_residual_so_small_that_a_coins_share_rounds_up_nothing_is_drawn():
    p, q = torch.tensor([[[0.5, 1e-45, 0.5, 0.0]]]), torch.tensor([[[0.5, 0.0, 0.5, 0.0]]])
    made = TokenCoupling(law("lossless"), p, q, torch.tensor([[0]]))
    assert made.residual(torch.tensor([0])).sum() > 0
    for coin, token in ((1 - 2**-24, 2), (0.0, 0)):
        assert made.replace(torch.tensor([0]), torch.tensor([coin])).item() == token


def test_sample_is_the_inverse_transform_of_unnormalised_weights():
    weights = torch.tensor([[0.0, 3.0, 0.0, 1.0, 4.0]], dtype=torch.float64)
    for coin, token in [(0, 1), (0.374, 1), (0.375, 3), (0.499, 3), (0.5, 4), (0.999, 4)]:
        for scale in (1, 0.01, 100):
            assert sample(weights * scale, torch.tensor([coin], dtype=torch.float64)).item() == token
    assert sample(weights[0], torch.tensor(0.5)).item() == 4  # no leading dimension
    assert sample(weights.expand(2, 3, 5), torch.full((2, 3), 0.5)).tolist() == [[4] * 3] * 2


def test_sample_frequencies():
    weights = torch.tensor([5.0, 0.0, 1.0, 3.0, 0.5, 0.5])
    coins = torch.rand(100_000, generator=torch.Generator().manual_seed(9))
    counts = sample(weights.expand(100_000, 6), coins).bincount(minlength=6).numpy()
    used = weights.numpy() > 0
    assert counts[~used].sum() == 0
    expected = weights.double().numpy()[used] / weights.sum().item() * counts.sum()
    assert scipy.stats.chisquare(counts[used], expected).pvalue > 1e-5
