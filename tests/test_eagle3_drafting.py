"""EAGLE-3 heads in ``generate()``: trees and chains, their law, their caches.

The law is enumerated: every token that every draw of a run may give is tried in turn, weighted with the probability that
was used there, and the law of the whole text is compared with one computed from plain forwards of the target, the
step-by-step evaluation of the head in test_eagle3_heads.py, the tree search by its definition, and tests/oracle.py. The
norms of transformers' models are computed in single precision whatever their inputs are, so that these agree to 1e-6 and
not to 1e-12; the couplings alone are enumerated to 1e-12 in test_couplings.py.

Rows of shared/spec/user_reports.md are named in comments.
"""

from __future__ import annotations

import copy
import functools
import importlib
import itertools
import math
import threading
import types
from collections import defaultdict

import numpy as np
import pytest
import scipy.stats
import torch
from transformers import DynamicCache, StaticCache

import hf_lossy
from hf_lossy.cached_model import CachedModel
from hf_lossy.compat import CACHE_NAME, default_cache
from hf_lossy.drafting import Eagle3ChainDraft, Eagle3TreeDraft, HeadRunner
from hf_lossy.drafting.schedule import Costs, ExpectedTree, TreeSchedule
from hf_lossy.eagle3 import HeadCache
from hf_lossy.errors import LossyError
from hf_lossy.generation import api, loop
from hf_lossy.loading import load_pair
from hf_lossy.scores import Scorer
from hf_lossy.tree import Tree

from . import oracle
from .models import PROMPT, draft, gemma3, head, lossy, mistral, plain, qwen3, sibling, target
from .test_eagle3_heads import step_by_step
from .test_sampling_law import LAWS

LONG = torch.randint(1, 32, (1, 30), generator=torch.Generator().manual_seed(0))
FAMILIES = {"llama": target, "qwen3": qwen3, "mistral, sliding": mistral, "gemma3, hybrid": gemma3}
each_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
TREE_OF_EAGLE = {"tree_size": 60, "tree_depth": 5, "tree_top_k": 10}
WIDE = {"tree_size": 200, "tree_depth": 3, "tree_top_k": 12}
"""A tree so wide that a random head's candidates are often right, several levels deep."""


# --- the law of whole texts, enumerated -------------------------------------------------------------------------------

COUPLING = importlib.import_module("hf_lossy.couplings.descend")  # the function of that name hides it
V, LENGTH = 3, 4
IDS = PROMPT % V
SEARCH = {"tree_size": 5, "tree_depth": 1, "tree_top_k": 2}


@functools.cache
def exact():
    """A target in double precision, and a head that can draft two of its three tokens."""
    big = copy.deepcopy(target(V)).double()
    return big, head(big, 2, seed=3)


def drafted_ids() -> list[int]:
    """The target's id of each draft token: the offsets say how far it is from the draft's."""
    return [i + offset for i, offset in enumerate(exact()[1].d2t.tolist())]


@functools.cache
def p_after(text: tuple[int, ...]) -> np.ndarray:
    with torch.no_grad():
        return exact()[0](torch.tensor([text])).logits[0, -1].softmax(-1).double().numpy()


@functools.cache
def head_logits(text: tuple[int, ...], path: tuple[int, ...]) -> np.ndarray:
    """Draft logits after a settled text and the drafted tokens of a path."""
    big, small = exact()
    state = small.state_dict()
    layer = {name.removeprefix("layers.0."): x for name, x in state.items() if name.startswith("layers.0.")}
    with torch.no_grad():
        states = big(torch.tensor([text]), output_hidden_states=True).hidden_states
        # the last entry is after the final norm; the head's last tap is before it
        kept = []
        hook = big.model.norm.register_forward_pre_hook(lambda module, args: kept.append(args[0]))
        big(torch.tensor([text]))
        hook.remove()
    taps = torch.cat([*states[:-1], kept[0]], -1)[0].double()
    rows, tokens = [*taps[:-1], *[None] * len(path)], [*text[1:], *path]
    choices = {"theta": 10000.0, "nbr": False}
    embedding = big.get_input_embeddings().weight.detach()
    return step_by_step(state, layer, choices, embedding, rows, tokens, range(len(rows)))[-1].numpy()


def q_after(text: tuple[int, ...], path: tuple[int, ...]) -> np.ndarray:
    logits, q = head_logits(text, path), np.zeros(V)
    q[drafted_ids()] = np.exp(logits - logits.max())
    return q / q.sum()


