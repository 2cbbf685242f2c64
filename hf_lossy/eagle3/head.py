"""The EAGLE-3 head: one decoder layer that reads the target's hidden states and drafts from its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from ..ragged import move_up
from .config import Eagle3Config


class HeadCache:
    """Keys and values of the head's rows, [B, kv heads, rows, head_dim]; the first ``stable`` rows come from true target
    features and are kept, the rest belong to a draft in the making."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    @property
    def length(self) -> int:
        """Rows held."""
        return 0 if self.keys is None else self.keys.shape[2]

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append rows and return all of them."""
        if self.keys is not None and self.values is not None:
            keys, values = torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2)
        self.keys, self.values = keys, values
        return keys, values

    def close_gaps(self, starts: Sequence[int], edge: int) -> None:
        """Move the rows from ``edge`` on, of each sequence to its own start."""
        if self.keys is not None and self.values is not None and any(start != edge for start in starts):
            for states in (self.keys.transpose(1, 2), self.values.transpose(1, 2)):
                move_up(states, starts, edge)

    def select(self, rows: Sequence[int]) -> None:
        """Keep some sequences."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[rows], self.values[rows]

    def crop(self, length: int) -> None:
        """Keep the first ``length`` rows."""
        if self.keys is not None and self.values is not None and self.length > length:
            self.keys, self.values = self.keys[:, :, :length], self.values[:, :, :length]


class Eagle3Attention(nn.Module):
    """Attention whose input is twice as wide as its output: [embedding, feature]."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.heads, self.groups, self.dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        wide, bias = 2 * config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(wide, self.heads * self.dim, bias=bias)
        self.k_proj = nn.Linear(wide, self.groups * self.dim, bias=bias)
        self.v_proj = nn.Linear(wide, self.groups * self.dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.dim, config.hidden_size, bias=False)
        self.q_norm = LlamaRMSNorm(self.dim, config.rms_norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = LlamaRMSNorm(self.dim, config.rms_norm_eps) if config.qk_norm else nn.Identity()

    def project(self, x: Float[Tensor, "batch rows wide"], cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries, rotated keys and values, [B, heads, rows, head_dim]."""
        shape = (*x.shape[:2], -1, self.dim)
        q = self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
        v = self.v_proj(x).view(shape).transpose(1, 2)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k, v

    def forward(
        self,
        x: Float[Tensor, "batch rows wide"],
        cos: Tensor,
        sin: Tensor,
        cache: HeadCache,
        mask: Bool[Tensor, "*batch rows cached"] | None,
    ) -> Float[Tensor, "batch rows hidden"]:
        q, k, v = self.project(x, cos, sin)
        keys, values = cache.extend(k, v)
        out = nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Eagle3Layer(nn.Module):
    """Norms, attention over [embedding, feature], residual on the feature, MLP."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        eps, hidden = config.rms_norm_eps, config.hidden_size
        self.config = config
        self.input_layernorm = LlamaRMSNorm(hidden, eps)
        self.hidden_norm = LlamaRMSNorm(hidden, eps)
        self.self_attn = Eagle3Attention(config)
        self.post_attention_layernorm = LlamaRMSNorm(hidden, eps)
        self.mlp = LlamaMLP(config)

    def inputs(self, embedded: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        """The attention's input [B, rows, 2h], embedding first, and the residual [B, rows, h]."""
        normed = self.hidden_norm(self.input_layernorm(feature) if self.config.double_norm else feature)
        wide = torch.cat([self.input_layernorm(embedded), normed], -1)
        return wide, normed if self.config.norm_before_residual else feature

    def outputs(self, attended: Tensor, residual: Tensor) -> Tensor:
        """The layer's output from the attention's: y, before the final norm."""
        a = residual + attended
        return a + self.mlp(self.post_attention_layernorm(a))


