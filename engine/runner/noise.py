"""Sampling noise that depends on nothing but (seed, position, vocabulary index).

A counter-based hash instead of a generator with state: the noise of a token is the same whoever its batch
mates are, on whichever rank, after a restart, a preemption or a move, and in whatever order rows are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.transfer import upload

_MASK64 = (1 << 64) - 1
# Largest float32 below 1: a uniform number that rounds to 1 would give a token no chance at all.
_BELOW_ONE = 1.0 - 2.0**-24


def noise_key(seed: int, position: int) -> tuple[int, int]:
    """Two independent 32-bit keys for one token: `seed` is taken modulo 2^64, `position` counts from 0."""
    key = _mix64(_mix64(seed & _MASK64) ^ position)
    return key & 0xFFFFFFFF, key >> 32


def gumbel_noise(keys: Sequence[tuple[int, int]], vocab_size: int, device: torch.device) -> Tensor:
    """Returns [R, V] float32 independent standard Gumbel noise, one row per key.

    The arg max of logits + noise is a sample of softmax(logits).
    """
    words = upload([[_signed32(word) for word in key] for key in keys], device, torch.int32)
    index = torch.arange(vocab_size, dtype=torch.int32, device=device)
    bits = _mix32(index * -1640531527 ^ words[:, :1])  # the golden ratio, 0x9E3779B9, spreads neighbours
    bits = _mix32(bits + words[:, 1:])
    # 31 bits, so that the conversion keeps small numbers exact; the half keeps them above zero.
    uniform = bits.bitwise_and_(0x7FFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-31).clamp_(max=_BELOW_ONE)
    # -log(-log(1 - u)): rare large values come from small u, where float32 is finest.
    return uniform.neg_().log1p_().neg_().log_().neg_()


def _mix64(x: int) -> int:
    """The finaliser of splitmix64, after one step of its sequence."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def _mix32(x: Tensor) -> Tensor:
    """A 32-bit integer finaliser with low bias; int32 products wrap as unsigned ones do. Works in place."""
    x ^= (x >> 16) & 0xFFFF  # masked, because >> copies the sign
    x *= 0x7FEB352D
    x ^= (x >> 15) & 0x1FFFF
    x *= _signed32(0x846CA68B)
    x ^= (x >> 16) & 0xFFFF
    return x


def _signed32(word: int) -> int:
    """The int32 with the bits of an unsigned 32-bit word."""
    return word - (1 << 32) if word >= 1 << 31 else word