def likeliest(text: tuple[int, ...], path: tuple[int, ...], k: int) -> list[tuple[float, int]]:
    """The k likeliest tokens of the head, with their log-probabilities."""
    logits = head_logits(text, path)
    logs = logits - np.log(np.exp(logits).sum())
    return sorted(((float(x), int(t)) for x, t in zip(logs, drafted_ids(), strict=True)), reverse=True)[:k]


@functools.cache
def candidates(text: tuple[int, ...], room: int, mode: str) -> dict[tuple[int, ...], list[int]]:
    """The children of every path of the tree that is drafted after a text, in the order of preference.

    Of all paths of at most two tokens, each among the two likeliest where it stands, the four with the largest probability.
    """
    size, depth, k = (SEARCH["tree_size"] - 1, 2, 2) if mode == "tree" else (2, 2, 1)
    pool, level = [], [(0.0, ())]
    for _ in range(min(depth, room - 1)):
        level = [(log + x, (*path, t)) for log, path in level for x, t in likeliest(text, path, k)]
        pool += level
    children = defaultdict(list)
    for _, path in sorted(pool, key=lambda entry: -entry[0])[:size]:
        children[path[:-1]].append(path[-1])
    return children


def expected_law(law, mode: str, reading: str, bonus: str) -> np.ndarray:
    """The law of the text after the prompt, [V, …, V], round by round."""
    found = np.zeros([V] * LENGTH)
    parameters = law.to_dict()
    method = parameters.pop("method")

    def pi(text, path, children):
        p, q = p_after((*text, *path)), q_after(text, path)
        if reading == "point_mass":
            return oracle.sibling_walk(method, p, children, **parameters)
        if not children and bonus == "target":
            return p
        return oracle.induced(method, p, q, **parameters)

    def play(text, weight, first=False):
        emitted = text[IDS.shape[1] :]
        if weight == 0 or len(emitted) >= LENGTH:
            found[emitted] += weight
            return
        tree = {} if first else candidates(text, LENGTH - len(emitted), mode)

        def walk(path, weight):
            children = tree.get(path, [])
            for token, probability in enumerate(pi(text, path, children)):
                if token in children:
                    walk((*path, token), weight * probability)
                else:
                    play((*text, *path, token), weight * probability)

        walk((), weight)

    play(tuple(IDS[0].tolist()), 1.0, first=True)
    return found


def enumerated_law(monkeypatch, **options) -> np.ndarray:
    """The law of generate()'s text: every token at every draw, with the probability that stood there."""
    big, small = exact()
    found, pending = np.zeros([V] * LENGTH), [()]
    while pending:
        script, weights = list(pending.pop()), []

        def draw(pi, coins, script=script, weights=weights):
            drawn = []
            for row in (pi / pi.sum(-1, keepdim=True)).reshape(-1, V):
                if len(weights) == len(script):  # nothing is decided here yet: token 0 now, the others later
                    pending.extend((*script, other) for other in range(1, V))
                    script.append(0)
                drawn.append(script[len(weights)])
                weights.append(float(row[drawn[-1]]))
            return torch.tensor(drawn).view(pi.shape[:-1])

        monkeypatch.setattr(loop, "sample", draw)
        monkeypatch.setattr(COUPLING, "sample", draw)
        out = lossy(big, IDS, assistant_model=small, do_sample=True, top_k=0, max_new_tokens=LENGTH, **options)
        found[tuple(out[0, IDS.shape[1] :].tolist())] += math.prod(weights)
    return found


RUNS = [
    *((law, "tree", reading, "induced") for law in LAWS for reading in ("head", "point_mass")),
    (hf_lossy.Cos(0.6), "tree", "head", "target"),
    (hf_lossy.Lossless(), "chain", "head", "induced"),
    (hf_lossy.Lenience(0.4), "chain", "head", "induced"),
    (hf_lossy.Lenience(0.4), "chain", "point_mass", "induced"),
    (hf_lossy.Typical(0.15), "chain", "head", "target"),
]


# EAGLE#183, #221, #329, #171, #110, #148, #50, #47: is a tree exact at T > 0?
@pytest.mark.parametrize(("law", "mode", "reading", "bonus"), RUNS, ids=str)
def test_whole_texts_follow_the_law(law, mode, reading, bonus, monkeypatch):
    search = SEARCH if mode == "tree" else {"num_assistant_tokens": 2}
    found = enumerated_law(monkeypatch, verification=law, draft_mode=mode, draft_probs=reading, bonus=bonus, **search)
    expected = expected_law(law, mode, reading, bonus)
    assert found.sum() == pytest.approx(1, abs=1e-9)
    assert expected.sum() == pytest.approx(1, abs=1e-9)
    assert np.abs(found - expected).sum() / 2 < 1e-6


