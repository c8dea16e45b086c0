"""Quantisation on load: matrices of a floating-point checkpoint as blocks of 32 weights, in GGUF's own formats.

int8 makes Q8_0 blocks (8.5 bits a weight). int4 makes Q4_1 blocks (5 bits) of most matrices, Q5_1 (6 bits) of down
projections and Q8_0 of values, of the embedding and of the output matrix: an error there counts for most. Norms,
biases and the routers of experts stay as they are, and so do matrices whose rows are no multiple of 32.
docs/models.md has the figures.

This module is the reference; engine/native finds the same bytes, faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from engine.errors import CheckpointError
from engine.model.quant import QUANT_TYPES, Bytes, dequantize
from engine.model.weights import StoredMatrix, WeightSource, float_matrix

Quantise: TypeAlias = Callable[[StoredMatrix, str], StoredMatrix]  # to blocks of the named kind

BLOCK = 32
INT8, INT4 = "int8", "int4"
_KIND = {INT8: "Q8_0", INT4: "Q4_1"}
# By the end of a name: the few that lose most with four bits.
_INT4_KINDS = {
    "embed_tokens.weight": "Q8_0",
    "lm_head.weight": "Q8_0",
    "v_proj.weight": "Q8_0",
    "down_proj.weight": "Q5_1",
}
# A rounded router sends tokens to other experts, and it is a thousandth of the weights.
_NEVER_QUANTISED = ("mlp.gate.weight", "mlp.shared_expert_gate.weight")
_BLOCK_KINDS = frozenset(("Q8_0", "Q5_1", "Q4_1"))
_TYPE_IDS = {quant.name: type_id for type_id, quant in QUANT_TYPES.items()}
_BLOCKS_AT_ONCE = 1 << 15
# The search for scale and minimum; see engine/native/source/quantise.h.
_TRIES = 16
_LARGEST_HALF = 65504.0


class QuantisedWeights:
    """The tensors of a floating-point checkpoint; its matrices are quantised one at a time, when they are asked for."""

    def __init__(self, source: WeightSource, quantization: str, quantise: Quantise) -> None:
        """`quantization` is int8 or int4."""
        self._source = source
        self._quantization = quantization
        self._quantise = quantise

    def names(self) -> frozenset[str]:
        return self._source.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._source.shape(name)

    def read(self, name: str) -> Tensor:
        """What the blocks stand for, or the tensor itself where it is not quantised."""
        stored = self.stored(name)
        if stored is None or stored.kind not in _BLOCK_KINDS:
            return self._source.read(name)
        values = torch.from_numpy(dequantize(stored.data, _TYPE_IDS[stored.kind])).reshape(stored.shape)
        return values if stored.row_order is None else values[torch.from_numpy(stored.row_order.astype(np.int64))]

    def stored(self, name: str) -> StoredMatrix | None:
        shape = self._source.shape(name)
        if len(shape) != 2:
            return None
        matrix = float_matrix(self._source, name)
        if shape[1] % BLOCK or name.endswith(_NEVER_QUANTISED):
            return matrix
        try:
            return self._quantise(matrix, block_kind(name, self._quantization))
        except ValueError as error:
            raise CheckpointError(f"tensor {name!r} cannot be quantised: {error}") from error


def block_kind(name: str, quantization: str) -> str:
    """What a matrix is quantised to."""
    if quantization == INT4:
        return next((kind for end, kind in _INT4_KINDS.items() if name.endswith(end)), _KIND[INT4])
    return _KIND[quantization]


def quantise_matrix(matrix: StoredMatrix, kind: str) -> StoredMatrix:
    """A matrix of F32, F16 or BF16 as blocks of `kind`, Q8_0, Q5_1 or Q4_1.

    Raises ValueError for weights that are not finite.
    """
    num_blocks = matrix.shape[0] * matrix.shape[1] // BLOCK
    quant = QUANT_TYPES[_TYPE_IDS[matrix.kind]]
    size = BLOCK * quant.block_bytes
    convert = {"Q8_0": _eight_bits, "Q5_1": _five_bits, "Q4_1": _four_bits}[kind]
    parts = []
    for first in range(0, num_blocks, _BLOCKS_AT_ONCE):
        data = matrix.data[first * size : (first + _BLOCKS_AT_ONCE) * size]
        values = torch.from_numpy(dequantize(data, _TYPE_IDS[matrix.kind])).reshape(-1, BLOCK)
        if not values.isfinite().all():
            raise ValueError(NOT_FINITE)
        parts.append(convert(values.T.contiguous()))
    return StoredMatrix(kind, matrix.shape, np.concatenate(parts).reshape(-1), matrix.row_order)


NOT_FINITE = "it has weights that are infinite or no numbers"


def _as_half(values: Tensor) -> Tensor:
    """Rounded to float16, as float32; zeros are positive."""
    return values.clamp(-_LARGEST_HALF, _LARGEST_HALF).half().float() + 0.0


def _inverse(values: Tensor) -> Tensor:
    return torch.where(values != 0, 1 / values, torch.zeros_like(values))


def _half_bytes(values: Tensor) -> Bytes:
    return values.half().numpy().view(np.uint8).reshape(-1, 2)


def _eight_bits(x: Tensor) -> Bytes:
    """x: [32, blocks]. Returns [blocks, 34]: weight = scale * code."""
    scale = _as_half(x.abs().amax(dim=0) / torch.tensor(127.0))
    codes = (x * _inverse(scale)).clamp(-200, 200).round().clamp(-127, 127).to(torch.int8)
    return np.concatenate((_half_bytes(scale), codes.T.contiguous().numpy().view(np.uint8)), axis=1)


def _four_bits(x: Tensor) -> Bytes:
    """x: [32, blocks]. Returns [blocks, 20]: weight = scale * code + minimum."""
    scale, minimum, codes = _search(x, last=15.0, first_reach=13.6, reach_step=0.2)
    return np.concatenate((_half_bytes(scale), _half_bytes(minimum), _nibbles(codes)), axis=1)


def _five_bits(x: Tensor) -> Bytes:
    """x: [32, blocks]. Returns [blocks, 24], alike; the fifth bits lie together."""
    scale, minimum, codes = _search(x, last=31.0, first_reach=28.6, reach_step=0.4)
    high = np.packbits(codes >> 4, axis=1, bitorder="little")
    return np.concatenate((_half_bytes(scale), _half_bytes(minimum), high, _nibbles(codes)), axis=1)


def _nibbles(codes: Bytes) -> Bytes:
    """[blocks, 32] to [blocks, 16]: the second half in the high bits."""
    low = codes & np.uint8(15)
    packed: Bytes = (low[:, :16] | low[:, 16:] << np.uint8(4)).astype(np.uint8, copy=False)
    return packed


def _search(x: Tensor, *, last: float, first_reach: float, reach_step: float) -> tuple[Tensor, Tensor, Bytes]:
    """Scale [blocks], minimum [blocks] and codes [blocks, 32] from 0 to `last` that lose least.

    Each try spreads the block's range over some number of codes, takes the line that fits the weights best for
    them (least squares), and counts the error that is left after rounding the line to float16.
    """
    low, total = x.amin(dim=0), _sum(x)
    unit = _inverse(x.amax(dim=0) - low)
    best = torch.full_like(low, torch.inf)
    scale, minimum = torch.zeros_like(low), torch.zeros_like(low)
    for index in range(_TRIES):
        reach = torch.tensor(reach_step) * float(index) + torch.tensor(first_reach)
        codes = ((x - low) * (unit * reach)).round().clamp(0, last)
        sums, squares, products = codes.sum(dim=0), (codes * codes).sum(dim=0), _sum(codes * x)
        factor = _inverse(32 * squares - sums * sums)
        tried = _as_half((32 * products - total * sums) * factor)
        fitted = (squares * total - sums * products) * factor
        start = _as_half(torch.where(factor != 0, fitted, total / torch.tensor(32.0)))
        off = tried * _nearest(x, tried, start, last) + start - x
        error = _sum(off * off)
        better = error < best
        best = torch.where(better, error, best)
        scale, minimum = torch.where(better, tried, scale), torch.where(better, start, minimum)
    found: Bytes = _nearest(x, scale, minimum, last).to(torch.uint8).T.contiguous().numpy()
    return scale, minimum, found


def _nearest(x: Tensor, scale: Tensor, minimum: Tensor, last: float) -> Tensor:
    """The codes that come nearest."""
    return ((x - minimum) * _inverse(scale)).clamp(-200, 200).round().clamp(0, last)


def _sum(x: Tensor) -> Tensor:
    """Over the first dimension, one after another: the order is part of the result."""
    total = x[0].clone()
    for row in x[1:]:
        total += row
    return total
