"""The demo's handlers, called as the page calls them, without a server."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import itertools
import json
import math
import re
import shutil
import subprocess
import sys
import threading
import time
from html import unescape
from pathlib import Path

import pytest
import torch
import yaml
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

import hf_lossy
from hf_lossy.accounting import account
from hf_lossy.demo import Backend, build_demo, compare, law_view, render, trade_off
from hf_lossy.demo.models import LOOKUP
from hf_lossy.demo.pieces import Pieces
from hf_lossy.demo.runs import TARGET, Output, Request, Run, Way, prepared, stream
from hf_lossy.demo.script import script
from hf_lossy.demo.session import Session
from hf_lossy.demo.turns import Turns
from hf_lossy.embedded import clock_sums, path
from hf_lossy.fit import checks
from hf_lossy.laws import base as registry

from . import models as tiny

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs/results"
PROMPT = "14 4 1 1 21 :"


@pytest.fixture(scope="module")
def backend() -> Backend:
    made = Backend(results=[RESULTS])
    made.models("arithmetic")
    return made


def way(law: str, strength: float | None = None, draft: str = "natural", coupling: str = "block") -> Way:
    return Way(law, strength, coupling, draft)


def request(*ways: Way, **settings) -> Request:
    defaults = {"temperature": 1.0, "max_new_tokens": 24, "seed": 3, "gamma": 5}
    return Request(settings.pop("prompt", PROMPT), False, ways, **{**defaults, **settings})


def finished(backend: Backend, asked: Request, session: Session | None = None) -> Run:
    """A run, and nothing but the end of it."""
    loaded = backend.models("arithmetic")
    new = prepared("arithmetic", loaded, asked)
    *_, last = stream(new, loaded, backend.turns, compare.stopped(session or Session()))
    assert last.finished
    return last


def views(backend: Backend, session: Session, asked: Request, colour: str = "source") -> list[compare.View]:
    def decode(new: Run, session: Session):
        return stream(new, backend.models(new.models), backend.turns, compare.stopped(session))

    return list(compare.run(backend, session, asked, colour, decode))


# --- the columns ------------------------------------------------------------------------------------------------------

WAYS = (
    way(TARGET),
    way("lossless"),
    way("lenience", 0.4, "shortcut"),
    way("cos", 0.4, coupling="token"),
    way("speccascade", 0.3, "EAGLE-3 head"),
    way("min_p", 0.1, LOOKUP),
    way(TARGET, draft="shortcut"),
)


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_columns_that_run_at_the_same_time_write_what_each_writes_alone(backend, temperature):
    """Token by token, whoever else is running: the same text as the copied code prints."""
    asked = request(*WAYS, temperature=temperature)
    run = finished(backend, asked)
    assert [output.error for output in run.outputs] == [""] * len(WAYS)
    for output in run.outputs:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(script(backend.models("arithmetic"), asked, output.way), {})
        assert printed.getvalue().split() == "".join(output.pieces).split()
    assert len({tuple(output.tokens) for output in run.outputs}) > 1 or temperature == 0


def test_sources_and_block_efficiency_are_those_of_the_run(backend):
    asked = request(way("lenience", 0.4))
    (output,) = finished(backend, asked).outputs
    pair, stats = backend.models("arithmetic").pairs["natural"], hf_lossy.VerificationStats()
    arguments = asked.arguments(pair, asked.ways[0])
    generator = torch.Generator().manual_seed(asked.seed)
    out = hf_lossy.generate(
        pair.target, **pair.inputs(PROMPT), **arguments, generator=generator, verification_stats=stats
    )
    assert out[0, -len(output.tokens) :].tolist() == output.tokens
    assert output.sources == stats.rows[0].sources
    assert output.block_efficiency == stats.block_efficiency
    assert sum(output.rounds) == len(output.tokens)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
@pytest.mark.parametrize(
    "column", [w for w in WAYS if w.law != TARGET] + [way("lenience", 0.3, "EAGLE-3 head"), way("eta", 0.2)], ids=str
)
def test_the_records_of_a_text_are_the_accounting_of_its_run(backend, column, temperature):
    """p, q and π are computed again from the finished text; TV, KL and overshoot come out as the loop booked them."""
    asked = request(column, temperature=temperature)
    (output,) = finished(backend, asked).outputs
    pair, stats = backend.models("arithmetic").pairs[column.draft], hf_lossy.VerificationStats()
    hf_lossy.generate(
        pair.target,
        **pair.inputs(PROMPT),
        **asked.arguments(pair, column),
        generator=torch.Generator().manual_seed(asked.seed),
        verification_stats=stats,
        accounting=True,
    )
    booked = stats.rows[0].accounting
    assert output.records is not None
    for name in ("tv", "kl", "max_log_ratio"):
        assert getattr(output.records, name) == pytest.approx(booked[name], abs=2e-4), name
    assert output.tv == pytest.approx(stats.accounting["tv"], abs=1e-4)
    assert output.kl == pytest.approx(stats.accounting["kl"], abs=1e-3)
    assert output.max_log_ratio == pytest.approx(stats.accounting["max_log_ratio"], abs=2e-4)


def test_the_p_q_and_pi_of_a_token_are_those_of_the_models(backend):
    """Against transformers' own forwards, at every token."""
    asked = request(way("lenience", 0.4, "shortcut"), temperature=0.8)
    (output,) = finished(backend, asked).outputs
    pair = backend.models("arithmetic").pairs["shortcut"]
    prompt = pair.inputs(PROMPT)["input_ids"]
    text = torch.cat([prompt, torch.tensor([output.tokens])], 1)
    with torch.no_grad():
        p, q = ((m(text).logits[0, prompt.shape[1] - 1 : -1] / 0.8).softmax(-1) for m in (pair.target, pair.draft))
    pi = hf_lossy.law("lenience", lenience=0.4).induced(p, q)
    records = output.records
    for i, token in enumerate(output.tokens):
        expected = [float(x[i, token]) for x in (p, q, pi)]
        assert [records.p[i], records.q[i], records.pi[i]] == pytest.approx(expected, abs=1e-5)
        assert records.acceptance[i] == pytest.approx(min(1, expected[2] / expected[1]), abs=1e-4)
        assert records.overshoot[i] == pytest.approx(math.log(expected[2] / expected[0]), abs=1e-3)