class Eagle3Head(PreTrainedModel):
    """An EAGLE-3 draft head, passed to ``generate`` as ``assistant_model=``.

    Row t of the head holds the target's tapped hidden states of token t and the token t + 1, and predicts token t + 2::

        g = fc(taps)                                   for rows of the target; the head's own y for drafted rows
        a = r + attention([norm(embed(x)), norm(g)])   r = g, or norm(g) with norm_before_residual
        y = a + mlp(norm(a));   logits = lm_head(norm(y)) over the draft vocabulary

    Load one with :func:`hf_lossy.eagle3.load_head` or ``Eagle3Head.from_pretrained(path, target)``.

    Source: EAGLE-3, 2503.01840.
    """

    config_class = Eagle3Config
    base_model_prefix = "model"
    _no_split_modules = ("Eagle3Layer",)

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__(config)
        taps, hidden, eps = len(config.taps), config.hidden_size, config.rms_norm_eps
        joined = taps * config.target_hidden_size
        self.fc = nn.Linear(joined, hidden, bias=config.fc_bias)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(LlamaRMSNorm(config.target_hidden_size, eps) for _ in range(taps))
        if config.norm_before_fc:
            self.input_norm = LlamaRMSNorm(joined, eps)
        self.layers = nn.ModuleList([Eagle3Layer(config)])
        self.norm = LlamaRMSNorm(hidden, eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        if config.own_embedding:
            self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        self.rotary = LlamaRotaryEmbedding(config)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))
        self._borrowed: Any = None
        self.post_init()

    @classmethod
    def from_pretrained(cls, path: Any, target: PreTrainedModel | None = None, **choices: Any) -> Eagle3Head:
        """Read a head of any known producer; see :func:`hf_lossy.eagle3.formats.load_head`."""
        from .formats import load_head

        return load_head(path, target, **choices)

    # --- vocabulary ----------------------------------------------------------------------------------------------

    @property
    def draft_to_target(self) -> Int[Tensor, "draft_vocab"]:
        """The target's token id of each draft id; ``d2t`` holds offsets: target id = draft id + d2t[draft id]."""
        return torch.arange(self.config.draft_vocab_size, device=self.d2t.device) + self.d2t

    # --- the head ------------------------------------------------------------------------------------------------

    def borrow_embedding(self, target: PreTrainedModel) -> None:
        """Use the target's embedding module (called, not indexed, so that scaled embeddings come out right)."""
        # kept out of the module tree: it belongs to the target, and is neither saved nor moved with the head
        object.__setattr__(self, "_borrowed", target.get_input_embeddings())

    def embed(self, tokens: Int[Tensor, "batch rows"]) -> Float[Tensor, "batch rows hidden"]:
        """Embeddings of target token ids."""
        table = self.embed_tokens if self.config.own_embedding else self._borrowed
        if table is None:
            raise RuntimeError("this head has no embedding of its own: call borrow_embedding(target) first")
        return table(tokens).to(self.fc.weight.dtype)

    def features(self, taps: Float[Tensor, "batch rows joined"]) -> Float[Tensor, "batch rows hidden"]:
        """g of rows that have true target features: the joined taps through the norms and ``fc``."""
        taps = taps.to(self.fc.weight.dtype)
        if self.config.fc_norm:
            parts = taps.split(self.config.target_hidden_size, -1)
            taps = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        if self.config.norm_before_fc:
            taps = self.input_norm(taps)
        return self.fc(taps)

    def forward(
        self,
        features: Float[Tensor, "batch rows hidden"],
        tokens: Int[Tensor, "batch rows"],
        positions: Int[Tensor, "batch rows"],
        cache: HeadCache,
        mask: Bool[Tensor, "*batch rows cached"] | None = None,
    ) -> Float[Tensor, "batch rows hidden"]:
        """One pass over rows, appended to the cache; y, before the final norm.

        Args:
            features: g of each row, from :meth:`features` or :meth:`feedback`.
            tokens: the token after each row's feature.
            positions: the position of each row, for the rotation; one line of them serves a whole batch.
            cache: the rows so far; gets these appended.
            mask: which cached rows each row sees, its own included, [rows, cached] or [B, 1, rows, cached]; None: all.
        """
        layer: Any = self.layers[0]
        wide, residual = layer.inputs(self.embed(tokens), features)
        cos, sin = self.rotary(wide, positions)
        return layer.outputs(layer.self_attn(wide, cos, sin, cache, mask), residual)

    def feedback(self, y: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch hidden"]:
        """The feature of the next drafted row."""
        return self.norm(y) if self.config.feedback == "post_norm" else y

    def logits(self, y: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch draft_vocab"]:
        """Logits over the draft vocabulary, in float32 at least."""
        logits = self.lm_head(self.norm(y))
        return logits if logits.dtype == torch.float64 else logits.float()
