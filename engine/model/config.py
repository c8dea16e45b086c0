"""The shape of a model of the Llama family; its variants are values here, not classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from engine.errors import CheckpointError

MAX_LAYERS = 1 << 12
# Far beyond any real model; what a damaged or hostile file claims is refused before memory is asked for.
_LIMITS = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 22,
    "num_layers": MAX_LAYERS,
    "num_heads": 1 << 12,
    "num_kv_heads": 1 << 12,
    "head_dim": 1 << 12,
    "max_position": 1 << 27,
}
_MAX_EXPERTS = 1 << 12


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
class ExpertConfig:
    """The mixture of experts that stands in for the feed-forward network of most layers. All counts are checked.

    Each token goes to the `num_active` experts with the highest softmax probability and gets the sum of their outputs,
    weighted by these probabilities.
    """

    num_experts: int
    num_active: int
    intermediate_size: int  # of one expert
    normalised: bool  # the weights of a token's experts are scaled to sum up to 1
    shared_intermediate_size: int = 0  # of an expert that all tokens go to, behind a gate of its own; 0: there is none
    dense_layers: frozenset[int] = frozenset()  # layers with an ordinary feed-forward network

    def __post_init__(self) -> None:
        if not 0 < self.num_experts <= _MAX_EXPERTS:
            raise CheckpointError(f"num_experts: {self.num_experts} is outside 1 to {_MAX_EXPERTS}")
        if not 0 < self.num_active <= self.num_experts:
            raise CheckpointError(
                f"num_experts_per_tok: {self.num_active} is outside 1 to {self.num_experts}, the number of experts"
            )
        limit = _LIMITS["intermediate_size"]
        if not 0 < self.intermediate_size <= limit:
            raise CheckpointError(f"moe_intermediate_size: {self.intermediate_size} is outside 1 to {limit}")
        if not 0 <= self.shared_intermediate_size <= limit:
            raise CheckpointError(
                f"shared_expert_intermediate_size: {self.shared_intermediate_size} is outside 0 to {limit}"
            )


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
    experts: ExpertConfig | None = None  # None: a dense model

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
        if self.experts is not None and len(self.experts.dense_layers) >= self.num_layers:
            raise CheckpointError("mlp_only_layers: no layer is left for the experts; the checkpoint is damaged")

    def experts_of(self, layer: int) -> ExpertConfig | None:
        """The mixture of experts of a layer; None where its feed-forward network is an ordinary one."""
        return None if self.experts is None or layer in self.experts.dense_layers else self.experts

    def kv_bytes_per_token(self, element_size: int) -> int:
        """Bytes that one token occupies in the KV cache, all layers together."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * element_size