def test_every_registered_law_is_on_the_page_with_its_range(backend):
    assert compare.laws() == [TARGET, *hf_lossy.laws()]
    for name in hf_lossy.laws():
        strength = compare.Strength.of(name)
        if strength.name is None:
            assert hf_lossy.laws.law_class(name).knob is None
            continue
        assert strength.low < strength.value < strength.high
        for value in (strength.low, strength.value, strength.high):
            assert getattr(hf_lossy.law(name, **{strength.name: value}), strength.name) == value
    run = finished(backend, request(*(way(n, compare.Strength.of(n).value) for n in hf_lossy.laws())))
    assert {output.state for output in run.outputs} == {"done"}


def test_a_new_law_shows_up_by_itself(backend, monkeypatch, tmp_path):
    """The law of the documentation, registered: a column, a slider, a view."""
    (code,) = re.findall(r"^```python [^\n]*\n(.*?)^```", (ROOT / "docs/adding-a-law.md").read_text(), re.M | re.S)
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    file = tmp_path / "halfway.py"
    file.write_text(code.replace("from .base", "from hf_lossy.laws.base"))
    spec = importlib.util.spec_from_file_location("halfway", file)
    monkeypatch.setitem(sys.modules, "halfway", importlib.util.module_from_spec(spec))
    spec.loader.exec_module(sys.modules["halfway"])
    assert "halfway" in compare.laws()
    assert compare.Strength.of("halfway").name == "weight"
    assert compare.Strength.of("halfway").high < 1  # open at 1
    (output,) = finished(backend, request(way("halfway", 0.5))).outputs
    assert output.state == "done"
    assert output.tv > 0


