"""The oracle: the same transformer without cache, batch, pages or fusion, recomputed for every token.

Written from the definition with explicit softmax, so that it shares no code with what it checks except the
weights' names, the rotary frequencies and the sampler's noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.model.config import ExpertConfig, ModelConfig
from engine.model.rope import inverse_frequencies
from engine.runner.noise import gumbel_noise, noise_key


class NaiveModel:
    """A model of the Llama family from its weights, float32, one sequence at a time."""

    def __init__(self, config: ModelConfig, state: dict[str, Tensor]) -> None:
        self._config = config
        self._state = state
        self._frequencies = inverse_frequencies(config)

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """[tokens, V] for all positions."""
        x = self._state["model.embed_tokens.weight"][list(token_ids)]
        for layer in range(self._config.num_layers):
            prefix = f"model.layers.{layer}"
            x = x + self._attention(f"{prefix}.self_attn", self._norm(f"{prefix}.input_layernorm", x))
            h = self._norm(f"{prefix}.post_attention_layernorm", x)
            experts = self._config.experts_of(layer)
            x = x + (self._gated(f"{prefix}.mlp", h) if experts is None else self._mixture(f"{prefix}.mlp", h, experts))
        head = "model.embed_tokens" if self._config.tied_embeddings else "lm_head"
        return self._linear(head, self._norm("model.norm", x))

    def generate(
        self,
        prompt: Sequence[int],
        num_tokens: int,
        *,
        temperature: float = 0.0,
        seed: int = 0,
        stop_token_ids: Sequence[int] = (),
    ) -> list[int]:
        """Up to `num_tokens` tokens, the stop token included; greedy at temperature 0."""
        tokens = list(prompt)
        for _ in range(num_tokens):
            logits = self.logits(tokens)[-1]
            if temperature > 0:
                noise = gumbel_noise([noise_key(seed, len(tokens))], len(logits), logits.device)
                logits = logits / temperature + noise[0]
            tokens.append(int(logits.argmax()))
            if tokens[-1] in stop_token_ids:
                break
        return tokens[len(prompt) :]

    def _gated(self, prefix: str, x: Tensor) -> Tensor:
        gate, up = (self._linear(f"{prefix}.{name}_proj", x) for name in ("gate", "up"))
        return self._linear(f"{prefix}.down_proj", gate * torch.sigmoid(gate) * up)

    def _mixture(self, prefix: str, x: Tensor, experts: ExpertConfig) -> Tensor:
        """All tokens through all experts, and all but the heaviest get weight 0."""
        probabilities = self._linear(f"{prefix}.gate", x).softmax(dim=-1)
        least = probabilities.sort(dim=-1, descending=True).values[:, experts.num_active - 1 : experts.num_active]
        weights = torch.where(probabilities >= least, probabilities, torch.zeros_like(probabilities))
        if experts.normalised:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        out = sum(
            (
                weights[:, expert, None] * self._gated(f"{prefix}.experts.{expert}", x)
                for expert in range(experts.num_experts)
            ),
            torch.zeros_like(x),
        )
        if experts.shared_intermediate_size:
            gate = torch.sigmoid(self._linear(f"{prefix}.shared_expert_gate", x))
            out = out + gate * self._gated(f"{prefix}.shared_expert", x)
        return out

    def _attention(self, prefix: str, x: Tensor) -> Tensor:
        config, length = self._config, len(x)
        q, k, v = (self._linear(f"{prefix}.{name}_proj", x).view(length, -1, config.head_dim) for name in "qkv")
        if config.qk_norm:
            q, k = self._norm(f"{prefix}.q_norm", q), self._norm(f"{prefix}.k_norm", k)
        q, k = self._rotate(q), self._rotate(k)
        repeats = config.num_heads // config.num_kv_heads
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        scores = torch.einsum("ihd,jhd->hij", q, k) / config.head_dim**0.5
        distance = torch.arange(length)[:, None] - torch.arange(length)
        hidden = distance < 0
        if config.sliding_window is not None:
            hidden |= distance >= config.sliding_window
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        return self._linear(f"{prefix}.o_proj", torch.einsum("hij,jhd->ihd", weights, v).reshape(length, -1))

    def _rotate(self, x: Tensor) -> Tensor:
        angles = torch.arange(len(x), dtype=torch.float32)[:, None] * self._frequencies
        pairs = torch.complex(*x.float().chunk(2, dim=-1))
        turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
        return torch.cat((turned.real, turned.imag), dim=-1)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        scale = (x.pow(2).mean(dim=-1, keepdim=True) + self._config.rms_norm_eps).rsqrt()
        return x * scale * self._state[f"{name}.weight"]

    def _linear(self, name: str, x: Tensor) -> Tensor:
        y = x @ self._state[f"{name}.weight"].T
        bias = self._state.get(f"{name}.bias")
        return y if bias is None else y + bias
