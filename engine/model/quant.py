"""The block formats of GGUF and their way back to float32, vectorised over blocks.

A block holds a run of weights of one row. Results equal those of the reference implementation bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class QuantType:
    """One storage format: `dequantize` maps [blocks, block_bytes] to [blocks, block_elements]."""

    name: str
    block_elements: int
    block_bytes: int
    dequantize: Callable[[Bytes], Floats]


def quant_type_name(type_id: int) -> str:
    """Name of a GGUF tensor type, also of those that cannot be loaded."""
    if type_id in QUANT_TYPES:
        return QUANT_TYPES[type_id].name
    return _OTHER_NAMES.get(type_id, f"type {type_id}")


def dequantize(data: Bytes, type_id: int) -> Floats:
    """Flat float32 values of a tensor's bytes. The type must be one of QUANT_TYPES."""
    quant = QUANT_TYPES[type_id]
    return quant.dequantize(data.reshape(-1, quant.block_bytes)).reshape(-1)


def _f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """[B, n] bytes to [B, 2n] values 0..15: the low halves first, then the high ones."""
    return np.concatenate((packed & 0x0F, packed >> 4), axis=1)


def _q4_0(blocks: Bytes) -> Floats:
    scale = _f16(blocks[:, :2].copy())
    return scale * (_nibbles(blocks[:, 2:]).astype(np.int8) - np.int8(8)).astype(np.float32)


def _q4_1(blocks: Bytes) -> Floats:
    scale, minimum = _f16(blocks[:, :2].copy()), _f16(blocks[:, 2:4].copy())
    return scale * _nibbles(blocks[:, 4:]).astype(np.float32) + minimum


def _q8_0(blocks: Bytes) -> Floats:
    scale = _f16(blocks[:, :2].copy())
    return blocks[:, 2:].copy().view(np.int8).astype(np.float32) * scale


def _fifth_bits(packed: Bytes) -> Bytes:
    """[B, 4] bytes to [B, 32] values 0 or 16: bit k belongs to weight k."""
    return np.left_shift(np.unpackbits(packed, axis=1, bitorder="little"), 4, dtype=np.uint8)


def _q5_0(blocks: Bytes) -> Floats:
    scale = _f16(blocks[:, :2].copy())
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return scale * (codes.astype(np.int8) - np.int8(16)).astype(np.float32)


def _q5_1(blocks: Bytes) -> Floats:
    scale, minimum = _f16(blocks[:, :2].copy()), _f16(blocks[:, 2:4].copy())
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return scale * codes.astype(np.float32) + minimum


def _k_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight 6-bit scales and eight 6-bit minima from 12 bytes. [B, 12] to twice [B, 8]."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate((low & 0x3F, (high & 0x0F) | ((low >> 2) & 0x30)), axis=1)
    minima = np.concatenate((middle & 0x3F, (high >> 4) | ((middle >> 2) & 0x30)), axis=1)
    return scales, minima


def _q4_k(blocks: Bytes) -> Floats:
    """256 weights: eight groups of 32, two groups (low and high nibbles) per 32 bytes."""
    num_blocks = len(blocks)
    scale, minimum = _f16(blocks[:, 0:2].copy()), _f16(blocks[:, 2:4].copy())
    group_scales, group_minima = _k_scales(blocks[:, 4:16])
    packed = blocks[:, 16:].reshape(num_blocks, 4, 1, 32)
    codes = np.concatenate((packed & 0x0F, packed >> 4), axis=2).reshape(num_blocks, 8, 32)
    factors = (scale * group_scales.astype(np.float32))[:, :, None]
    offsets = (minimum * group_minima.astype(np.float32))[:, :, None]
    result: Floats = (factors * codes.astype(np.float32) - offsets).reshape(num_blocks, 256)
    return result


def _q5_k(blocks: Bytes) -> Floats:
    """As Q4_K, with a fifth bit: group g's lies at bit g of 32 bytes."""
    num_blocks = len(blocks)
    scale, minimum = _f16(blocks[:, 0:2].copy()), _f16(blocks[:, 2:4].copy())
    group_scales, group_minima = _k_scales(blocks[:, 4:16])
    packed = blocks[:, 48:].reshape(num_blocks, 4, 1, 32)
    low = np.concatenate((packed & 0x0F, packed >> 4), axis=2).reshape(num_blocks, 8, 32)
    shifts = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    codes = low | ((blocks[:, 16:48].reshape(num_blocks, 1, 32) >> shifts) & 1) << 4
    factors = (scale * group_scales.astype(np.float32))[:, :, None]
    offsets = (minimum * group_minima.astype(np.float32))[:, :, None]
    result: Floats = (factors * codes.astype(np.float32) - offsets).reshape(num_blocks, 256)
    return result