def test_a_tree_that_happens_to_be_a_chain(monkeypatch):
    """With two nodes or one child each a dynamic tree is a chain, and its q is asked for node by node all the same."""
    for size, k in ((2, 2), (3, 1)):
        search = {"tree_size": size, "tree_depth": 1, "tree_top_k": k}
        found = enumerated_law(monkeypatch, verification="lenience", **search)
        assert found.sum() == pytest.approx(1, abs=1e-9)
        # of paths of two tokens with one child each, q after none, one and two drafted tokens: a chain of that length
        chain = expected_law(hf_lossy.Lenience(), "chain", "head", "induced")
        if size == 3:
            assert np.abs(found - chain).sum() / 2 < 1e-6


@pytest.mark.parametrize("law", [hf_lossy.Lossless(), hf_lossy.MinP(0.3)], ids=str)
def test_trees_of_the_schedules_choice_follow_the_law(law, monkeypatch):
    """Whose depth and size depend on what the rounds before accepted. (A law that uses q depends on the shape of the tree: a
    head's q after a drafted token is not its q after the same token once that is settled.)"""
    sizes, chosen = set(), ExpectedTree.choose

    def choose(self, reach):
        sizes.add((self.length, chosen(self, reach)))
        return self.size

    monkeypatch.setattr(ExpectedTree, "choose", choose)
    costs = Costs({1: 1.0, 2: 1.01, 64: 3.0}, {1: 0.1})
    monkeypatch.setattr(api, "costs", lambda *of: costs)
    search = {"num_assistant_tokens_schedule": "expected", "tree_top_k": 2}
    found = enumerated_law(monkeypatch, verification=law, **search)
    expected = expected_law(law, "tree", "head", "induced")
    assert found.sum() == pytest.approx(1, abs=1e-9)
    assert np.abs(found - expected).sum() / 2 < 1e-6
    assert len(sizes) > 1


def test_the_lossless_law_is_the_targets_own(monkeypatch):
    """Whatever the head says."""
    found = enumerated_law(monkeypatch, verification="lossless", **SEARCH)
    text = tuple(IDS[0].tolist())
    for tokens in itertools.product(range(V), repeat=LENGTH):
        expected = math.prod(p_after((*text, *tokens[:i]))[t] for i, t in enumerate(tokens))
        assert found[tokens] == pytest.approx(expected, abs=1e-6)


def test_the_enumeration_sees_a_wrong_reading(monkeypatch):
    found = enumerated_law(monkeypatch, verification="lenience", draft_probs="point_mass", **SEARCH)
    wrong = expected_law(hf_lossy.Lenience(), "tree", "head", "induced")
    assert np.abs(found - wrong).sum() / 2 > 0.01


# --- sampled chains ---------------------------------------------------------------------------------------------------


def sampled_law(law, gamma: int) -> np.ndarray:
    """The law of the first three tokens where chains are drawn from q and verified token by token: an accepted token is
    followed by the q of the chain, a replaced one by that of a new round."""
    found, text = np.zeros([V] * 3), tuple(IDS[0].tolist())
    parameters = law.to_dict()
    method = parameters.pop("method")

    def play(text, path, weight, room):
        emitted = (*text, *path)[IDS.shape[1] :]
        if len(emitted) == 3 or weight == 0:
            found[emitted] += weight
            return
        p, q = p_after((*text, *path)), q_after(text, path)
        pi = oracle.induced(method, p, q, **parameters)
        for token in range(V):
            if len(path) == room:  # the bonus
                play((*text, *path, token), (), weight * pi[token], min(gamma, 3 - len(emitted) - 2))
                continue
            kept = min(pi[token], q[token])
            play(text, (*path, token), weight * kept, room)
            play((*text, *path, token), (), weight * (pi[token] - kept), min(gamma, 3 - len(emitted) - 2))

    play(text, (), 1.0, 0)
    return found


@pytest.mark.parametrize(
    ("law", "coupling"),
    [(hf_lossy.Lossless(), "block"), (hf_lossy.Lossless(), "token"), (hf_lossy.Lenience(0.3), "token")],
    ids=str,
)
def test_sampled_chains_follow_the_law(law, coupling):
    """False alarms: a p-value below 1e-6, three times."""
    big, small = exact()
    found, generator = np.zeros([V] * 3), torch.Generator().manual_seed(0)
    options = {"draft_mode": "sampled", "coupling": coupling, "num_assistant_tokens": 2, "generator": generator}
    for _ in range(600):
        out = lossy(
            big, IDS, assistant_model=small, do_sample=True, top_k=0, max_new_tokens=3, verification=law, **options
        )
        found[tuple(out[0, IDS.shape[1] :].tolist())] += 1
    expected = sampled_law(law, 2).flatten() * found.sum()
    counts, few = found.flatten(), expected < 5
    cells = [np.append(x[~few], x[few].sum()) for x in (counts, expected)]
    statistic = sum((o - e) ** 2 / e for o, e in zip(*cells, strict=True) if e > 0.5)
    assert scipy.stats.chi2.sf(statistic, len(cells[0]) - 1) > 1e-6


