"""The least a decode step can take: the bytes that it has to read, at the speed with which this machine reads."""

from __future__ import annotations

import mmap
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from engine.model.checkpoint import Checkpoint
from engine.model.quantise import BLOCK, block_kind
from engine.model.weights import expected_shapes, stored_matrix
from engine.native.library import TYPE_IDS

# Bytes of a weight as it lies in a panel of the native kernels; see engine/native/source/kernels.h.
_PACKED_BYTES = {
    **dict.fromkeys(("F32", "F16", "BF16"), 2.0),
    **dict.fromkeys(("Q4_0", "Q4_1", "Q4_K"), 0.625),
    **dict.fromkeys(("Q5_0", "Q5_1", "Q5_K"), 0.75),
    **dict.fromkeys(("Q3_K", "Q6_K"), 420 / 512),
    "Q8_0": 34 / 32,
}
_EMBEDDING = "model.embed_tokens.weight"
BUFFER_BYTES = 256 << 20
_NUM_READS = 30


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of a model's matrices in memory, and how many of them each step reads."""

    held: int
    read: int


def packed_weights(checkpoint: Checkpoint, quantization: str = "none") -> Weights:
    """As the native kernels keep them."""
    held, read = 0.0, 0.0
    for name, shape in expected_shapes(checkpoint.config):
        if len(shape) != 2:
            continue
        num_bytes = shape[0] * shape[1] * _PACKED_BYTES[_packed_kind(checkpoint, name, shape[1], quantization)]
        held += num_bytes
        # An embedding that is the output matrix too is read whole; another one is looked up.
        read += num_bytes if name != _EMBEDDING or checkpoint.config.tied_embeddings else 0
    return Weights(round(held), round(read))


def plain_weights(checkpoint: Checkpoint, element_size: int) -> Weights:
    """As torch keeps them."""
    sizes = {name: shape[0] * shape[1] for name, shape in expected_shapes(checkpoint.config) if len(shape) == 2}
    looked_up = 0 if checkpoint.config.tied_embeddings else sizes[_EMBEDDING]
    total = sum(sizes.values())
    return Weights(total * element_size, (total - looked_up) * element_size)


def cached_bytes(checkpoint: Checkpoint, batch_size: int, context_len: int, element_size: int = 2) -> int:
    """Keys and values that a step of so many sequences reads."""
    return batch_size * context_len * checkpoint.config.kv_bytes_per_token(element_size)


def read_bandwidth(num_threads: int, num_bytes: int = BUFFER_BYTES) -> float:
    """Bytes per second that `num_threads` threads read from memory in huge pages; the best of several reads.

    numpy's maximum over 64-bit integers reads, as measured here, as fast as a loop written for it. A buffer that the
    last cache holds is read faster than memory; what a neighbour in that cache leaves of it differs from hour to hour.
    """
    buffer = mmap.mmap(-1, num_bytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        buffer.madvise(mmap.MADV_HUGEPAGE)
    numbers = np.frombuffer(buffer, dtype=np.int64)
    numbers.fill(1)
    parts = np.array_split(numbers, num_threads)
    best_s = float("inf")
    with ThreadPoolExecutor(num_threads) as pool:
        for _ in range(_NUM_READS):
            started_s = time.perf_counter()
            list(pool.map(np.max, parts))
            best_s = min(best_s, time.perf_counter() - started_s)
    return num_bytes / best_s


def _packed_kind(checkpoint: Checkpoint, name: str, num_cols: int, quantization: str) -> str:
    if quantization != "none" and num_cols % BLOCK == 0:
        return block_kind(name, quantization)
    stored = stored_matrix(checkpoint.weights, name)
    if stored is None:
        return "BF16"
    return stored.kind if stored.kind in TYPE_IDS else "Q8_0"
