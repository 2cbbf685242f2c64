"""Batches: rows are independent, keep different numbers of tokens in a round, and finish at different times.

Chi-square: as in test_sampling_law.py, with its P_VALUE = 1e-6; three rows for each of the laws here and a few more, fewer
than 100 comparisons, so that the false-alarm rate of this file is below 1e-4, too.
"""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

import hf_lossy
from hf_lossy import LossyError

from .models import char_tokenizer, draft, gemma3, head, lossy, mistral, plain, target
from .test_greedy import LOSSY
from .test_sampling_law import LAWS, P_VALUE, V, chi_square, induced, last_two, warped

PROMPTS = [[5, 3, 8, 1, 5], [7, 2], [9, 9, 4, 30], [11]]
DRAFTS = {
    "D": lambda: {"assistant_model": draft()},
    "S": lambda: {"assistant_model": target()},
    "prompt lookup": lambda: {"prompt_lookup_num_tokens": 4},
    "head": lambda: {"assistant_model": head(target()), "draft_mode": "chain"},
    "tree": lambda: {"assistant_model": head(target()), "tree_size": 9, "tree_depth": 2, "tree_top_k": 3},
    "tree of few tokens": lambda: {"assistant_model": head(target(), 20), "tree_size": 12},
    "head of few tokens": lambda: {"assistant_model": head(target(), 20), "draft_mode": "chain"},
}
each_draft = pytest.mark.parametrize("drafted", DRAFTS.values(), ids=DRAFTS)


def left_padded(prompts=PROMPTS, pad=0):
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    return ids, torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])


def batch(model, prompts=PROMPTS, **kwargs):
    ids, mask = left_padded(prompts)
    return lossy(model, ids, attention_mask=mask, **kwargs)


def tails(sequences, prompts=PROMPTS):
    """What was emitted after the prompts, padding after a row's end included."""
    return sequences[:, max(map(len, prompts)) :].tolist()


def alone(prompts=PROMPTS, **kwargs):
    """Transformers' plain text of each prompt by itself."""
    return [plain(target(), torch.tensor([prompt]), **kwargs)[0, len(prompt) :].tolist() for prompt in prompts]


# --- greedy: each row as if it were alone ------------------------------------------------------------------------------


@each_draft
@pytest.mark.parametrize("gamma", [1, 2, 5, 7])
def test_rows_are_plain_greedy_text(drafted, gamma):  # EAGLE#250, #90, #126, #234: batches of trees
    length = {"tree_depth": gamma - 1} if "tree_size" in drafted() else {"num_assistant_tokens": gamma}
    assert tails(batch(target(), **{**drafted(), **length})) == alone()


@each_draft
def test_equal_prompt_lengths_need_no_mask(drafted):
    prompts = [[5, 3, 8], [7, 2, 2], [9, 9, 4]]
    assert tails(batch(target(), prompts, **drafted()), prompts) == alone(prompts)


@pytest.mark.parametrize("law", LOSSY, ids=str)
def test_rows_under_a_lossy_law_are_those_of_batch_one(law):
    options = {"assistant_model": draft(), "verification": law}
    one = [lossy(target(), torch.tensor([prompt]), **options)[0, len(prompt) :].tolist() for prompt in PROMPTS]
    assert tails(batch(target(), **options)) == one


@pytest.mark.parametrize("drafted", [DRAFTS[name] for name in DRAFTS if name.startswith(("head", "tree"))])
@pytest.mark.parametrize("law", [hf_lossy.Lenience(0.3), hf_lossy.Cos(0.6)], ids=str)
def test_rows_of_a_head_under_a_lossy_law_are_those_of_batch_one(drafted, law):
    """Also where the law asks for q at nodes of the tree that the search did not expand."""
    options = {**drafted(), "verification": law, "max_new_tokens": 40}
    one = [lossy(target(), torch.tensor([prompt]), **options)[0, len(prompt) :].tolist() for prompt in PROMPTS]
    assert tails(batch(target(), **options)) == one
    assert one != alone(max_new_tokens=40)


