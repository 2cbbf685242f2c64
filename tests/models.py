"""Tiny models and a tokenizer for end-to-end tests: nothing is downloaded, everything is seeded and shared.

T = :func:`target`, a 2-layer Llama; D = :func:`draft`, its first layer alone, which often agrees with it; S = T as its own
draft. :class:`TableModel` is a language model whose next-token logits are any function of the prefix, for tests that need
to know what the models do.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel
from torch import Tensor, nn
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GenerationMixin,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

import hf_lossy
from hf_lossy.compat import CACHE_NAME
from hf_lossy.eagle3 import Eagle3Config, Eagle3Head
from hf_lossy.loading import Pair

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
}
SPECIAL = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
PROMPT = torch.tensor([[5, 3, 8, 1, 5]])


def plain(model: PreTrainedModel, ids: Tensor = PROMPT, **kwargs: Any) -> Any:
    """Transformers' own generate, greedy unless said otherwise."""
    defaults = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 24}
    return model.generate(ids, **{**defaults, **kwargs})


def lossy(model: PreTrainedModel, ids: Tensor = PROMPT, **kwargs: Any) -> Any:
    """The same call with verification, lossless unless said otherwise."""
    defaults = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 24}
    return hf_lossy.generate(model, ids, **{**defaults, "verification": "lossless", **kwargs})


# --- T, D and others of transformers' own ------------------------------------------------------------------------------


def _seeded(cls: type[PreTrainedModel], config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """Random weights, large enough that greedy text does not repeat itself; the layers after the first count less, so that
    the first alone often agrees with the whole."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = cls(config).eval()
        for layer in model.model.layers[1:]:
            layer.self_attn.o_proj.weight *= 0.3
            layer.mlp.down_proj.weight *= 0.3
    return model


@functools.cache
def target(vocabulary: int = 32, layers: int = 2, attention: str = "sdpa", seed: int = 0) -> LlamaForCausalLM:
    """T."""
    config = LlamaConfig(
        vocab_size=vocabulary, num_hidden_layers=layers, attn_implementation=attention, **SIZES, **SPECIAL
    )
    return _seeded(LlamaForCausalLM, config, seed)


@functools.cache
def mistral(window: int = 8) -> MistralForCausalLM:
    """A target with sliding-window attention in every layer."""
    config = MistralConfig(vocab_size=32, num_hidden_layers=2, sliding_window=window, **SIZES, **SPECIAL)
    return _seeded(MistralForCausalLM, config)


@functools.cache
def gemma3(window: int = 8) -> Gemma3ForCausalLM:
    """A hybrid target: sliding window, full attention, sliding window."""
    config = Gemma3TextConfig(
        vocab_size=32,
        num_hidden_layers=3,
        head_dim=8,
        sliding_window=window,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        tie_word_embeddings=False,
        **SIZES,
        **SPECIAL,
    )
    return _seeded(Gemma3ForCausalLM, config, seed=5)


@functools.cache
def qwen3() -> Qwen3ForCausalLM:
    """A target with normed queries and keys."""
    config = Qwen3Config(vocab_size=32, num_hidden_layers=2, head_dim=8, **SIZES, **SPECIAL)
    return _seeded(Qwen3ForCausalLM, config)


@functools.cache
def head(model: PreTrainedModel, draft_vocabulary: int | None = None, seed: int = 0) -> Eagle3Head:
    """An EAGLE-3 head with random weights, of every tap there is: it drafts, though rarely well."""
    theirs = model.config
    config = Eagle3Config(
        vocab_size=theirs.vocab_size,
        draft_vocab_size=draft_vocabulary or theirs.vocab_size,
        **{name: getattr(theirs, name) for name in ("hidden_size", "intermediate_size", "num_attention_heads")},
        num_key_value_heads=theirs.num_key_value_heads,
        head_dim=8,
        rms_norm_eps=1e-5,
        taps=range(theirs.num_hidden_layers + 1),
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        made = Eagle3Head(config).eval().to(model.dtype)
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
        ids = torch.randperm(theirs.vocab_size)[: config.draft_vocab_size].sort().values
        made.d2t.copy_(ids - torch.arange(len(ids)))
    made.borrow_embedding(model)
    return made


@functools.cache
def sibling(model: PreTrainedModel, vocabulary: int | None = None) -> PreTrainedModel:
    """The draft D of a model: its embeddings, first layer and head, with the rows of a vocabulary cut or padded."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers, config.vocab_size = 1, vocabulary or config.vocab_size
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:1]
    small = _seeded(type(model), config, seed=1)
    whole = model.state_dict()
    with torch.no_grad():
        for name, parameter in small.named_parameters():
            rows = min(len(parameter), len(whole[name]))
            parameter[:rows] = whole[name][:rows]
    return small