def test_columns_take_turns_in_the_order_in_which_they_came():
    turns, order = Turns(), []

    def work(name: str) -> None:
        with turns:
            for _ in range(3):
                order.append(name)
                turns.pass_on()

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    with turns:
        for count, thread in enumerate(threads, start=1):
            thread.start()
            while len(turns._waiting) < count:
                time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert "".join(order) == "abcabcabc"


def test_stopping_leaves_what_was_written_with_its_figures(backend):
    session = Session()
    loaded = backend.models("arithmetic")
    asked = request(way(TARGET), way("lenience", 0.4))
    new = prepared("arithmetic", loaded, asked)
    seen = itertools.count()
    *_, run = stream(new, loaded, backend.turns, lambda: next(seen) > 8)
    assert [output.state for output in run.outputs] == ["stopped", "stopped"]
    for output in run.outputs:
        assert 0 < len(output.tokens) < 24
        assert len(output.sources) == len(output.records.p) == len(output.pieces) == len(output.tokens)
    assert "stopped" in render.run_status(run)
    assert finished(backend, asked, session).outputs[0].state == "done"  # and the next run is a whole one


def test_a_reader_who_goes_away_ends_the_run(backend):
    loaded = backend.models("arithmetic")
    new = prepared("arithmetic", loaded, request(way(TARGET), max_new_tokens=57))
    reading = stream(new, loaded, backend.turns, lambda: False)
    next(reading)
    before = threading.active_count()
    reading.close()
    assert threading.active_count() < before or new.finished
    with backend.turns:
        pass  # nobody kept the models


def test_the_stop_button_ends_the_run_of_its_session_alone(backend):
    a, b = Session(), Session()
    ends = compare.stopped(a), compare.stopped(b)
    compare.stop(a)
    assert [end() for end in ends] == [True, False]
    assert views(backend, a, request(way("lossless")))[-1].status.count("done") == 1  # pressed before, it is forgotten


def test_a_second_run_of_a_session_ends_the_first(backend):
    session = Session()
    first = iter(compare.run(backend, session, request(way("lossless")), "source", lambda r, s: iter([r, r, r])))
    next(first)
    next(first)
    views(backend, session, request(way("min_p", 0.1)))
    assert list(first) == []
    assert session.run.outputs[0].way.law == "min_p"


def test_two_visitors_at_once_see_their_own_runs(backend):
    asked = [request(way(TARGET), way("lenience", 0.4), prompt=p) for p in ("14 4 1 1 21 :", "3 9 27 6 30 :")]
    alone = [finished(backend, one) for one in asked]
    sessions = [Session(), Session()]
    threads = [threading.Thread(target=views, args=(backend, s, one)) for s, one in zip(sessions, asked, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for session, one, before in zip(sessions, asked, alone, strict=True):
        assert session.run.request.prompt == one.prompt
        assert [o.tokens for o in session.run.outputs] == [o.tokens for o in before.outputs]


# --- what can go wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": " \n"}, "the prompt is empty"),
        ({"prompt": "hello :"}, "'hello' is not one of"),
        ({"prompt": "1 " * 60 + ":"}, "more than the 64"),
        ({"max_new_tokens": 60}, "ask for fewer new tokens"),
    ],
    ids=lambda x: str(x)[:30],
)
def test_a_bad_prompt_is_an_error_on_the_page_and_the_page_goes_on(backend, settings, words):
    session = Session()
    shown = views(backend, session, request(way("lossless"), **settings))[-1]
    assert 'role="alert"' in shown.status
    assert words in unescape(shown.status)
    assert not shown.running
    assert session.run is None
    assert "done" in views(backend, session, request(way("lossless")))[-1].status


def test_a_column_that_can_not_run_says_so_beside_the_others(backend):
    session = Session()
    shown = views(backend, session, request(way("lossless"), way("lenience", 0.4, LOOKUP)))[-1]
    assert "needs the draft" in unescape(shown.columns[1])
    assert 'role="alert"' in shown.columns[1]
    assert 'data-state="done"' in shown.columns[0]
    assert session.run.outputs[0].tokens


