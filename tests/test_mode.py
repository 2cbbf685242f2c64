"""What is left behind by a call can be trained on and written to, and only known code runs in inference mode."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from hf_lossy.compat import CACHE_NAME
from hf_lossy.generation.stops import Stops

from .models import PROMPT, draft, head, lossy, plain, target


class Cached(nn.Module):
    """A layer around another that makes a constant when it is first called, as adapters do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.scale = inner, None

    def forward(self, x):
        if self.scale is None:
            self.scale = torch.ones(x.shape[-1])
        return self.inner(x * self.scale)


class Guided(LogitsProcessor):
    """Follows a gradient."""

    def __call__(self, input_ids, scores):
        with torch.enable_grad():
            free = scores.clone().requires_grad_()
            free.softmax(-1)[:, ::2].sum().backward()
        return scores + 3 * free.grad


class Keeping(StoppingCriteria):
    """Keeps what it sees."""

    def __init__(self) -> None:
        self.seen = []

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append(input_ids)
        return torch.zeros(len(input_ids), dtype=torch.bool)


class Kept(BaseStreamer):
    """Keeps what is streamed."""

    def __init__(self) -> None:
        self.values = []

    def put(self, value):
        self.values.append(value)

    def end(self):
        pass


def trained(model) -> None:
    model.zero_grad()
    model(PROMPT, labels=PROMPT).loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_module_that_keeps_a_constant_can_be_trained_afterwards():
    model = copy.deepcopy(target())
    model.model.layers[0].mlp = Cached(model.model.layers[0].mlp)
    lossy(model, assistant_model=draft())
    assert model.model.layers[0].mlp.scale is not None
    trained(model)


def test_so_can_a_target_and_a_head():
    model = copy.deepcopy(target())
    with_head = head(model)
    lossy(model, assistant_model=with_head)
    trained(model)


def test_hidden_states_that_a_hook_kept_can_be_trained_on():
    model, kept = copy.deepcopy(target()), []
    model.model.layers[0].register_forward_hook(lambda module, inputs, output: kept.append(inputs[0]))
    lossy(model, assistant_model=draft())
    probe = nn.Linear(kept[0].shape[-1], 1)
    probe(kept[0]).sum().backward()
    assert probe.weight.grad is not None


def test_a_processor_may_ask_for_gradients():
    processors = LogitsProcessorList([Guided()])
    guided = plain(target(), logits_processor=processors)
    assert torch.equal(lossy(target(), assistant_model=draft(), logits_processor=processors), guided)
    assert not torch.equal(guided, plain(target()))


def test_what_a_criterion_or_a_streamer_was_given_is_an_ordinary_tensor():
    criterion, streamer = Keeping(), Kept()
    lossy(target(), assistant_model=draft(), stopping_criteria=StoppingCriteriaList([criterion]))
    lossy(target(), assistant_model=draft(), streamer=streamer)
    embedding = target().get_input_embeddings()
    for value in (criterion.seen[-1], streamer.values[-1]):
        embedding(value).sum().backward()
        value += 0
    target().zero_grad()


@pytest.fixture
def modes(monkeypatch) -> list[bool]:
    """Whether rounds ran in inference mode."""
    seen, first = [], Stops.first

    def watched(*args):
        seen.append(torch.is_inference_mode_enabled())
        return first(*args)

    monkeypatch.setattr(Stops, "first", watched)
    return seen


def replaced(model):
    forward = model.lm_head.forward
    model.lm_head.forward = lambda x: forward(x)
    return model


def hooked(model):
    model.lm_head.register_forward_pre_hook(lambda module, inputs: None)
    return model


@pytest.mark.parametrize(
    ("given", "infers"),
    [
        (dict, True),
        (lambda: {"streamer": Kept()}, True),
        (lambda: {"repetition_penalty": 1.2, "do_sample": True, "top_k": 5, "max_time": 60.0}, True),
        (lambda: {"assistant_model": head(target())}, True),
        (lambda: {"return_dict_in_generate": True}, False),
        (lambda: {CACHE_NAME: DynamicCache(config=target().config)}, False),
        (lambda: {"logits_processor": LogitsProcessorList([Guided()])}, False),
        (lambda: {"stopping_criteria": StoppingCriteriaList([Keeping()])}, False),
        (lambda: {"prefix_allowed_tokens_fn": lambda row, ids: list(range(32))}, False),
        (lambda: {"assistant_model": replaced(copy.deepcopy(draft()))}, False),
        (lambda: {"assistant_model": hooked(copy.deepcopy(draft()))}, False),
    ],
)
def test_only_known_code_runs_in_inference_mode(given, infers, modes):
    out = lossy(target(), **{"assistant_model": draft(), **given()})
    assert set(modes) == {infers}
    sequences = out if isinstance(out, torch.Tensor) else out.sequences
    assert not sequences.is_inference()