@each_draft
def test_rows_end_at_different_times(drafted):
    """Any token of the plain texts may be the end; rows that ended are filled up."""
    texts = alone()
    ends = sorted({token for text in texts for token in text})[:12:3]
    lengths = set()
    for end in ends:
        found = tails(batch(target(), eos_token_id=end, pad_token_id=31, **drafted()))
        expected = alone(eos_token_id=end, pad_token_id=31)
        width = max(map(len, expected))
        assert found == [text + [31] * (width - len(text)) for text in expected]
        lengths.add(tuple(map(len, expected)))
    assert any(len(set(one)) > 2 for one in lengths)


def test_the_end_pads_where_no_padding_token_is_known():
    end = alone()[0][3]
    model = target()
    ids, mask = left_padded()
    out = hf_lossy.generate(
        model,
        ids,
        attention_mask=mask,
        assistant_model=draft(),
        verification="lossless",
        do_sample=False,
        max_new_tokens=24,
        eos_token_id=[end, 1],
        pad_token_id=None,
    )
    row = tails(out)[0]
    assert set(row[row.index(end) :]) == {end}


class RefusesRepeats(LogitsProcessor):
    """No token twice in a row, and a token that depends on the length: wrong prefixes give another text."""

    def __call__(self, input_ids, scores):
        scores[:, input_ids[0, -1]] = -torch.inf
        scores[:, input_ids.shape[1] % 32] += 3.0
        return scores


PROCESSORS = {
    "repetition": {"repetition_penalty": 1.4},
    "n-gram": {"no_repeat_ngram_size": 2},
    "minimum": {"min_new_tokens": 9, "eos_token_id": list(range(4, 12))},
    "own": {"logits_processor": LogitsProcessorList([RefusesRepeats()])},
}


@each_draft
@pytest.mark.parametrize("given", PROCESSORS.values(), ids=PROCESSORS)
def test_processors_see_each_rows_own_prefix(drafted, given):
    """Transformers' plain batch sees the padding, too."""
    ids, mask = left_padded()
    rows = [
        plain(target(), ids[i : i + 1], attention_mask=mask[i : i + 1], **given)[0, ids.shape[1] :].tolist()
        for i in range(len(ids))
    ]
    found = tails(batch(target(), **drafted(), **given))
    assert [text[: len(row)] for text, row in zip(found, rows, strict=True)] == rows
    assert rows != alone()


class Whole(StoppingCriteria):
    """Stops a row at its third repetition of a token."""

    def __call__(self, input_ids, scores, **kwargs):
        assert len(input_ids) == 1
        return torch.tensor([input_ids[0].tolist().count(int(input_ids[0, -1])) >= 3])


def test_a_criterion_is_asked_row_by_row():
    criteria = StoppingCriteriaList([Whole()])
    expected = [
        lossy(target(), torch.tensor([p]), assistant_model=draft(), stopping_criteria=criteria)[0, len(p) :].tolist()
        for p in PROMPTS[:3]
    ]
    found = batch(target(), PROMPTS[:3], assistant_model=draft(), stopping_criteria=criteria)
    for text, row in zip(tails(found, PROMPTS[:3]), expected, strict=True):
        assert text[: len(row)] == row
        assert not any(text[len(row) :])
    assert len(set(map(len, expected))) > 1


def test_stop_strings():
    tokenizer = char_tokenizer()
    texts = [tokenizer.decode(text) for text in alone()]
    stop = texts[0][4:6]
    found = tails(batch(target(), assistant_model=draft(), stop_strings=stop, tokenizer=tokenizer))
    for row, text in zip(found, texts, strict=True):
        expected = text[: text.index(stop) + 2] if stop in text else text
        assert tokenizer.decode(row)[: len(expected)] == expected