def test_a_bad_model_name_is_an_error(backend, tmp_path):
    with pytest.raises(hf_lossy.LossyError, match="Did you mean 'smollm2'"):
        backend.models("smollm")
    with pytest.raises(hf_lossy.LossyError, match="no target"):
        backend.name("  ", "", "float32")
    key = backend.name(str(tmp_path / "nowhere"), "", "float32")
    for call in (backend.check, backend.models):
        with pytest.raises(hf_lossy.LossyError, match="does not exist"):
            call(key)
    with pytest.raises(hf_lossy.LossyError, match="can't be loaded"):
        backend.check(backend.name("no-such-user/no-such-model", "", "float32"))
    session = Session(models=key)
    assert "does not exist" in unescape(views(backend, session, request(way("lossless")))[-1].status)


def test_strangers_can_not_name_files_of_this_machine(tmp_path):
    closed = Backend(results=[RESULTS], local=False)
    for target, draft in ((str(tmp_path), ""), ("a/b", "~/x"), ("../x", "")):
        with pytest.raises(hf_lossy.LossyError, match="not open here"):
            closed.name(target, draft, "float32")
    with pytest.raises(hf_lossy.LossyError, match="not open here"):
        trade_off.curves(closed, str(tmp_path))
    assert trade_off.curves(closed, str(RESULTS / "eagle3-pitfall"))[1]


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_a_column_shows_each_token_with_its_source_and_probabilities(backend):
    session = Session()
    shown = views(backend, session, request(way(TARGET), way("lenience", 0.4, "shortcut"), seed=0))[-1]
    output = session.run.outputs[1]
    spans = re.findall(r'<span class="hl-tok ([^"]*)" tabindex="0" data-tip="([^"]*)"', shown.columns[1])
    assert len(spans) == len(output.tokens)
    for i, (classes, tip) in enumerate(spans):
        assert f"hl-{output.sources[i]}" in classes.split()
        assert f"π {render.probability(output.records.pi[i])}" in unescape(tip)
    for words in ("tokens/s", "speed-up", "block efficiency", "TV", "sequence KL", "max log"):
        assert words in shown.columns[1]
    split = session.run.divergence(1)
    assert ["hl-split" in classes for classes, _ in spans].index(True) == split
    overshoot = compare.recolour(backend, session, "overshoot").columns[1]
    found = [int(k) for k in re.findall(r"hl-over(\d)", overshoot)]
    limits = [end for end, _ in render.OVERSHOOTS]
    for k, log_ratio in zip(found, output.records.overshoot, strict=True):
        assert (limits[k - 1] if k else 0) - 1e-5 <= math.exp(log_ratio) <= limits[k] + 1e-5


def test_sums_are_marked(backend):
    operands = clock_sums.operands_of(PROMPT)
    seen = set()
    for seed in range(40):
        run = finished(backend, request(way("cos", 0.9, "shortcut"), seed=seed))
        (output,) = run.outputs
        text = "".join(output.pieces)
        seen.add(output.right)
        column = render.column(run, 0, "source")
        assert output.right == (clock_sums.answer(text) == sum(operands) % 32)
        assert ("✓ right: 9" in column) == output.right
        assert ("✗ wrong: it is 9" in column) == (not output.right)
        if (place := clock_sums.first_mistake(operands, text)) is not None and place[0] < len(output.tokens):
            assert re.findall(r'<span class="hl-tok [^"]*"', column)[place[0]].count("hl-mistake") == 1
        if seen == {True, False}:
            return
    pytest.fail(f"only {seen} among 40 texts")


def written(*tokens: int, state: str = "done") -> Output:
    return Output(way("lossless"), 10, tokens=list(tokens), state=state)


def test_the_first_difference_between_columns():
    run = Run("", request(), [], [written(1, 2, 3), written(1, 2, 4), written(1, 2, 3), written(1, 2)])
    assert [run.divergence(i) for i in range(4)] == [2, 2, None, 2]
    growing = Run("", request(), [], [written(1, 2, 3), written(1, state="running")])
    assert growing.divergence(1) is None  # it may yet go the same way
    same = Run("", request(), [], [written(1, 2), written(1, 2)])
    assert [same.divergence(i) for i in range(2)] == [None, None]