def test_the_chi_square_sees_a_ratio_rule_on_greedy_candidates(monkeypatch):
    """min(1, p/q) on tokens that were not sampled from q is the classical mistake."""
    big, small = exact()
    expected = sampled_law(hf_lossy.Lossless(), 2)
    found, generator = np.zeros([V] * 3), torch.Generator().manual_seed(0)
    made = Eagle3ChainDraft.__init__

    def pretending(self, runner, how, schedule, samples):
        made(self, runner, how, schedule, samples=True)

    monkeypatch.setattr(Eagle3ChainDraft, "__init__", pretending)
    for _ in range(400):
        out = lossy(
            big,
            IDS,
            assistant_model=small,
            do_sample=True,
            top_k=0,
            max_new_tokens=3,
            draft_mode="chain",
            num_assistant_tokens=2,
            generator=generator,
        )
        found[tuple(out[0, IDS.shape[1] :].tolist())] += 1
    assert np.abs(found / found.sum() - expected).sum() / 2 > 0.1


# --- greedy -----------------------------------------------------------------------------------------------------------


# EAGLE#212: text at T = 0 differs from plain decoding
@each_family
@pytest.mark.parametrize("ids", [PROMPT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("search", [TREE_OF_EAGLE, WIDE, {"tree_size": 4, "tree_depth": 0, "tree_top_k": 3}], ids=str)
def test_greedy_trees_are_plain_greedy(family, ids, search):
    big, stats = family(), hf_lossy.VerificationStats()
    ours = lossy(big, ids, assistant_model=head(big), max_new_tokens=30, verification_stats=stats, **search)
    assert torch.equal(ours, plain(big, ids, max_new_tokens=30))
    if search is WIDE:
        assert max(stats.acceptance_histogram) >= 2
    if ids is LONG:
        assert len(stats.rounds) < 30


@pytest.mark.parametrize("mode", ["tree", "chain", "sampled"])
def test_the_embedded_head_writes_what_its_target_writes(mode):
    pair, stats = load_pair("arithmetic-eagle3"), hf_lossy.VerificationStats()
    for prompt in pair.prompts[:6]:
        inputs, settings = pair.inputs(prompt), {"do_sample": False, "max_new_tokens": 24}
        plain_text = pair.target.generate(**inputs, **settings)
        options = {**pair.drafting(draft_mode=mode), **settings, "verification_stats": stats}
        assert torch.equal(hf_lossy.generate(pair.target, **inputs, **options, verification="lossless"), plain_text)
    assert stats.mean_acceptance_length > 3  # of a head that was trained for this target


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_greedy_trees_of_every_room(count):
    ours = lossy(target(), assistant_model=head(target()), max_new_tokens=count, **WIDE)
    assert torch.equal(ours, plain(target(), max_new_tokens=count))


@pytest.mark.parametrize("ids", [PROMPT[:, :1], PROMPT[:, :2]], ids=["one token", "two tokens"])
@pytest.mark.parametrize("mode", ["tree", "chain", "sampled"])
def test_short_prompts(ids, mode):
    for sample in (False, True):
        ours = lossy(target(), ids, assistant_model=head(target()), draft_mode=mode, do_sample=sample, top_k=1)
        assert torch.equal(ours, plain(target(), ids))


def test_a_left_padded_prompt():
    ids = torch.cat([torch.zeros(1, 3, dtype=torch.long), LONG], 1)
    mask = (torch.arange(33) >= 3).long()[None]
    for family in (target, mistral, gemma3):
        ours = lossy(family(), ids, assistant_model=head(family()), attention_mask=mask, **WIDE)
        assert torch.equal(ours, plain(family(), ids, attention_mask=mask))


def test_a_prefill_in_chunks():
    for mode in ({"draft_mode": "chain"}, WIDE):
        whole, chunked = (
            lossy(
                target(),
                LONG,
                assistant_model=head(target()),
                prefill_chunk_size=chunk,
                return_dict_in_generate=True,
                **mode,
            )
            for chunk in (None, 4)
        )
        assert torch.equal(chunked.sequences, plain(target(), LONG))
        # the head has read the same states
        assert chunked.verification.rounds == whole.verification.rounds


def test_processors_see_the_path_of_their_node():
    """A repetition penalty looks at the whole prefix, the drafted tokens of the node's own path included."""
    options = {"repetition_penalty": 3.0, "no_repeat_ngram_size": 2}
    ours = lossy(target(), assistant_model=head(target()), **WIDE, **options)
    assert torch.equal(ours, plain(target(), **options))
    assert not torch.equal(ours, plain(target()))


def test_eager_attention_and_other_precisions():
    big = target(attention="eager")
    assert torch.equal(lossy(big, assistant_model=head(big), **WIDE), plain(big))
    double = exact()[0]
    assert torch.equal(lossy(double, IDS, assistant_model=exact()[1]), plain(double, IDS))


def test_what_is_recorded_is_plain_greedys():
    asked = {f"output_{name}": True for name in ("scores", "logits", "hidden_states", "attentions")}
    big = target(attention="eager")
    options = {"return_dict_in_generate": True, "max_new_tokens": 12, **asked}
    ours, theirs = lossy(big, assistant_model=head(big), **WIDE, **options), plain(big, **options)
    assert any(r.accepted > 1 for r in ours.verification.rounds)
    for name in ("scores", "logits"):
        torch.testing.assert_close(
            torch.stack(getattr(ours, name)), torch.stack(getattr(theirs, name)), atol=1e-4, rtol=0
        )
    for name in ("hidden_states", "attentions"):
        for mine, other in zip(getattr(ours, name), getattr(theirs, name), strict=True):
            for a, b in zip(mine, other, strict=True):
                torch.testing.assert_close(a, b, atol=1e-4, rtol=0)


# --- one forward over a tree, and the cache after it ------------------------------------------------------------------

TREE = Tree(torch.tensor([[3, 9, 4, 7, 9, 1, 12]]), torch.tensor([[0, 0, 1, 1, 2, 4, 6]]))
PATHS = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 4], [0, 2, 5], [0, 1, 4, 6], [0, 1, 4, 6, 7]]