@each_draft
def test_several_sequences_of_one_prompt(drafted):
    options = {"do_sample": True, "num_return_sequences": 3, "max_new_tokens": 12, **drafted()}
    ids = torch.tensor([[5, 3, 8], [7, 2, 4]])
    out = lossy(target(), ids, **options, generator=torch.Generator().manual_seed(0), return_dict_in_generate=True)
    assert out.sequences[:, :3].tolist() == [row for row in ids.tolist() for _ in range(3)]
    assert len({tuple(row) for row in out.sequences.tolist()}) == 6
    assert len(out.verification.rows) == 6


@pytest.mark.parametrize("penalty", [{"encoder_no_repeat_ngram_size": 1}, {"encoder_repetition_penalty": 1.4}], ids=str)
def test_processors_that_hold_the_prompts_get_their_own_rows(penalty):
    prompts = [[31, 24, 18, 15], [0, 16, 18, 6]]
    assert tails(batch(target(), prompts, assistant_model=draft(), **penalty), prompts) == alone(prompts, **penalty)
    assert alone(prompts, **penalty) != alone(prompts)


def test_padding_behind_a_text_is_refused():
    """The model would write on behind the padding."""
    ids, mask = left_padded()
    with pytest.raises(LossyError, match=r"attention_mask of a row ends in 0.*pad on the left"):
        lossy(target(), ids.flip(1), attention_mask=mask.flip(1), assistant_model=draft())


# --- sampled: the law of each row --------------------------------------------------------------------------------------


def rows_of_a_long_run(law, count=500, **options):
    """Counts and π of the tokens after each context, for each row of one call on table models."""
    big, small = last_two(0), last_two(1)
    prompts = [[1, 2, 3, 0], [3, 1], [2, 2, 1]]
    ids, mask = left_padded(prompts)
    out = lossy(
        big,
        ids,
        **{"attention_mask": mask, "assistant_model": small, "num_assistant_tokens": 3, "top_k": 0, **options},
        verification=law,
        do_sample=True,
        max_new_tokens=count,
        return_dict_in_generate=True,
    )
    contexts = list(itertools.product(range(V), repeat=2))
    for tokens in out.sequences.tolist():
        seen = {context: np.zeros(V) for context in contexts}
        for i in range(ids.shape[1], len(tokens)):
            seen[tokens[i - 2], tokens[i - 1]][tokens[i]] += 1
        yield [(seen[c], induced(law, warped(big.rule(c)), warped(small.rule(c)))) for c in contexts]


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_every_row_follows_the_law(law):
    for groups in rows_of_a_long_run(law, generator=torch.Generator().manual_seed(0)):
        assert chi_square(groups) > P_VALUE


@pytest.mark.parametrize(
    "options",
    [
        {"coupling": "token"},
        {"assistant_model": None, "num_assistant_tokens": None, "prompt_lookup_num_tokens": 3},
    ],
    ids=str,
)
def test_every_row_follows_the_law_with_other_couplings(options):
    law = hf_lossy.MinP(0.3)
    for groups in rows_of_a_long_run(law, generator=torch.Generator().manual_seed(1), **options):
        assert chi_square(groups) > P_VALUE


@pytest.mark.parametrize("drafted", [DRAFTS[name] for name in DRAFTS if name != "prompt lookup"])
@pytest.mark.parametrize("law", ["lossless", "min_p"])
def test_a_rows_coins_are_its_own(drafted, law):
    """With a generator for each row, its text is that of the prompt alone, whoever its neighbours are. (A lookup's number of
    candidates is that of the row that found most.)"""

    def seeds(rows):
        return [torch.Generator().manual_seed(10 + row) for row in rows]

    options = {"do_sample": True, "top_k": 0, "verification": law, **drafted()}
    options |= {"draft_mode": "sampled"} if "draft_mode" in options else {}
    found = tails(batch(target(), generator=seeds(range(len(PROMPTS))), max_new_tokens=40, **options))
    for row, prompt in enumerate(PROMPTS):
        one = lossy(target(), torch.tensor([prompt]), generator=seeds([row])[0], max_new_tokens=40, **options)
        # the last round of a row alone drafts less
        assert found[row][:32] == one[0, len(prompt) : len(prompt) + 32].tolist()
    assert len(set(map(tuple, found))) == len(PROMPTS)


