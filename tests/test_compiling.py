"""``compile_config``: the forwards of target and draft are compiled, and nothing else about a text changes.

The backend of these tests compiles nothing (no compiler is needed) and gives its results as CUDA graphs may: the next
call writes over them.
"""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import CompileConfig

import hf_lossy
from hf_lossy import LossyError, VerificationStats
from hf_lossy.generation import calibration

from .models import PROMPT, draft, head, lossy, plain, target


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Graphs:
    """A backend that counts the calls of its graphs, all of which write their results to the same memory."""

    def __init__(self):
        self.calls, self.memory = 0, torch.empty(1 << 16)

    def __call__(self, module, inputs, **_):
        def run(*arguments):
            self.calls, end, found = self.calls + 1, 0, []
            for new in module(*arguments):
                if isinstance(new, torch.Tensor) and new.is_floating_point():
                    begin, end = end, end + new.numel()
                    new = self.memory[begin:end].view(new.shape).copy_(new)
                found.append(new)
            return tuple(found)

        return run

    def __deepcopy__(self, memo):  # a CompileConfig copies itself
        return self


def compiled(graphs: Graphs, **more):
    return {"cache_implementation": "static", "compile_config": CompileConfig(backend=graphs, **more)}


def models():
    """Of their own, since a model keeps what was compiled."""
    return copy.deepcopy(target()), copy.deepcopy(draft())


DRAFTS = {"model": lambda small: {"assistant_model": small}, "lookup": lambda small: {"prompt_lookup_num_tokens": 4}}


@pytest.mark.parametrize("drafted", DRAFTS.values(), ids=DRAFTS)
def test_every_forward_but_the_first_is_compiled_and_the_text_is_plain_greedys(drafted):
    (big, small), graphs, stats = models(), Graphs(), VerificationStats()
    ours = lossy(big, **drafted(small), max_new_tokens=24, verification_stats=stats, **compiled(graphs))
    assert torch.equal(ours, plain(target(), max_new_tokens=24))
    firsts = 2 if stats.draft_forwards else 1
    assert graphs.calls == stats.target_forwards + stats.draft_forwards - firsts > 4


@pytest.mark.parametrize("bonus", ["target", "induced"])
def test_a_sampled_text_and_its_scores_are_those_without_compiling(bonus):
    """What the target's forward gave is read after the draft's at the bonus position, and returned after later rounds."""
    asked = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True, "max_new_tokens": 24}
    law = {"verification": "cos", "verification_config": {"draft_weight": 0.4}, "bonus": bonus, "do_sample": True}

    def run(**more):
        big, small = models()
        return lossy(big, assistant_model=small, generator=torch.Generator().manual_seed(3), **law, **asked, **more)

    graphs = Graphs()
    eager, ours = run(cache_implementation="static"), run(**compiled(graphs))
    assert graphs.calls
    assert torch.equal(ours.sequences, eager.sequences)
    for name in ("scores", "logits"):
        both = zip(getattr(ours, name), getattr(eager, name), strict=True)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in both)


def test_the_schedule_measures_compiled_forwards(monkeypatch):
    monkeypatch.setattr(calibration, "SECONDS", 0.0)
    (big, small), graphs, stats = models(), Graphs(), VerificationStats()
    options = {"assistant_model": small, "num_assistant_tokens_schedule": "expected", "verification_stats": stats}
    ours = lossy(big, max_new_tokens=12, num_assistant_tokens=None, **options, **compiled(graphs))
    assert torch.equal(ours, plain(target(), max_new_tokens=12))
    in_rounds = stats.target_forwards + stats.draft_forwards
    sizes, repeats = 6, 4  # of the target's forwards, and one of the draft's; a warm-up and three
    assert graphs.calls - in_rounds >= (sizes + 1) * repeats - 2


def test_disable_compile_leaves_it():
    (big, small), graphs = models(), Graphs()
    lossy(big, assistant_model=small, disable_compile=True, **compiled(graphs))
    assert graphs.calls == 0


def test_what_can_not_be_compiled_is_refused():
    config = CompileConfig(backend=Graphs())
    with pytest.raises(LossyError, match=r"compile_config needs a cache of fixed size, got a DynamicCache.*'static'"):
        lossy(target(), assistant_model=draft(), compile_config=config)
    with pytest.raises(LossyError, match=r"compile_config can't be combined with an EAGLE-3 head.*use a draft model"):
        hf_lossy.generate(
            target(),
            PROMPT,
            assistant_model=head(target()),
            verification="lossless",
            max_new_tokens=4,
            **compiled(Graphs()),
        )