def test_what_models_and_users_write_is_escaped(backend):
    bad = "<img src=x onerror=alert(1)>"
    output = Output(way("lossless"), 1, tokens=[5], pieces=[bad], state="running")
    run = Run("arithmetic", request(prompt=bad), [1], [output])
    pages = [
        render.column(run, 0, "source"),
        render.error(bad),
        render.status(bad),
        render.law_view(law_view.look(*law_view.by_hand("1 1", "1 2")[:2], hf_lossy.law("cos"), [bad, bad], 2), bad),
    ]
    for page in pages:
        assert "<img" not in page
        assert "&lt;img" in page
    shown = views(backend, Session(), request(way("lossless"), prompt=bad))[-1]
    assert "<img" not in shown.status


def test_the_text_of_tokens_that_are_parts_of_characters():
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = Tokenizer(BPE({c: i for i, c in enumerate(sorted(byte_level.alphabet()))}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = byte_level, decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    text = "naïve – 東京 <b> 🙂 end, and a long text after it"
    pieces = Pieces(fast)
    found = [pieces.add(token) for token in fast(text)["input_ids"]]
    assert "".join(found).replace("⋯", "") == text
    assert found.count("⋯") == len(text.encode()) - len(text)


def test_pieces_keep_the_spaces_between_words():
    tokenizer = tiny.char_tokenizer()
    pieces = Pieces(tokenizer)
    ids = tokenizer("so it goes")["input_ids"]
    assert "".join(pieces.add(token) for token in ids) == "so it goes"


# --- the law ----------------------------------------------------------------------------------------------------------


def test_regions():
    assert law_view.region(0.4, 0.2, 0.3) == "between"
    assert law_view.region(0.4, 0.2, 0.4) == "between"
    assert law_view.region(0.4, 0.2, 0.5) == "overshoot"
    assert law_view.region(0.4, 0.2, 0.1) == "undershoot"
    assert law_view.region(0.4, 0.2, 0.0) == "outside A"
    assert law_view.region(0.4, 0.0, 0.0) == "outside A"
    assert law_view.region(0.0, 0.0, 0.0) == "between"


def test_hand_set_distributions_under_a_law():
    assert law_view.hand_set("1e308 1e308", "p").tolist() == [0.5, 0.5]
    p, q, texts = law_view.by_hand("4, 3 2 1", "1 1 1 7")
    assert p.tolist() == pytest.approx([0.4, 0.3, 0.2, 0.1])
    strict = law_view.look(p, q, hf_lossy.law("lenience", lenience=1.0), texts, 10)
    assert [t.pi for t in strict.tokens] == pytest.approx([t.p for t in strict.tokens])
    lax = law_view.look(p, q, hf_lossy.law("lenience", lenience=0.2), texts, 10)
    last = next(t for t in lax.tokens if t.text == "token 4")
    assert last.pi == pytest.approx(0.5)  # p/ℓ
    assert {t.region for t in lax.tokens} == {"between"}
    assert lax.figures == account(p, q, hf_lossy.law("lenience", lenience=0.2).induced(p, q))
    cut = law_view.look(p, q, hf_lossy.law("min_p", p_base=0.6), texts, 10)
    assert {t.text: t.region for t in cut.tokens} == {
        "token 1": "overshoot",
        "token 2": "overshoot",
        "token 3": "outside A",
        "token 4": "outside A",
    }
    few = law_view.look(p, q, hf_lossy.law("cos"), texts, 2)
    assert (len(few.tokens), few.rest) == (2, 2)


@pytest.mark.parametrize(
    ("p", "q", "words"),
    [
        ("a b", "1 1", "'a' is no weight"),
        ("", "1", "p has no weight"),
        ("1 2", "1", "the same number"),
        ("1", "-1", "no w"),
    ],
)
def test_hand_set_nonsense_is_refused(p, q, words):
    with pytest.raises(hf_lossy.LossyError, match=words):
        law_view.by_hand(p, q)


def test_the_law_tab_looks_into_the_last_run(backend):
    session = Session()
    with pytest.raises(hf_lossy.LossyError, match="no finished run"):
        law_view.at_position(backend, session, 0, 0)
    views(
        backend,
        session,
        request(way(TARGET), way("lenience", 0.4), way("cos", 0.5, "EAGLE-3 head"), way("min_p", 0.1, LOOKUP)),
    )
    for column in range(3):
        output = session.run.outputs[column]
        for place in (0, len(output.tokens) - 1):
            p, q, texts = law_view.at_position(backend, session, column, place)
            token = output.tokens[place]
            assert float(p[token]) == pytest.approx(output.records.p[place], abs=1e-9)
            assert float(q[token]) == pytest.approx(output.records.q[place], abs=1e-9)
            assert texts[token] == output.pieces[place]
    session.row = (dataclasses.replace(session.run), 0, 0, p + 1, q + 1)  # another run's, looked up meanwhile
    p, _, _ = law_view.at_position(backend, session, 0, 0)
    assert float(p.sum()) == pytest.approx(1)
    with pytest.raises(hf_lossy.LossyError, match="no probabilities q"):
        law_view.at_position(backend, session, 3, 0)
    with pytest.raises(hf_lossy.LossyError, match="has no token 31"):
        law_view.at_position(backend, session, 1, 30)


# --- trade-off and models ---------------------------------------------------------------------------------------------


def test_trade_off_curves_of_a_result_folder(backend, tmp_path):
    listed = trade_off.folders(backend)
    assert ("eagle3-pitfall", str(RESULTS / "eagle3-pitfall")) in listed
    for _, folder in listed:
        figures, table = trade_off.curves(backend, folder)
        rows = json.loads((Path(folder) / "summary.json").read_text())["rows"]
        drawn = [row for row in rows if row["law"] is not None]
        for figure in figures:
            assert sum(len(trace.x) for trace in figure.data) == len(drawn)
        assert all(row["name"] in table for row in rows)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/summary.json").write_text('{"rows": 3}')
    (tmp_path / "half").mkdir()
    (tmp_path / "half/summary.json").write_text('{"rows": ')
    wrong = [("", "no folder"), ("/nowhere", "no summary.json")]
    for folder, words in [
        *wrong,
        *((str(tmp_path / name), "none of hf-lossy evaluate's") for name in ("other", "half")),
    ]:
        with pytest.raises(hf_lossy.LossyError, match=words):
            trade_off.curves(backend, folder)
    assert trade_off.folders(Backend(results=[tmp_path / "none"])) == []


def test_checks_before_loading_are_those_after_it_and_need_no_weights(tmp_path, backend):
    for part in ("target", "draft-natural"):
        shutil.copytree(path("arithmetic", part), tmp_path / part)
        (tmp_path / part / "model.safetensors").unlink()
    key = backend.name(str(tmp_path / "target"), str(tmp_path / "draft-natural"), "float32")
    pair = backend.models("arithmetic").pairs["natural"]
    after = {c.what: c for c in checks(pair.target, pair.draft, pair.tokenizer, pair.tokenizer)}
    before = {c.what: c for c in backend.check(key)}
    for what in ("tokenizers", "output rows", "target cache", "draft cache", "dtypes"):
        assert before[what] == after[what]
    assert "1.6 M parameters" in before["size"].found
    with pytest.raises(hf_lossy.LossyError, match="can't be loaded"):
        backend.models(key)


def test_a_pair_that_does_not_fit_is_told_before_it_loads(tmp_path, backend):
    other = tiny.char_tokenizer()
    tiny.draft(len(other)).save_pretrained(tmp_path)
    other.save_pretrained(tmp_path)
    found = {c.what: c.ok for c in backend.check(backend.name(str(path("arithmetic")), str(tmp_path), "float32"))}
    assert not found["tokenizers"]
    head = {
        c.what: c.ok
        for c in backend.check(backend.name(str(path("arithmetic")), str(path("arithmetic", "eagle3")), "float32"))
    }
    assert all(head.values())
    assert "tapped layers" in head
    tiny.target().save_pretrained(tmp_path / "target")
    other.save_pretrained(tmp_path / "target")
    with pytest.raises(hf_lossy.LossyError, match="eagle3"):
        backend.check(backend.name(str(tmp_path / "target"), str(path("arithmetic", "eagle3")), "float32"))


def test_models_that_a_user_names_run_and_few_of_them_are_kept(backend, tmp_path):
    folders = [str(path("arithmetic")), str(path("arithmetic", "draft-shortcut"))]
    key = backend.name(*folders, "float32")
    loaded = backend.models(key)
    assert list(loaded.pairs) == ["draft-shortcut", LOOKUP]
    asked = Request(PROMPT, True, [Way("lenience", 0.4, "block", "draft-shortcut")], 1.0, 24, 3, 5)
    *_, run = stream(prepared(key, loaded, asked), loaded, backend.turns, lambda: False)
    (known,) = finished(backend, request(way("lenience", 0.4, "shortcut"))).outputs
    assert run.outputs[0].tokens == known.tokens
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(script(loaded, asked, asked.ways[0]), {})
    assert printed.getvalue().split() == "".join(known.pieces).split()
    for dtype in ("bfloat16", "float16"):
        backend.models(backend.name(*folders, dtype))
    assert backend.models(key) is not loaded  # it had gone, and is loaded again


def test_the_models_on_offer_are_those_that_are_installed(monkeypatch, tmp_path, backend):
    monkeypatch.setenv("HF_LOSSY_MODELS", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert [key for _, key in backend.choices()] == ["arithmetic"]
    (tmp_path / "smollm2-135m").mkdir()
    (tmp_path / "smollm2-135m/config.json").write_text("{}")
    assert [key for _, key in backend.choices()] == ["arithmetic", "smollm2"]


# --- the page, the command, the Space ---------------------------------------------------------------------------------


def test_the_page_is_built_from_the_registry_and_the_backend(backend):
    config = build_demo(backend).get_config_file()
    dropdowns = {c["props"].get("elem_id"): c["props"] for c in config["components"] if c["type"] == "dropdown"}
    for i in range(1, 5):
        assert [value for value, _ in dropdowns[f"law-{i}"]["choices"]] == compare.laws()
        assert [value for value, _ in dropdowns[f"draft-{i}"]["choices"]] == list(backend.models("arithmetic").pairs)
    assert [value for value, _ in dropdowns["law"]["choices"]] == hf_lossy.laws()
    tabs = [c["props"]["label"] for c in config["components"] if c["type"] == "tabitem"]
    assert tabs == ["Compare", "Law", "Trade-off", "Models"]


@pytest.mark.parametrize("place", ["law-view", "results-problem"])
def test_drawings_of_one_place_come_one_after_the_other(backend, place):
    """A slow drawing that was asked for early must not land over the last one: a queue of their own, one at a time."""
    events = [
        event
        for event in build_demo(backend).fns.values()
        if any(getattr(output, "elem_id", None) == place for output in event.outputs)
    ]
    assert len(events) > 1
    assert {event.concurrency_limit for event in events} == {1}
    assert len({event.concurrency_id for event in events}) == 1


def test_without_gradio_the_command_names_the_extra(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "gradio" else found(name, *a))
    with pytest.raises(hf_lossy.LossyError, match=re.escape("pip install 'hf-lossy[demo]'")):
        build_demo()


def test_the_command_line_does_not_load_gradio():
    code = "import hf_lossy.cli, sys; sys.exit('gradio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_space():
    header = yaml.safe_load((ROOT / "demo/README.md").read_text().split("---")[1])
    assert {"title", "emoji", "colorFrom", "colorTo", "sdk", "sdk_version", "python_version", "app_file"} <= set(header)
    assert (header["sdk"], header["app_file"]) == ("gradio", "app.py")
    assert len(header["short_description"]) <= 60  # the Hub refuses longer ones
    assert "hf-lossy[demo]" in (ROOT / "demo/requirements.txt").read_text()
    spec = importlib.util.spec_from_file_location("space_app", ROOT / "demo/app.py")
    app = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(app)
    assert type(app.demo).__name__ == "Blocks"