def draft(vocabulary: int = 32, attention: str = "sdpa") -> LlamaForCausalLM:
    """D."""
    return sibling(target(vocabulary, attention=attention))


# --- a model that is a table -------------------------------------------------------------------------------------------

Rule = Callable[[tuple[int, ...]], Tensor]
"""Logits [V] of the next token after a prefix."""


class TableConfig(PreTrainedConfig):
    model_type = "table"

    def __init__(self, vocab_size: int = 8, **kwargs) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = self.num_hidden_layers = self.num_attention_heads = self.num_key_value_heads = 1
        super().__init__(**kwargs)


class TableModel(PreTrainedModel, GenerationMixin):
    """A language model that looks its logits up, given the whole prefix or its last ``order`` tokens, which it remembers in
    its *cache*: a cache that was rolled back wrongly gives wrong logits. ``prefixes`` records what each forward was asked
    about."""

    config_class = TableConfig

    def __init__(self, rule: Rule, vocabulary: int, order: int | None = None) -> None:
        super().__init__(TableConfig(vocabulary, **SPECIAL))
        self.rule, self.order, self.known = rule, order, {}
        self.anchor = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.prefixes: list[list[tuple[int, ...]]] = []

    def forward(self, input_ids, attention_mask=None, position_ids=None, logits_to_keep=0, use_cache=None, **kwargs):
        cache, ids = kwargs.get(CACHE_NAME), input_ids[:, None, :, None]
        if cache is not None:
            ids = cache.update(ids.float(), ids.float(), 0)[0]
        count, logits = logits_to_keep or input_ids.shape[1], []
        self.prefixes.append([])
        for row, held in enumerate(ids.long()[:, 0, :, 0].tolist()):
            # alone there is no padding; transformers hides the padding token wherever it comes
            masked = attention_mask is not None and len(ids) > 1
            hidden = set((attention_mask[row] == 0).nonzero().flatten().tolist()) if masked else set()
            ends = range(len(held) - count + 1, len(held) + 1)
            asked = [tuple(token for i, token in enumerate(held[:end]) if i not in hidden) for end in ends]
            asked = asked if self.order is None else [prefix[-self.order :] for prefix in asked]
            self.prefixes[-1] += asked
            for prefix in asked:
                if prefix not in self.known:
                    self.known[prefix] = self.rule(prefix)
            logits.append(torch.stack([self.known[prefix] for prefix in asked]))
        logits = torch.stack(logits)
        return CausalLMOutputWithPast(logits=logits, **{CACHE_NAME: cache})


def table(rule: Rule, vocabulary: int, order: int | None = None) -> TableModel:
    return TableModel(rule, vocabulary, order).eval()


def random_rule(vocabulary: int, seed: int, sharpness: float = 1.5) -> Rule:
    """Logits drawn anew for every prefix."""

    def rule(prefix: tuple[int, ...]) -> Tensor:
        rng = np.random.default_rng([seed, len(prefix), *prefix])
        return torch.tensor(rng.normal(0, sharpness, vocabulary), dtype=torch.float32)

    return rule


def script_rule(vocabulary: int, prompt: int, script: Sequence[int]) -> Rule:
    """After a prompt of this length the script, with certainty; then its last token for ever."""

    def rule(prefix: tuple[int, ...]) -> Tensor:
        logits = torch.full((vocabulary,), -torch.inf)
        logits[script[min(len(prefix) - prompt, len(script) - 1)]] = 0.0
        return logits

    return rule


def scripted(script: Sequence[int], vocabulary: int = 16, prompt: int = PROMPT.shape[1]) -> TableModel:
    return table(script_rule(vocabulary, prompt, script), vocabulary)


# --- a tokenizer -------------------------------------------------------------------------------------------------------


def char_tokenizer(alphabet: str = "abcdefghijklmnopqrstuvwxyz .!?,", **special: str) -> PreTrainedTokenizerFast:
    """One token a character, in the order of the alphabet."""
    tokenizer = Tokenizer(WordLevel({c: i for i, c in enumerate(alphabet)}, unk_token=alphabet[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special)


# --- pairs ---------------------------------------------------------------------------------------------------------------


def tiny_pair(**generate: Any) -> Pair:
    """T with D, and prompts that their tokenizer knows."""
    prompts = ["hello", "what a day", "abab"]
    return Pair("tiny", target(), draft(), char_tokenizer(), prompts, {"num_assistant_tokens": 3, **generate})


def head_pair() -> Pair:
    """T with a head."""
    prompts = ["hello", "what a day", "abab", "once upon"]
    return Pair("tiny", target(), head(target()), char_tokenizer(), prompts)
