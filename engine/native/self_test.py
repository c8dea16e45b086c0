"""A trial of the kernels on this machine: small products of every kind against torch."""

from __future__ import annotations

import ctypes

import torch

from engine.model.config import ModelConfig
from engine.model.quantise import QuantisedWeights, quantise_matrix
from engine.model.random_weights import RandomWeights
from engine.model.weights import WeightSource
from engine.native.library import Slot
from engine.native.native_model import NativeModel

_CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=64,
    hidden_size=96,
    intermediate_size=160,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    max_position=64,
)


def largest_error(library: ctypes.CDLL, instruction_set: str) -> float:
    """Of products with weights of sixteen, eight and four bits, for one row, a few and many, relative to their size."""
    source = RandomWeights(_CONFIG)
    errors = []
    quantised: list[WeightSource] = [QuantisedWeights(source, kind, quantise_matrix) for kind in ("int8", "int4")]
    for weights in [source, *quantised]:
        model = NativeModel(library, instruction_set, _CONFIG, weights, num_threads=1)
        matrix = weights.read("model.layers.0.mlp.down_proj.weight").float()
        for num_rows in (1, 5, 40):
            x = torch.randn(num_rows, matrix.shape[1], generator=torch.Generator().manual_seed(num_rows))
            expected = x @ matrix.T
            off = model.linear(Slot.DOWN, 0, x, matrix.shape[0]) - expected
            errors.append(float(off.norm() / expected.norm()))
    return max(errors)
