"""The native kernels under test: the library, what this machine runs of it, and models without a checkpoint."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import gguf
import numpy as np
import torch
from torch import Tensor

from engine.attention.backend import AttentionBatch
from engine.attention.kv_cache import KvCache
from engine.model.config import ModelConfig
from engine.model.weights import StoredMatrix, WeightSource, expected_shapes
from engine.native.compiler import library_path
from engine.native.library import INSTRUCTION_SETS, load_library
from engine.native.native_model import NativeAttention, NativeModel

# Where the float16 scales of a super-block lie; gguf's Python package reads these formats and cannot write them.
_SUPER_SCALES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


@functools.cache
def native_library() -> ctypes.CDLL:
    """Built on first use. Tests of the kernels fail where it cannot be had; there is no skipping."""
    return load_library(library_path())


@functools.cache
def instruction_sets() -> tuple[str, ...]:
    """What this processor runs, best first."""
    return tuple(name for name in INSTRUCTION_SETS if native_library().muster_has_kernels(name.encode()))


class StateWeights:
    """Tensors from a dictionary; matrices named in `kinds` are handed out quantised, or as random super-blocks."""

    def __init__(self, state: dict[str, Tensor], kinds: dict[str, str] | None = None) -> None:
        self._state = state
        self._kinds = kinds or {}

    def names(self) -> frozenset[str]:
        return frozenset(self._state)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._state[name].shape)

    def read(self, name: str) -> Tensor:
        """What the stored blocks stand for."""
        if name not in self._kinds:
            return self._state[name].clone()
        kind = gguf.GGMLQuantizationType[self._kinds[name]]
        return torch.from_numpy(gguf.dequantize(self._quantised(name), kind)).reshape(self.shape(name))

    def stored(self, name: str) -> StoredMatrix | None:
        if name not in self._kinds:
            return None
        rows, cols = self.shape(name)
        return StoredMatrix(self._kinds[name], (rows, cols), self._quantised(name).view(np.uint8).reshape(-1))

    def _quantised(self, name: str) -> np.ndarray:
        kind = self._kinds[name]
        if kind in _SUPER_SCALES:
            return random_super_blocks(kind, *self.shape(name))
        data: np.ndarray = gguf.quantize(self._state[name].numpy(), gguf.GGMLQuantizationType[kind])
        return np.ascontiguousarray(data)


def random_super_blocks(kind: str, rows: int, cols: int) -> np.ndarray:
    """[rows, bytes]: random bits, with scales that make weights of about 1."""
    _, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    generator = np.random.default_rng(rows * cols)
    blocks = generator.integers(0, 256, (rows * cols // 256, block_bytes), dtype=np.uint8)
    step = 0.0005 if kind == "Q6_K" else 0.01
    for offset in _SUPER_SCALES[kind]:
        scales = generator.uniform(0.1 * step, step, len(blocks)).astype("<f2")
        blocks[:, offset : offset + 2] = scales[:, None].view(np.uint8)
    return blocks.reshape(rows, -1)


def random_state(config: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    """All tensors of a configuration, normally distributed."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in expected_shapes(config)}


def shape_config(
    *,
    num_heads: int = 1,
    num_kv_heads: int = 1,
    head_dim: int = 16,
    hidden_size: int = 32,
    intermediate_size: int = 32,
    window: int | None = None,
    bias: bool = False,
) -> ModelConfig:
    """One layer of any shape."""
    return ModelConfig(
        architecture="llama",
        vocab_size=24,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_layers=1,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position=1024,
        sliding_window=window,
        mlp_bias=bias,
    )


def make_cache(config: ModelConfig, num_blocks: int = 64, block_size: int = 16) -> KvCache:
    """An empty cache as the native kernels want it."""
    return KvCache(
        num_layers=config.num_layers,
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )


@dataclass(frozen=True, slots=True)
class Part:
    """A sequence's share of a step: its new tokens are [begin, end) of `token_ids`."""

    token_ids: tuple[int, ...]
    begin: int
    end: int
    block_ids: tuple[int, ...]


class NativeStepper:
    """A native model with a cache; runs steps that a test lays out."""

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightSource,
        instruction_set: str,
        *,
        num_threads: int = 1,
        num_spare_threads: int = 0,
        num_blocks: int = 64,
        block_size: int = 16,
    ) -> None:
        self.model = NativeModel(
            native_library(),
            instruction_set,
            config,
            weights,
            num_threads=num_threads,
            num_spare_threads=num_spare_threads,
        )
        self.block_size = block_size
        self.cache = make_cache(config, num_blocks, block_size)
        self.attention = NativeAttention(self.model, self.cache)

    def logits(self, *parts: Part) -> Tensor:
        """[new tokens of all parts, V]; parts with one new token must come first."""
        token_ids = [token for part in parts for token in part.token_ids[part.begin : part.end]]
        positions = [position for part in parts for position in range(part.begin, part.end)]
        self.attention.plan(self.batch(*parts))
        hidden = self.model.forward(torch.tensor(token_ids), torch.tensor(positions), self.attention)
        return self.model.logits(hidden).clone()

    def batch(self, *parts: Part) -> AttentionBatch:
        size = self.block_size
        slots = [
            part.block_ids[position // size] * size + position % size
            for part in parts
            for position in range(part.begin, part.end)
        ]
        width = max(len(part.block_ids) for part in parts)
        return AttentionBatch(
            num_decodes=sum(part.end - part.begin == 1 for part in parts),
            query_lens=tuple(part.end - part.begin for part in parts),
            context_lens=tuple(part.end for part in parts),
            slots=torch.tensor(slots),
            block_tables=torch.tensor([[*part.block_ids, *[0] * (width - len(part.block_ids))] for part in parts]),
        )
