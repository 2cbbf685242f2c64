"""The configuration of an EAGLE-3 head: every choice that the checkpoints of different producers make differently."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig


class Eagle3Config(PretrainedConfig):
    """Geometry and conventions of a head, resolved and readable.

    Attributes:
        vocab_size: the target's vocabulary V. draft_vocab_size: the head's, Dv ≤ V.
        hidden_size: the head's width h. target_hidden_size: the target's, ht.
        taps: which of the target's hidden states feed the head, as transformers' ``hidden_states`` indices (i is the
            input of layer i; N, the number of layers, is the last layer's output before the final norm).
        fc_norm: one RMS norm for each tap before they are joined. norm_before_fc: one norm over the joined taps.
        norm_before_residual: the residual is the normed feature, not the raw one.
        double_norm: the feature passes the embedding's norm before its own (ModelOpt since 2025-12).
        feedback: what the head feeds to its next step, ``"pre_norm"`` or ``"post_norm"`` hidden states.
        qk_norm, attention_bias, mlp_bias: as in the layer of the target's family.
        own_embedding: the head carries an embedding table of its own.
        producer: who wrote the checkpoint it was read from.

    Source: EAGLE-3, 2503.01840.
    """

    model_type = "hf_lossy_eagle3"

    def __init__(
        self,
        vocab_size: int = 32000,
        draft_vocab_size: int = 32000,
        hidden_size: int = 4096,
        target_hidden_size: int | None = None,
        intermediate_size: int = 11008,
        num_attention_heads: int = 32,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        hidden_act: str = "silu",
        rms_norm_eps: float = 1e-6,
        max_position_embeddings: int = 131072,
        rope_parameters: dict[str, Any] | None = None,
        taps: tuple[int, ...] | list[int] = (2, 16, 29),
        fc_norm: bool = False,
        norm_before_fc: bool = False,
        norm_before_residual: bool = False,
        double_norm: bool = False,
        feedback: str = "pre_norm",
        qk_norm: bool = False,
        fc_bias: bool = False,
        attention_bias: bool = False,
        mlp_bias: bool = False,
        own_embedding: bool = False,
        producer: str = "hf_lossy",
        **kwargs: Any,
    ) -> None:
        self.vocab_size, self.draft_vocab_size = vocab_size, draft_vocab_size
        self.hidden_size, self.target_hidden_size = hidden_size, target_hidden_size or hidden_size
        self.intermediate_size, self.num_attention_heads = intermediate_size, num_attention_heads
        self.num_key_value_heads = num_key_value_heads or num_attention_heads
        self.head_dim = head_dim or hidden_size // num_attention_heads
        self.hidden_act, self.rms_norm_eps = hidden_act, rms_norm_eps
        self.max_position_embeddings = max_position_embeddings
        self.rope_parameters = rope_parameters or {"rope_type": "default", "rope_theta": 10000.0}
        self.taps = list(taps)
        self.fc_norm, self.norm_before_fc, self.fc_bias = fc_norm, norm_before_fc, fc_bias
        self.norm_before_residual, self.double_norm, self.feedback = norm_before_residual, double_norm, feedback
        self.qk_norm, self.attention_bias, self.mlp_bias = qk_norm, attention_bias, mlp_bias
        self.own_embedding, self.producer = own_embedding, producer
        super().__init__(**kwargs)
