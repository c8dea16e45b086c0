"""Rotary position embedding: frequencies, and the half-split rotation of queries and keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.errors import CheckpointError
from engine.model.config import ModelConfig, RopeConfig, RopeKind


def inverse_frequencies(config: ModelConfig) -> Tensor:
    """Returns [head_dim / 2] float32: radians per position of each rotated pair."""
    rope = config.rope
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.kind is RopeKind.LINEAR:
        frequencies = frequencies / rope.factor
    elif rope.kind is RopeKind.LLAMA3:
        frequencies = _llama3(frequencies, rope)
    if rope.freq_factors:
        if len(rope.freq_factors) != len(frequencies):
            raise CheckpointError(
                f"rope_freqs.weight: {len(rope.freq_factors)} factors for {len(frequencies)} frequencies"
            )
        frequencies = frequencies / torch.tensor(rope.freq_factors, dtype=torch.float32)
    return frequencies


def _llama3(frequencies: Tensor, rope: RopeConfig) -> Tensor:
    """Slow waves are stretched by `factor`, fast ones kept, and the ones between blended."""
    wavelengths = 2 * math.pi / frequencies
    ratio = rope.original_max_position / wavelengths
    blend = (ratio - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * frequencies / rope.factor + blend * frequencies


def rotation(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Returns cosines and sines, each [T, 1, D / 2]; angles are computed in float32."""
    angles = positions.to(torch.float32)[:, None, None] * frequencies
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the pairs (i, i + D / 2) of each head. x: [T, heads, D]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
