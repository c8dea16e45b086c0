"""The memory of the paged KV cache: per layer one tensor of keys and one of values."""

from __future__ import annotations

import math
import mmap
from contextlib import suppress

import torch
from torch import Tensor


class KvCache:
    """[num_blocks, block_size, K, D] per layer, for keys and for values.

    Memory starts as zeros: what a mask hides is still multiplied by zero, and stray infinities would survive that.
    With `has_scratch` there is one block more, which no sequence gets: rows that only fill up a step write there.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        has_scratch: bool = False,
    ) -> None:
        shape = (num_layers, num_blocks + has_scratch, block_size, num_kv_heads, head_dim)
        self.block_size = block_size
        self.num_blocks = num_blocks  # without the scratch block, which comes after them
        self.head_dim = head_dim
        self._has_scratch = has_scratch
        self.keys: tuple[Tensor, ...] = _zeros(shape, dtype, device).unbind()
        self.values: tuple[Tensor, ...] = _zeros(shape, dtype, device).unbind()

    @property
    def scratch_block(self) -> int:
        assert self._has_scratch, "this cache was made without a scratch block"
        return self.num_blocks


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that cost nothing until they are touched: the kernel hands out zeroed pages on first use.

    Writing gigabytes of zeros at start would take longer than loading a small model. Huge pages, where the kernel has
    them, make reading the cache measurably faster.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # Private: the kernel rarely gives huge pages to shared memory, which is what mmap makes unless told otherwise.
    pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype).view(shape)