def caches(big):
    yield "dynamic", default_cache(big)
    yield "dynamic, untyped", DynamicCache()
    if big is not None and getattr(big.config, "sliding_window", None) is None:
        yield "static", StaticCache(config=big.config, max_cache_len=64)


def in_double(model):
    """A copy that is computed in double precision throughout: transformers' norms turn to single precision."""

    def norm(self, x):
        scale = self.weight + 1 if type(self).__name__.startswith("Gemma") else self.weight
        eps = self.eps if hasattr(self, "eps") else self.variance_epsilon
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * scale

    made = copy.deepcopy(model).double()
    for module in made.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(norm, module)
    return made


@each_family
@pytest.mark.parametrize("before", [0, 5, 20])
def test_a_tree_in_one_forward_is_its_paths_one_by_one(family, before):
    """And the cache that is left after any path holds what a fresh one holds: so does the next forward."""
    big = in_double(family())
    text = LONG[:, : before + 1]
    settled = text.shape[1]
    for path in PATHS:
        for kind, cache in caches(big):
            with torch.no_grad():
                cached = CachedModel(big, cache, "target")
                if before:
                    cached(text[:, :-1])
                    cached.crop([before])
                fed = torch.cat([text[:, cached.held[0] :], TREE.tokens], 1)
                logits = cached(fed, logits=8, seen=TREE.seen).logits[0, -8:]
                for node, nodes in enumerate(PATHS):
                    line = torch.cat([text, TREE.tokens[:, [n - 1 for n in nodes[1:]]]], 1)
                    assert torch.allclose(logits[node], big(line).logits[0, -1], atol=1e-10, rtol=0), (kind, node)
                cached.crop([settled + len(path) - 1], [path])
                line = torch.cat([text, TREE.tokens[:, [n - 1 for n in path[1:]]]], 1)
                assert cached.held == [line.shape[1]]
                more = torch.tensor([[2, 11, 6]])
                after = cached(more, logits=3).logits[0, -3:]
                expected = big(torch.cat([line, more], 1)).logits[0, -3:]
            assert torch.allclose(after, expected, atol=1e-10, rtol=0), (kind, path)


