"""Where weights come from: one protocol over GGUF, safetensors and random numbers.

Tensor names and layouts are Hugging Face's everywhere above a source ("model.layers.0.self_attn.q_proj.weight",
rows are outputs, rotary pairs are half-split); a source that stores them otherwise translates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.model.config import ExpertConfig, ModelConfig


class WeightSource(Protocol):
    """Read-only access to the tensors of a checkpoint."""

    def names(self) -> frozenset[str]:
        """All tensors there are."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor that `names` has."""
        ...

    def read(self, name: str) -> Tensor:
        """A copy of the tensor, dequantised to float32 or in its stored floating-point dtype, on the CPU."""
        ...


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix in its file's own blocks. Row r of the tensor is stored row `row_order[r]`, or r without an order."""

    kind: str  # GGUF's name of the storage type
    shape: tuple[int, int]
    data: npt.NDArray[np.uint8]  # flat; a view of the mapped file where there is one
    row_order: npt.NDArray[np.int32] | None = None


@runtime_checkable
class BlockSource(Protocol):
    """A WeightSource that also hands out matrices as they are stored."""

    def stored(self, name: str) -> StoredMatrix | None:
        """The matrix of that name; None for other tensors."""
        ...


_FLOAT_KINDS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def float_matrix(weights: WeightSource, name: str) -> StoredMatrix:
    """The matrix in floating-point numbers: as stored where it is stored so, else its values."""
    stored = stored_matrix(weights, name)
    if stored is not None and stored.kind in _FLOAT_KINDS.values():
        return stored
    values = weights.read(name).contiguous()
    rows, cols = values.shape
    return StoredMatrix(_FLOAT_KINDS[values.dtype], (rows, cols), values.view(torch.uint8).numpy().reshape(-1))


def stored_matrix(weights: WeightSource, name: str) -> StoredMatrix | None:
    """The matrix as stored; None where the source only has values."""
    return weights.stored(name) if isinstance(weights, BlockSource) else None


def expected_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """All tensors that a model of this configuration has, in the order in which they are loaded."""
    hidden, q_size = config.hidden_size, config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (hidden,)
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
        for name, size in (("q", q_size), ("k", kv_size), ("v", kv_size)):
            yield f"{prefix}.self_attn.{name}_proj.weight", (size, hidden)
            if config.qkv_bias:
                yield f"{prefix}.self_attn.{name}_proj.bias", (size,)
        if config.qk_norm:
            yield f"{prefix}.self_attn.q_norm.weight", (config.head_dim,)
            yield f"{prefix}.self_attn.k_norm.weight", (config.head_dim,)
        yield f"{prefix}.self_attn.o_proj.weight", (hidden, q_size)
        if config.output_bias:
            yield f"{prefix}.self_attn.o_proj.bias", (hidden,)
        experts = config.experts_of(layer)
        if experts is None:
            yield from _gated(f"{prefix}.mlp", config.intermediate_size, hidden, bias=config.mlp_bias)
        else:
            yield from _mixture(f"{prefix}.mlp", experts, hidden)
    yield "model.norm.weight", (hidden,)
    if not config.tied_embeddings:
        yield "lm_head.weight", (config.vocab_size, hidden)


def _gated(prefix: str, intermediate: int, hidden: int, *, bias: bool = False) -> Iterator[tuple[str, tuple[int, ...]]]:
    """One gated feed-forward network."""
    for name, shape in (
        ("gate", (intermediate, hidden)),
        ("up", (intermediate, hidden)),
        ("down", (hidden, intermediate)),
    ):
        yield f"{prefix}.{name}_proj.weight", shape
        if bias:
            yield f"{prefix}.{name}_proj.bias", shape[:1]


def _mixture(prefix: str, experts: ExpertConfig, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The router, all experts, and what all tokens share."""
    yield f"{prefix}.gate.weight", (experts.num_experts, hidden)
    for expert in range(experts.num_experts):
        yield from _gated(f"{prefix}.experts.{expert}", experts.intermediate_size, hidden)
    if experts.shared_intermediate_size:
        yield from _gated(f"{prefix}.shared_expert", experts.shared_intermediate_size, hidden)
        yield f"{prefix}.shared_expert_gate.weight", (1, hidden)