def test_a_rows_coins_are_its_own_beside_rows_that_draft_on():
    """Alone a draft stops at an end, beside others it goes on; where the end is refused, the row's coins must be in step
    afterwards. (The token coupling: the block coupling looks at the whole block.)"""
    seen = 0
    for end in range(0, 32, 3):
        options = {"do_sample": True, "top_k": 0, "assistant_model": draft(), "coupling": "token", "eos_token_id": end}
        seeds = [torch.Generator().manual_seed(row) for row in range(len(PROMPTS))]
        found = tails(batch(target(), generator=seeds, max_new_tokens=40, pad_token_id=end, **options))
        for row, prompt in enumerate(PROMPTS):
            stats, seed = hf_lossy.VerificationStats(), torch.Generator().manual_seed(row)
            one = lossy(
                target(),
                torch.tensor([prompt]),
                generator=seed,
                max_new_tokens=40,
                verification_stats=stats,
                pad_token_id=end,
                **options,
            )
            text = one[0, len(prompt) :].tolist()[:32]
            assert found[row][: len(text)] == text
            seen += sum(r.drafted < 3 and r.accepted < r.drafted for r in stats.rounds)
    assert seen > 5


@pytest.mark.parametrize("mode", ["chain", "sampled"])
@pytest.mark.parametrize("sampling", [{}, {"do_sample": True, "top_k": 0}], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "how", [{"verification": hf_lossy.Lenience(0.5)}, {"accounting": True}], ids=["lossy", "counted"]
)
def test_a_row_whose_head_has_no_q_yet_is_no_broken_draft(mode, sampling, how):
    """A head says nothing after a single token, which the bonus position of that row meets first."""
    generators = [torch.Generator().manual_seed(i) for i in range(len(PROMPTS))]
    made = batch(target(), assistant_model=head(target()), draft_mode=mode, generator=generators, **sampling, **how)
    for row, prompt in enumerate(PROMPTS):
        one = [torch.Generator().manual_seed(row)]
        single = lossy(
            target(),
            torch.tensor([prompt]),
            assistant_model=head(target()),
            draft_mode=mode,
            generator=one,
            **sampling,
            **how,
        )
        count = 16 if sampling else 24  # near its end a row alone drafts less than beside others
        assert tails(made)[row][:count] == tails(single, [prompt])[0][:count]


# --- what it says and what it costs ------------------------------------------------------------------------------------


def test_statistics_are_those_of_the_rows():
    options = {"assistant_model": draft(), "verification": hf_lossy.Lenience(0.3), "accounting": True}
    end = alone()[1][9]
    together, each = hf_lossy.VerificationStats(), []
    batch(target(), eos_token_id=end, verification_stats=together, **options)
    for prompt in PROMPTS:
        each.append(hf_lossy.VerificationStats())
        lossy(target(), torch.tensor([prompt]), eos_token_id=end, verification_stats=each[-1], **options)
    for row, one in zip(together.rows, each, strict=True):
        assert row.sources == one.rows[0].sources
        assert sum(r.emitted for r in row.rounds) == sum(r.emitted for r in one.rows[0].rounds)
        assert row.rounds[-1].stop == one.rows[0].rounds[-1].stop
        for name, values in one.rows[0].accounting.items():
            assert row.accounting[name] == pytest.approx(values, abs=1e-5, nan_ok=True)
    assert together.target_forwards == max(len(row.rounds) for row in together.rows)


@pytest.mark.parametrize("kind", ["scores", "logits"])
def test_scores_and_logits(kind):
    end = alone()[1][9]
    given = {"return_dict_in_generate": True, f"output_{kind}": True, "eos_token_id": end}
    out = batch(target(), assistant_model=draft(), **given)
    for row, prompt in enumerate(PROMPTS):
        expected = plain(target(), torch.tensor([prompt]), **given)
        steps = getattr(expected, kind)
        found = torch.stack([step[row] for step in getattr(out, kind)])
        torch.testing.assert_close(found[: len(steps)], torch.cat(steps), rtol=1e-4, atol=1e-4)
        assert found[len(steps) :].isnan().all()
    assert getattr(out, "past_key_values", None) is None
    assert getattr(out, "cache", None) is None


