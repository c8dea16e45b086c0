"""The shape of a model of the Llama family; its variants are values here, not classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from engine.errors import CheckpointError

# Far beyond any real model; what a damaged or hostile file claims is refused before memory is asked for.
_LIMITS = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 22,
    "num_layers": 1 << 12,
    "num_heads": 1 << 12,
    "num_kv_heads": 1 << 12,
    "head_dim": 1 << 12,
    "max_position": 1 << 27,
}


class RopeKind(Enum):
    """How the rotary frequencies are stretched for contexts longer than the trained one."""

    DEFAULT = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding over the whole head dimension.

    `freq_factors`, when given, divide the frequencies one by one and are how GGUF files store a
    scaling that was resolved by the converter.
    """

    theta: float = 10000.0
    kind: RopeKind = RopeKind.DEFAULT
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    freq_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything the forward pass has to know before it sees a weight. All counts are checked."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float = 1e-5
    rope: RopeConfig = field(default_factory=RopeConfig)
    tied_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None  # a token sees itself and the window - 1 tokens before it

    def __post_init__(self) -> None:
        for name, limit in _LIMITS.items():
            value = getattr(self, name)
            if not 0 < value <= limit:
                raise CheckpointError(f"{name}: {value} is outside 1 to {limit}; the checkpoint is damaged")
        if self.num_heads % self.num_kv_heads:
            raise CheckpointError(f"num_heads: {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if self.head_dim % 2:
            raise CheckpointError(f"head_dim: {self.head_dim} is odd; rotary embedding needs an even one")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise CheckpointError(f"sliding_window: {self.sliding_window} is below 1")
        if not self.rms_norm_eps > 0:
            raise CheckpointError(f"rms_norm_eps: {self.rms_norm_eps} is not positive")
        if not self.rope.theta > 0:
            raise CheckpointError(f"rope_theta: {self.rope.theta} is not positive")

    def kv_bytes_per_token(self, element_size: int) -> int:
        """Bytes that one token occupies in the KV cache, all layers together."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * element_size