@each_family
@pytest.mark.parametrize("count", [1, 7, 12, 25])
def test_the_returned_cache_is_one_computed_from_scratch(family, count):
    big = family()
    out = lossy(big, assistant_model=head(big), max_new_tokens=count, return_dict_in_generate=True, **WIDE)
    cache, fresh = getattr(out, CACHE_NAME), default_cache(big)
    with torch.no_grad():
        big(out.sequences[:, :-1], **{CACHE_NAME: fresh}, use_cache=True)
    for ours, theirs in zip(cache.layers, fresh.layers, strict=True):
        width = min(ours.keys.shape[-2], theirs.keys.shape[-2])
        assert ours.get_seq_length() == theirs.get_seq_length() == out.sequences.shape[1] - 1
        assert torch.allclose(ours.keys[:, :, -width:], theirs.keys[:, :, -width:], atol=1e-5)
        assert torch.allclose(ours.values[:, :, -width:], theirs.values[:, :, -width:], atol=1e-5)
    continued = plain(big, out.sequences, max_new_tokens=6, **{CACHE_NAME: cache})
    assert torch.equal(continued, plain(big, max_new_tokens=count + 6))


def test_a_static_cache():
    out = lossy(
        target(), assistant_model=head(target()), cache_implementation="static", return_dict_in_generate=True, **WIDE
    )
    assert isinstance(getattr(out, CACHE_NAME), StaticCache)
    assert torch.equal(out.sequences, plain(target()))


# --- taps -------------------------------------------------------------------------------------------------------------


@each_family
def test_taps_are_the_hidden_states_before_the_final_norm(family):
    big = family()
    layers = big.config.num_hidden_layers
    cached = CachedModel(big, default_cache(big), "target", taps=range(layers + 1))
    with torch.no_grad():
        cached(LONG[:, :7])
        cached(LONG[:, 7:12])
        cached.crop([10])
        cached(LONG[:, 10:11])
        expected = big(LONG[:, :11], output_hidden_states=True).hidden_states
        parts = cached.tapped([2], 9).split(big.config.hidden_size, -1)
        for tap in range(layers):
            assert torch.allclose(parts[tap], expected[tap][:, 2:11], atol=1e-5)
        assert torch.allclose(big.model.norm(parts[layers]), expected[layers][:, 2:11], atol=1e-5)
    assert not any(module._forward_pre_hooks for module in big.modules())