@each_draft
def test_finished_rows_cost_nothing_any_more(drafted):
    """Forwards of the target and of the draft have only the rows that go on."""
    end, given = alone()[1][9], drafted()
    small, widths = given.get("assistant_model"), {"target": [], "draft": []}
    own = copy.deepcopy(target())

    def watch(name):
        def hook(module, args, kwargs):
            widths[name].append(len(args[0] if args else kwargs["input_ids"]))

        return hook

    hooks = [own.register_forward_pre_hook(watch("target"), with_kwargs=True)]
    if small is not None:
        hooks.append(small.register_forward_pre_hook(watch("draft"), with_kwargs=True))
    try:
        out = batch(own, eos_token_id=end, pad_token_id=31, **given)
    finally:
        for hook in hooks:
            hook.remove()
    lengths = [text.index(end) + 1 if end in text else 24 for text in tails(out)]
    assert len(set(lengths)) > 1
    for found in widths.values():
        assert found == sorted(found, reverse=True)
    assert widths["target"][0] == len(PROMPTS)
    assert widths["target"][-1] <= lengths.count(max(lengths)) < len(PROMPTS)
    assert small is None or widths["draft"][-1] < len(PROMPTS)


def test_a_row_drafts_past_its_own_end_without_leaving_the_positions():
    """GPT-2 has no position after its last."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5)
    config.eos_token_id = config.bos_token_id = None
    model = GPT2LMHeadModel(config).eval()
    ids = torch.tensor([[5, 3], [7, 2], [9, 9]])
    options = {"max_length": 16, "pad_token_id": 0, "max_new_tokens": None}
    out = lossy(model, ids, assistant_model=model, prompt_lookup_num_tokens=None, num_assistant_tokens=5, **options)
    other = lossy(model, ids, prompt_lookup_num_tokens=5, **options)
    for row in range(3):
        expected = plain(model, ids[row : row + 1], **options)[0].tolist()
        assert out[row].tolist() == expected
        assert other[row].tolist() == expected


# --- what does not go --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [mistral, gemma3])
def test_sliding_windows_are_refused(model):
    with pytest.raises(LossyError, match=r"batch of 4 .*dynamic cache without sliding windows.*one sequence at a time"):
        batch(model(), assistant_model=model())


@pytest.mark.parametrize("reading", ["head", "point_mass"])
@pytest.mark.parametrize("law", ["lossless", "lenience", "min_p", "cos"])
def test_rows_of_trees_are_those_of_batch_one(law, reading):
    """Sampled, each row with coins of its own: the same tokens, sources and accounting as alone."""
    options = {"do_sample": True, "top_k": 0, "verification": law, "accounting": True, "draft_probs": reading}
    options |= DRAFTS["tree"]() | {"max_new_tokens": 30}
    generators = [torch.Generator().manual_seed(row) for row in range(len(PROMPTS))]
    stats = hf_lossy.VerificationStats()
    found = tails(batch(target(), generator=generators, verification_stats=stats, **options))
    for row, prompt in enumerate(PROMPTS):
        one = hf_lossy.VerificationStats()
        generator = torch.Generator().manual_seed(row)
        text = lossy(target(), torch.tensor([prompt]), generator=generator, verification_stats=one, **options)
        assert found[row][:26] == text[0, len(prompt) : len(prompt) + 26].tolist()
        assert stats.rows[row].sources[:26] == one.rows[0].sources[:26]
        for name, values in one.rows[0].accounting.items():
            assert stats.rows[row].accounting[name][:26] == pytest.approx(values[:26], abs=1e-5, nan_ok=True)
