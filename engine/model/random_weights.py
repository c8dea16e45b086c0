"""Seeded random weights: a model without a checkpoint, for tests and for measuring."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from engine.model.config import ModelConfig
from engine.model.weights import expected_shapes


class RandomWeights:
    """Every tensor is a function of (seed, name, shape), whatever the order of reading."""

    def __init__(self, config: ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        self._shapes = dict(expected_shapes(config))
        self._seed = seed
        self._dtype = dtype

    def names(self) -> frozenset[str]:
        return frozenset(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def read(self, name: str) -> Tensor:
        digest = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        shape = self._shapes[name]
        noise = torch.randn(shape, generator=generator)
        if "norm" in name:
            return (1 + 0.1 * noise).to(self._dtype)
        if name.endswith("bias"):
            return (0.1 * noise).to(self._dtype)
        # Unit variance is kept from layer to layer; embeddings are larger so that tokens are told apart.
        scale = 1.0 if "embed" in name else shape[-1] ** -0.5
        return (noise * scale).to(self._dtype)