def _bit_pairs(packed: Bytes) -> Bytes:
    """[B, 64] bytes to [B, 256] values 0..3: 128 weights per 32 bytes, 32 at each of four shifts."""
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)
    shifted: Bytes = packed.reshape(-1, 2, 1, 32) >> shifts
    return np.bitwise_and(shifted, 3, dtype=np.uint8).reshape(-1, 256)


def _q2_k(blocks: Bytes) -> Floats:
    """256 weights in sixteen groups; a byte holds a group's scale (low half) and minimum (high half)."""
    num_blocks = len(blocks)
    scale, minimum = _f16(blocks[:, 80:82].copy()), _f16(blocks[:, 82:84].copy())
    factors = (scale * (blocks[:, :16] & 0x0F).astype(np.float32))[:, :, None]
    offsets = (minimum * (blocks[:, :16] >> 4).astype(np.float32))[:, :, None]
    codes = _bit_pairs(blocks[:, 16:80]).reshape(num_blocks, 16, 16)
    result: Floats = (factors * codes.astype(np.float32) - offsets).reshape(num_blocks, 256)
    return result


def _q3_k(blocks: Bytes) -> Floats:
    """256 weights in sixteen groups with six-bit scales; the third bit, when absent, takes four off."""
    num_blocks = len(blocks)
    low, high = blocks[:, 96:104], blocks[:, 104:108]
    nibbles = np.concatenate((low & 0x0F, low >> 4), axis=1)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 4, 1)
    pairs = ((high.reshape(num_blocks, 1, 4) >> shifts) & 3).reshape(num_blocks, 16)
    group_scales = (nibbles | pairs << 4).astype(np.int8) - np.int8(32)
    factors = (_f16(blocks[:, 108:110].copy()) * group_scales.astype(np.float32))[:, :, None]
    bits = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    third = ((blocks[:, :32].reshape(num_blocks, 1, 32) >> bits) & 1).reshape(num_blocks, 256)
    codes = (_bit_pairs(blocks[:, 32:96]) | third << 2).astype(np.int8) - np.int8(4)
    result: Floats = factors * codes.reshape(num_blocks, 16, 16).astype(np.float32)
    return result.reshape(num_blocks, 256)


def _q6_k(blocks: Bytes) -> Floats:
    """256 weights in two halves; each half has 64 bytes of low nibbles and 32 bytes of high bit pairs."""
    num_blocks = len(blocks)
    low = blocks[:, :128].reshape(num_blocks, 2, 1, 64)
    high = blocks[:, 128:192].reshape(num_blocks, 2, 1, 32)
    group_scales = blocks[:, 192:208].copy().view(np.int8).astype(np.float32)
    scale = _f16(blocks[:, 208:210].copy())
    low_codes = np.concatenate((low & 0x0F, low >> 4), axis=2).reshape(num_blocks, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)
    high_codes = (high >> shifts) & 0x03
    codes = (low_codes | (high_codes << 4)).astype(np.int8) - np.int8(32)
    factors = (scale * group_scales)[:, :, None]
    result: Floats = factors * codes.reshape(num_blocks, 16, 16).astype(np.float32)
    return result.reshape(num_blocks, 256)


QUANT_TYPES: dict[int, QuantType] = {
    0: QuantType("F32", 1, 4, _f32),
    1: QuantType("F16", 1, 2, _f16),
    2: QuantType("Q4_0", 32, 18, _q4_0),
    3: QuantType("Q4_1", 32, 20, _q4_1),
    6: QuantType("Q5_0", 32, 22, _q5_0),
    7: QuantType("Q5_1", 32, 24, _q5_1),
    8: QuantType("Q8_0", 32, 34, _q8_0),
    10: QuantType("Q2_K", 256, 84, _q2_k),
    11: QuantType("Q3_K", 256, 110, _q3_k),
    12: QuantType("Q4_K", 256, 144, _q4_k),
    13: QuantType("Q5_K", 256, 176, _q5_k),
    14: QuantType("Q6_K", 256, 210, _q6_k),
    30: QuantType("BF16", 1, 2, _bf16),
}

# Types that exist but are not read, so that errors can name them.
_OTHER_NAMES = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
