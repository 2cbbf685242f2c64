"""Stopping: at the first accepted prefix that a criterion wants, wherever in a block it ends; and streaming.

The models follow a script here, so that every round is known: with the target's own script a draft of γ = 3 has its tokens
accepted in blocks of three and a bonus token.
"""

from __future__ import annotations

import itertools
import time

import pytest
import torch
from transformers import StoppingCriteria, StoppingCriteriaList, TextIteratorStreamer, TextStreamer
from transformers.generation.streamers import BaseStreamer

import hf_lossy
from hf_lossy.compat import CACHE_NAME

from .models import PROMPT, char_tokenizer, draft, lossy, plain, scripted, target

N = PROMPT.shape[1]
SCRIPT = [7, 8, 9, 10, 11, 12, 13, 14, 15, 6, 2, 4]
EVERYTHING = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
greedy_and_sampled = pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])


def right():
    """A draft that knows the script."""
    return {"assistant_model": scripted(SCRIPT), "num_assistant_tokens": 3}


def wrong_after(count):
    """A draft that knows the first tokens of the script, and no others."""
    return {"assistant_model": scripted([*SCRIPT[:count], 3]), "num_assistant_tokens": 3}


def check_cut(out, length, stop, sources=None):
    """Output, scores, cache and statistics all end with this many tokens."""
    row = out.verification.rows[0]
    assert out.sequences[0, N:].tolist() == SCRIPT[:length]
    assert len(out.scores) == len(out.logits) == length
    assert getattr(out, CACHE_NAME).get_seq_length() == N + length - 1
    assert out.verification.emitted == len(row.sources) == length
    assert out.verification.accepted == row.sources.count("accepted")
    assert [r.stop for r in row.rounds] == [None] * (len(row.rounds) - 1) + [stop]
    if sources is not None:
        assert row.sources == sources


A, B, R = "accepted", "bonus", "replaced"


@greedy_and_sampled
@pytest.mark.parametrize("end", [-1, [-1]], ids=str)
@pytest.mark.parametrize("drafted", [right, lambda: {"prompt_lookup_num_tokens": 3}], ids=["draft", "lookup"])
def test_an_end_token_that_is_none(end, sample, drafted):
    """A usual way to say that nothing ends the text; a lookup finds nothing, so that rounds have no candidates."""
    out = lossy(scripted(SCRIPT), do_sample=sample, eos_token_id=end, max_new_tokens=len(SCRIPT), **drafted())
    assert out[0, N:].tolist() == SCRIPT


# transformers#47912, #47931, #48981: EOS inside an accepted block
@greedy_and_sampled
@pytest.mark.parametrize("position", range(9))
def test_an_end_token_anywhere_in_a_block(position, sample):
    """First, middle, last of the drafted tokens (0, 1, 2), the bonus token (3), and the same in later rounds."""
    end = {"eos_token_id": SCRIPT[position]}
    out = lossy(scripted(SCRIPT), do_sample=sample, **end, **right(), **EVERYTHING)
    check_cut(out, position + 1, "eos", list(itertools.islice(itertools.cycle([A, A, A, B]), position + 1)))
    theirs = plain(scripted(SCRIPT), **end, **EVERYTHING)
    assert torch.equal(out.sequences, theirs.sequences)
    assert all(torch.equal(a, b) for a, b in zip(out.scores, theirs.scores, strict=True))


@greedy_and_sampled
@pytest.mark.parametrize("known", [0, 1, 2])
def test_an_end_token_that_replaces_a_drafted_one(known, sample):
    end = {"eos_token_id": SCRIPT[known]}
    out = lossy(scripted(SCRIPT), do_sample=sample, **end, **wrong_after(known), **EVERYTHING)
    check_cut(out, known + 1, "eos", [A] * known + [R])
    assert out.verification.rounds[0].drafted == 3


@greedy_and_sampled
def test_drafted_end_tokens_that_are_refused_do_not_end_the_text(sample):
    out = lossy(scripted(SCRIPT), eos_token_id=3, do_sample=sample, max_new_tokens=9, **wrong_after(1), **EVERYTHING)
    check_cut(out, 9, "length")
    assert out.verification.accepted == 1


def test_the_first_of_several_end_tokens_ends_the_text():
    for ends, length in [([SCRIPT[5], SCRIPT[2]], 3), ([SCRIPT[8], SCRIPT[6], 1], 7), (torch.tensor([9, 12]), 3)]:
        out = lossy(scripted(SCRIPT), eos_token_id=ends, **right(), **EVERYTHING)
        check_cut(out, length, "eos")


def test_an_end_token_in_the_prompt_does_not_count():
    assert 8 in PROMPT  # and is not the last script token that is emitted
    script = [7, 9, 10, 8, 11]
    out = lossy(scripted(script), eos_token_id=8, assistant_model=scripted(script))
    assert out[0, N:].tolist() == [7, 9, 10, 8]