def test_taps_keep_their_own_threads_states():
    """Two threads inside a forward of one model at the same time."""
    big, met, found = copy.deepcopy(target()), threading.Barrier(2, timeout=20), {}

    def meet(*_):
        met.wait()

    big.model.layers[0].register_forward_pre_hook(meet)
    big.model.norm.register_forward_hook(meet)  # nobody leaves before both have been there

    def work(name, text):
        cached = CachedModel(big, default_cache(big), "target", taps=[0, big.config.num_hidden_layers])
        with torch.no_grad():
            cached(text)
        found[name] = cached.tapped([0], text.shape[1])

    texts = {"a": LONG[:, :7], "b": LONG[:, 3:10]}
    threads = [threading.Thread(target=work, args=given) for given in texts.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, text in texts.items():
        alone = CachedModel(target(), default_cache(target()), "target", taps=[0, big.config.num_hidden_layers])
        with torch.no_grad():
            alone(text)
        assert torch.equal(found[name], alone.tapped([0], 7))


def test_taps_leave_no_hooks_after_an_error():
    big = target()
    cached = CachedModel(big, default_cache(big), "target", taps=[1])
    with pytest.raises(IndexError):
        cached(torch.tensor([[99]]))
    assert not any(module._forward_pre_hooks for module in big.modules())


# --- the search -------------------------------------------------------------------------------------------------------


def test_a_tree_holds_the_likeliest_paths_of_those_that_were_searched(monkeypatch):
    """A pool by definition, with the head evaluated path by path; sizes from two nodes to the whole pool."""
    big = copy.deepcopy(target()).double()
    small, seen = head(big, 20), []
    propose = Eagle3TreeDraft.propose

    def recording(self, tokens, lengths, count):
        proposal = propose(self, tokens, lengths, count)
        seen.append((tokens[:, : lengths[0]].clone(), count, proposal.tree))
        return proposal

    monkeypatch.setattr(Eagle3TreeDraft, "propose", recording)
    for size, depth, k in ((2, 3, 4), (8, 2, 3), (40, 3, 4), (500, 2, 5)):
        seen.clear()
        lossy(big, assistant_model=small, tree_size=size, tree_depth=depth, tree_top_k=k, max_new_tokens=6)
        for text, count, tree in seen[1:]:
            if count < 1:
                continue
            level, pool = [((), 0.0)], []
            for d in range(min(depth, count - 1) + 1):
                frontier = sorted(level, key=lambda entry: -entry[1])[:k] if d else level
                level = []
                for path, score in frontier:
                    logs = log_probs(big, small, text, path)
                    best = logs.topk(k)
                    level += [
                        ((*path, int(small.draft_to_target[i])), score + float(x))
                        for x, i in zip(best.values, best.indices, strict=True)
                    ]
                pool += level
            expected = {path for path, _ in sorted(pool, key=lambda entry: -entry[1])[: size - 1]}
            found = [
                tuple(tree.tokens[0, n - 1].item() for n in nodes.nonzero().flatten().tolist()[1:])
                for nodes in tree.seen[0, 1:]
            ]
            assert set(found) == expected
            assert len(found) == len(expected)
            scores = dict(pool)
            for children in tree.children():
                order = [scores[found[c - 1]] for c in children]
                assert order == sorted(order, reverse=True)


def log_probs(big, small, text, path):
    """The head over a text and a drafted path, as one chain without any cache."""
    with torch.no_grad():
        cached = CachedModel(big, default_cache(big), "target", taps=small.config.taps)
        cached(text)
        features = small.features(cached.tapped([0], text.shape[1] - 1))
        tokens = text[:, 1:]
        for token in (None, *path):
            if token is not None:
                tokens = torch.cat([tokens, torch.tensor([[token]])], 1)
                features = torch.cat([features, small.feedback(y[:, -1:])], 1)
            rows = tokens.shape[1]
            mask = torch.ones(rows, rows, dtype=torch.bool).tril()
            y = small(features, tokens, torch.arange(rows)[None], HeadCache(), mask)
        return small.logits(y)[0, -1].log_softmax(-1)


# --- statistics -------------------------------------------------------------------------------------------------------


# EAGLE#146, #132, #95, #153, #143, #169
def test_statistics_of_trees_count_levels():
    out = lossy(target(), LONG, assistant_model=head(target()), max_new_tokens=30, return_dict_in_generate=True, **WIDE)
    stats = out.verification
    assert {"draft": "Eagle3Tree", **WIDE}.items() <= stats.settings.items()
    assert stats.settings["draft_probs"] == "head"
    assert sum(r.emitted for r in stats.rounds) == 30 == len(stats.rows[0].sources)
    assert stats.rounds[0].drafted == 0
    assert {r.drafted for r in stats.rounds[1:-4]} == {199}
    assert {r.depth for r in stats.rounds[1:-4]} == {4}
    assert len(stats.acceptance_rate_per_position) == 4
    reached = [sum(r.accepted > i for r in stats.rounds) for i in range(4)]
    deep = [sum((r.drafted if r.depth is None else r.depth) > i for r in stats.rounds) for i in range(4)]
    assert stats.acceptance_rate_per_position == [a / b for a, b in zip(reached, deep, strict=True)]
    assert stats.target_forwards == len(stats.rounds)


@pytest.mark.parametrize("reading", ["head", "point_mass"])
def test_accounting_of_trees(reading):
    options = {"verification": hf_lossy.Lenience(0.3), "draft_probs": reading, "accounting": True}
    out = lossy(
        target(),
        assistant_model=head(target()),
        do_sample=True,
        top_k=0,
        generator=torch.Generator().manual_seed(0),
        return_dict_in_generate=True,
        **WIDE,
        **options,
    )
    rows, table = out.verification.rows[0], out.verification.rows[0].accounting
    assert len(table["tv"]) == 24
    assert max(table["max_log_ratio"]) <= math.log(1 / 0.3) + 1e-4
    assert max(table["tv"]) > 0.01
    # a bonus position has no candidates, hence no acceptance
    without = [math.isnan(x) for x in table["acceptance"]]
    if reading == "point_mass":
        assert without == [source == "bonus" for source in rows.sources]
        assert all(math.isnan(x) for x in table["wasted_distortion"])
    else:
        assert not any(math.isnan(x) for x in table["wasted_distortion"])


def test_a_text_that_ends_inside_a_tree_is_cut_there():
    plain_text = plain(target(), max_new_tokens=24)[0, PROMPT.shape[1] :].tolist()
    for position in (3, 6, 11):
        end = plain_text[position]
        first = plain_text.index(end)
        stats = hf_lossy.VerificationStats()
        out = lossy(target(), assistant_model=head(target()), eos_token_id=end, verification_stats=stats, **WIDE)
        assert out[0, PROMPT.shape[1] :].tolist() == plain_text[: first + 1]
        assert stats.rounds[-1].stop == "eos"
        assert stats.emitted == first + 1


def test_the_head_runs_once_a_level():
    stats = hf_lossy.VerificationStats()
    lossy(
        target(),
        assistant_model=head(target()),
        max_new_tokens=8,
        verification_stats=stats,
        **{**TREE_OF_EAGLE, "tree_depth": 2},
    )
    full = [r for r in stats.rounds if r.depth == 3]
    assert full
    # reading the new rows and two levels; the last rounds have less room
    rooms = [8 - sum(r.emitted for r in stats.rounds[:i]) - 1 for i in range(1, len(stats.rounds))]
    assert stats.draft_forwards == sum(1 + min(2, room - 1) for room in rooms if room > 0)


# --- what can't be done -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft_mode": "forest"}, "unknown draft_mode 'forest'"),
        ({"tree_size": 1}, "tree_size must be a whole number of at least 2, got 1"),
        ({"tree_depth": -1}, "tree_depth must be a whole number of at least 0"),
        ({"tree_top_k": 2.5}, "tree_top_k must be a whole number of at least 1, got 2.5"),
        ({"num_assistant_tokens": 4}, "num_assistant_tokens=4 is for chains"),
        ({"num_assistant_tokens_schedule": "heuristic"}, "is for chains"),
        ({"assistant_confidence_threshold": 0.5}, "is for chains"),
        ({"draft_mode": "chain", "tree_size": 8}, "tree_size=8 has no meaning with draft_mode='chain'"),
        ({"draft_mode": "sampled", "draft_probs": "point_mass"}, "for deterministic candidates"),
        ({"draft_temperature": 0, "do_sample": True}, "draft_probs='point_mass' to count them as q = 1"),
        ({"coupling": "token", "do_sample": True}, "coupling='token' is for sampled candidates"),
        ({"verification": None}, "drafts only under a law"),
    ],
    ids=str,
)
def test_mistakes_are_named(options, message):
    with pytest.raises(LossyError, match=message):
        lossy(target(), assistant_model=head(target()), **options)


