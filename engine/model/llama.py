"""The transformer of the Llama family: one file, differences as data.

Letters: T tokens of the step (all sequences, flattened), H hidden, N query heads, K key/value heads,
D head dimension, V vocabulary, R rows that need logits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention.backend import AttentionBackend
from engine.model.config import ModelConfig
from engine.model.feed_forward import FeedForward
from engine.model.layers import Linear, RmsNorm
from engine.model.moe import MixtureOfExperts
from engine.model.rope import inverse_frequencies, rotate, rotation
from engine.model.weight_loader import WeightLoader
from engine.model.weights import WeightSource
from engine.parallel.exchange import ExpertExchange


class Llama:
    """Token ids in, logits out; what a token sees of the others is the attention backend's business."""

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        progress: Callable[[int, int], None] = lambda done, total: None,
        exchange: ExpertExchange | None = None,
    ) -> None:
        """Loads all weights; with `exchange`, of the experts only this rank's. `progress` is called with layers loaded
        and their number."""
        self.config = config
        self.dtype = dtype
        self.device = device
        load = WeightLoader(weights, dtype, device)
        progress(0, config.num_layers)
        self._embedding = load.tensor("model.embed_tokens.weight")  # [V, H]
        self._layers = []
        for index in range(config.num_layers):
            self._layers.append(_Layer(index, config, load, exchange))
            progress(index + 1, config.num_layers)
        self._norm = RmsNorm(load.tensor("model.norm.weight"), config.rms_norm_eps)
        head = self._embedding if config.tied_embeddings else load.tensor("lm_head.weight")
        self._head = Linear(head)
        self._frequencies = inverse_frequencies(config).to(device)

    def forward(self, token_ids: Tensor, positions: Tensor, attention: AttentionBackend) -> Tensor:
        """token_ids, positions: [T] int64. Returns the last layer's output before the final norm, [T, H].

        `attention` has planned this step.
        """
        x = F.embedding(token_ids, self._embedding)
        cos, sin = rotation(positions, self._frequencies, self.dtype)
        for layer in self._layers:
            x = layer.forward(x, cos, sin, attention)
        return x

    @property
    def expert_layers(self) -> list[MixtureOfExperts]:
        """The mixtures of experts, in the order in which a step comes through them; empty for dense models."""
        layers = (layer.feed_forward for layer in self._layers)
        return [layer for layer in layers if isinstance(layer, MixtureOfExperts)]

    def normalized(self, hidden: Tensor) -> Tensor:
        """hidden: [R, H], rows of what `forward` returned. Returns them after the final norm, [R, H]."""
        return self._norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: [R, H], rows of what `forward` returned. Returns [R, V] in the model's dtype."""
        return self._head(self._norm(hidden))


class _Layer:
    """Attention, then the feed-forward network or the experts, each on the normalised residual stream."""

    def __init__(self, index: int, config: ModelConfig, load: WeightLoader, exchange: ExpertExchange | None) -> None:
        prefix = f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        eps = config.rms_norm_eps
        self._index = index
        self._num_heads, self._num_kv_heads, self._head_dim = (
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
        )
        self._attention_norm = RmsNorm(load.tensor(f"{prefix}.input_layernorm.weight"), eps)
        self._qkv = load.linear([f"{attention}.{part}_proj" for part in "qkv"], bias=config.qkv_bias)
        self._q_norm = self._k_norm = None
        if config.qk_norm:
            self._q_norm = RmsNorm(load.tensor(f"{attention}.q_norm.weight"), eps)
            self._k_norm = RmsNorm(load.tensor(f"{attention}.k_norm.weight"), eps)
        self._output = load.linear([f"{attention}.o_proj"], bias=config.output_bias)
        self._mlp_norm = RmsNorm(load.tensor(f"{prefix}.post_attention_layernorm.weight"), eps)
        experts = config.experts_of(index)
        self.feed_forward: FeedForward | MixtureOfExperts
        if experts is None:
            self.feed_forward = FeedForward(mlp, load, bias=config.mlp_bias)
        else:
            self.feed_forward = MixtureOfExperts(mlp, experts, load, exchange)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attention: AttentionBackend) -> Tensor:
        """x: [T, H]; cos, sin: [T, 1, D / 2]. Returns [T, H]."""
        x = x + self._attend(self._attention_norm(x), cos, sin, attention)
        return x + self.feed_forward(self._mlp_norm(x))

    def _attend(self, x: Tensor, cos: Tensor, sin: Tensor, attention: AttentionBackend) -> Tensor:
        num_heads, num_kv_heads = self._num_heads, self._num_kv_heads
        qkv = self._qkv(x).view(x.shape[0], num_heads + 2 * num_kv_heads, self._head_dim)
        qk, v = torch.split(qkv, [num_heads + num_kv_heads, num_kv_heads], dim=1)
        if self._q_norm is not None and self._k_norm is not None:
            qk = torch.cat((self._q_norm(qk[:, :num_heads]), self._k_norm(qk[:, num_heads:])), dim=1)
        q, k = torch.split(rotate(qk, cos, sin), [num_heads, num_kv_heads], dim=1)
        out = attention.attend(self._index, q, k, v)  # [T, N, D]
        return self._output(out.reshape(x.shape[0], num_heads * self._head_dim))