@pytest.mark.parametrize("count", range(1, 10))
def test_a_length_anywhere_in_a_block(count):
    out = lossy(scripted(SCRIPT), max_new_tokens=count, **right(), **EVERYTHING)
    check_cut(out, count, "length")
    # nothing is drafted that could not be emitted with one token after it
    rounds = out.verification.rounds
    assert [r.drafted for r in rounds] == [3] * (count // 4) + ([count % 4 - 1] if count % 4 else [])


def test_a_lookup_that_runs_past_an_end_token():
    """Prompt lookup finds a continuation with the end token in its middle."""
    ids = torch.tensor([[5, 7, 8, 9, 10, 5]])
    model = scripted([7, 8, 9, 10], prompt=6)
    lookup = {"prompt_lookup_num_tokens": 4, "max_matching_ngram_size": 1}
    out = lossy(model, ids, eos_token_id=9, return_dict_in_generate=True, **lookup)
    assert out.sequences[0, 6:].tolist() == [7, 8, 9]
    assert out.verification.rounds == [hf_lossy.generation.Round(4, 3, 3, "eos")]


# --- stop strings ------------------------------------------------------------------------------------------------------

ALPHABET = "abcdefghijklmnop"
CHARS = char_tokenizer(ALPHABET)
TEXT = "".join(ALPHABET[t] for t in SCRIPT)  # hijklmnopgce


# transformers#48039: stop_strings and an assistant
@greedy_and_sampled
@pytest.mark.parametrize("known", [12, 6, 2, 0])
@pytest.mark.parametrize(
    ("strings", "length"),
    [("j", 3), ("ij", 3), ("hij", 3), ("hi", 2), ("kl", 5), ("jklm", 6), (["opg", "no"], 8), (["zz", "jk"], 4)],
)
def test_stop_strings_within_a_block_and_across_blocks(strings, length, known, sample):
    """With a draft that knows the whole script, some of it, or nothing: blocks end everywhere."""
    assert TEXT.startswith("hijklmnop")
    options = {"stop_strings": strings, "tokenizer": CHARS, "do_sample": sample}
    out = lossy(scripted(SCRIPT), **options, **wrong_after(known), **EVERYTHING)
    check_cut(out, length, "StopStringCriteria")
    assert torch.equal(out.sequences, plain(scripted(SCRIPT), **options))


def test_stop_strings_that_do_not_come_change_nothing():
    out = lossy(
        scripted(SCRIPT), stop_strings=["hj", "xyz"], tokenizer=CHARS, max_new_tokens=9, **right(), **EVERYTHING
    )
    check_cut(out, 9, "length")


@pytest.mark.parametrize("where", ["decoder", "generation_config", "model"])
def test_stop_strings_from_elsewhere(where):
    model, call = scripted(SCRIPT), {"max_new_tokens": 9, "attention_mask": torch.ones_like(PROMPT)}
    if where == "decoder":
        decoder = hf_lossy.decoder(verification="lossless", stop_strings="jkl", tokenizer=CHARS, **right())
        out = model.generate(PROMPT, custom_generate=decoder, **call)
    else:
        config = model.generation_config
        if where == "generation_config":
            config = type(config)(max_new_tokens=call.pop("max_new_tokens"))
            call["generation_config"] = config
        config.stop_strings = ["jkl"]
        out = hf_lossy.generate(model, PROMPT, verification="lossless", tokenizer=CHARS, **right(), **call)
    assert out[0, N:].tolist() == SCRIPT[:5]


def test_stop_strings_on_the_model_count_beside_a_given_config():
    model = scripted(SCRIPT)
    model.generation_config.stop_strings = ["jkl"]
    config = type(model.generation_config)(max_new_tokens=9)
    call = {"attention_mask": torch.ones_like(PROMPT), "generation_config": config, "tokenizer": CHARS}
    expected = model.generate(PROMPT, **call)
    assert torch.equal(hf_lossy.generate(model, PROMPT, verification="lossless", **right(), **call), expected)
    del call["generation_config"]  # given by position instead
    assert torch.equal(hf_lossy.generate(model, PROMPT, config, verification="lossless", **right(), **call), expected)


# --- criteria of one's own ---------------------------------------------------------------------------------------------


class Seen(StoppingCriteria):
    """Records what it was shown, and stops at a length."""

    def __init__(self, stop_at=10**9):
        self.prefixes, self.scores, self.stop_at = [], [], stop_at

    def __call__(self, input_ids, scores, **kwargs):
        self.prefixes.append(input_ids[0].tolist())
        self.scores.append(scores)
        return torch.full((1,), input_ids.shape[1] >= self.stop_at)


@greedy_and_sampled
@pytest.mark.parametrize("known", [12, 2, 0])
def test_a_criterion_sees_every_accepted_prefix_once(known, sample):
    seen = Seen()
    lossy(scripted(SCRIPT), stopping_criteria=[seen], do_sample=sample, max_new_tokens=10, **wrong_after(known))
    # that the length has been reached needs no second opinion
    assert seen.prefixes == [PROMPT[0].tolist() + SCRIPT[:i] for i in range(1, 10)]


@pytest.mark.parametrize("length", range(1, 9))
def test_a_criterion_stops_anywhere_in_a_block(length):
    criteria = StoppingCriteriaList([Seen(), Seen(stop_at=N + length)])
    out = lossy(scripted(SCRIPT), stopping_criteria=criteria, **right(), **EVERYTHING)
    check_cut(out, length, "Seen")


def test_a_criterion_sees_the_scores_so_far():
    seen, model = Seen(), scripted(SCRIPT)
    out = lossy(model, stopping_criteria=[seen], max_new_tokens=6, **right(), **EVERYTHING)
    for i, scores in enumerate(seen.scores, start=1):
        assert len(scores) == i
        assert torch.equal(torch.stack(scores), torch.stack(out.scores[:i]))


def test_a_criterion_that_answers_with_a_plain_bool():
    class Third(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return input_ids.shape[1] == N + 3

    out = lossy(scripted(SCRIPT), stopping_criteria=[Third()], **right(), **EVERYTHING)
    check_cut(out, 3, "Third")


def test_max_time_stops_after_the_first_token_when_it_is_over_at_once():
    out = lossy(scripted(SCRIPT), max_time=1e-9, **right(), **EVERYTHING)
    check_cut(out, 1, "MaxTimeCriteria")


def test_max_time_stops_within_a_block(monkeypatch):
    """The clock jumps when the third token is looked at."""
    ticks = itertools.count()

    class Clock:
        def __getattr__(self, name):
            return getattr(time, name)

        def time(self):
            return 0.0 if next(ticks) < 3 else 100.0  # one reading when the criterion is made

    monkeypatch.setattr("transformers.generation.stopping_criteria.time", Clock())
    out = lossy(scripted(SCRIPT), max_time=50.0, **right(), **EVERYTHING)
    check_cut(out, 3, "MaxTimeCriteria")


# --- streaming ---------------------------------------------------------------------------------------------------------


class Recording(BaseStreamer):
    def __init__(self):
        self.values, self.ended = [], 0

    def put(self, value):
        assert not self.ended
        self.values.append(value)

    def end(self):
        self.ended += 1

    @property
    def tokens(self):
        return [t for value in self.values[1:] for t in value.flatten().tolist()]


@greedy_and_sampled
@pytest.mark.parametrize("known", [12, 6, 1, 0])
@pytest.mark.parametrize("end", [None, 7, 9, 10, 13])
def test_each_token_is_streamed_once_and_nothing_past_the_stop(end, known, sample):
    streamer, theirs = Recording(), Recording()
    options = {"eos_token_id": end, "max_new_tokens": 10, "do_sample": sample}
    out = lossy(scripted(SCRIPT), streamer=streamer, **options, **wrong_after(known))
    plain(scripted(SCRIPT), streamer=theirs, **options)
    assert streamer.tokens == theirs.tokens == out[0, N:].tolist()
    assert torch.equal(streamer.values[0], theirs.values[0])  # the prompt first, as transformers does
    assert streamer.ended == theirs.ended == 1


# transformers#40586, #38304: the streamer of a custom generate
@pytest.mark.parametrize("way", ["method", "hook"])
def test_the_other_ways_in_stream_too(way):
    streamer = Recording()
    call = {"inputs": PROMPT, "attention_mask": torch.ones_like(PROMPT), "max_new_tokens": 10}
    if way == "method":
        with hf_lossy.enabled():
            scripted(SCRIPT).generate(**call, verification="lossless", streamer=streamer, **right())
    else:
        decoder = hf_lossy.decoder(verification="lossless", streamer=streamer, **right())
        scripted(SCRIPT).generate(**call, custom_generate=decoder)
    assert torch.equal(streamer.values[0], PROMPT)
    assert streamer.tokens == SCRIPT[:10]
    assert streamer.ended == 1


@pytest.mark.parametrize("skip_prompt", [True, False])
def test_transformers_text_streamers(skip_prompt, capsys):
    words = char_tokenizer("abcdefghijklmno ")
    for generate in (plain, lambda *a, **k: lossy(*a, **k, **right())):
        generate(scripted(SCRIPT), streamer=TextStreamer(words, skip_prompt=skip_prompt), max_new_tokens=9)
    theirs, ours, rest = capsys.readouterr().out.split("\n")
    assert ours == theirs == ("" if skip_prompt else "fdibf") + "hijklmno "
    assert rest == ""


def test_a_streamer_that_hands_out_text_while_it_is_made():
    streamer = TextIteratorStreamer(CHARS, skip_prompt=True)
    lossy(scripted(SCRIPT), streamer=streamer, stop_strings="nop", tokenizer=CHARS, **right())
    assert "".join(streamer) == "hijklmnop"


def test_streaming_changes_nothing():
    generators = [torch.Generator().manual_seed(5) for _ in range(2)]
    options = {"assistant_model": draft(), "verification": "lenience", "do_sample": True}
    streamer = Recording()
    one = lossy(target(), streamer=streamer, generator=generators[0], **options)
    other = lossy(target(), generator=generators[1], **options)
    assert torch.equal(one, other)
    assert streamer.tokens == one[0, N:].tolist()