@pytest.mark.parametrize(
    "option", [{"draft_mode": "tree"}, {"tree_size": 8}, {"tree_depth": 0}, {"tree_top_k": 2}], ids=str
)
def test_options_of_heads_are_refused_for_other_drafts(option):
    for drafted in ({"assistant_model": draft()}, {"prompt_lookup_num_tokens": 3}):
        with pytest.raises(LossyError, match="is for EAGLE-3 heads"):
            lossy(target(), **drafted, **option)


def test_a_head_of_another_target_is_refused():
    with pytest.raises(LossyError, match="vocabulary 32, this one has 16"):
        lossy(target(16), assistant_model=head(target()))
    with pytest.raises(LossyError, match="taps layer 3 of a target with 2 layers"):
        lossy(target(), assistant_model=head(gemma3()))


def test_a_cache_that_is_not_empty_is_refused():
    first = lossy(target(), assistant_model=draft(), max_new_tokens=5, return_dict_in_generate=True)
    with pytest.raises(LossyError, match="leave the cache out"):
        lossy(target(), first.sequences, assistant_model=head(target()), **{CACHE_NAME: getattr(first, CACHE_NAME)})


def test_attention_without_tree_masks_is_refused_and_a_chain_goes_through(monkeypatch):
    monkeypatch.setattr("hf_lossy.tree_mask.attention_of", lambda model: "flash_attention_2")
    with pytest.raises(LossyError, match=r"flash_attention_2.*draft_mode='chain'"):
        lossy(target(), assistant_model=head(target()))
    assert torch.equal(lossy(target(), assistant_model=head(target()), draft_mode="chain"), plain(target()))


def test_a_static_ring_takes_no_tree():
    with pytest.raises(LossyError, match="StaticSlidingWindowLayer"):
        lossy(mistral(), LONG, assistant_model=head(mistral()), cache_implementation="static")


def test_a_two_model_draft_is_untouched_by_a_head_before_it():
    lossy(target(), assistant_model=head(target()))
    assert torch.equal(lossy(target(), assistant_model=sibling(target())), plain(target()))


def test_transformers_own_loop_gets_chains_only():
    big = target()
    cached = CachedModel(big, default_cache(big), "target", taps=head(big).config.taps)
    with torch.no_grad():
        cached(PROMPT)
    scorer = Scorer([], 32, 32, "draft")
    made = Eagle3TreeDraft(HeadRunner(head(big), cached), scorer, big.device, schedule=TreeSchedule(8, 2), top_k=3)
    with pytest.raises(LossyError, match="draft_mode='chain'"):
        made.get_candidates(torch.cat([PROMPT, PROMPT[:, :1]], 1))
