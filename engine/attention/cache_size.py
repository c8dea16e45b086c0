"""How many KV cache blocks to make: from what was asked, or from a careful share of free memory."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from engine.errors import CacheSizeError

# Several ranks, gateways and the page cache share a host: one rank's default leaves room for the others.
_CPU_MEMORY_SHARE = 0.15
_CPU_MAX_BYTES = 4 << 30
# On a device the rank is alone; what the forward pass needs beside the cache stays free.
_CUDA_MEMORY_SHARE = 0.85


def choose_num_blocks(
    *,
    num_blocks: int | None,
    kv_cache_bytes: int | None,
    bytes_per_block: int,
    block_size: int,
    max_model_len: int,
    max_num_seqs: int,
    device: torch.device,
) -> int:
    """Returns the number of blocks; raises CacheSizeError when one longest sequence would not fit or the host's free
    memory is less than what was asked for.

    `num_blocks` wins over `kv_cache_bytes`, which wins over the default: 15 % of free memory and at most 4 GiB
    on a CPU, 85 % of free memory on a device, and never more than max_num_seqs longest sequences can use.
    """
    blocks_per_sequence = -(-max_model_len // block_size)
    if num_blocks is None:
        budget = kv_cache_bytes if kv_cache_bytes is not None else default_cache_bytes(device)
        num_blocks = budget // bytes_per_block
        if kv_cache_bytes is None:
            num_blocks = min(num_blocks, blocks_per_sequence * max_num_seqs)
    if num_blocks < blocks_per_sequence:
        fix = f", or lower max_model_len to {num_blocks * block_size} or less" if num_blocks > 0 else ""
        raise CacheSizeError(
            f"the KV cache of {num_blocks} blocks ({_mebibytes(num_blocks * bytes_per_block)}) cannot hold one "
            f"sequence of max_model_len {max_model_len} tokens, which takes {blocks_per_sequence} blocks "
            f"({_mebibytes(blocks_per_sequence * bytes_per_block)}): raise kv_cache_memory or num_blocks{fix}"
        )
    _check_host_memory(num_blocks * bytes_per_block, device)
    return num_blocks


def _check_host_memory(num_bytes: int, device: torch.device) -> None:
    """The kernel promises pages that it does not have and kills a process when they are touched, in the middle of
    somebody's request. A device refuses by itself."""
    if device.type == "cpu" and num_bytes > (free := _free_host_memory()):
        raise CacheSizeError(
            f"the KV cache would take {_mebibytes(num_bytes)} and the host has {_mebibytes(free)} free: "
            f"lower kv_cache_memory or num_blocks"
        )


def _mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.3g} MiB" if num_bytes < 100 << 20 else f"{num_bytes / 2**20:.0f} MiB"


def default_cache_bytes(device: torch.device) -> int:
    """Bytes that a rank takes for its KV cache when nobody says how many."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * _CUDA_MEMORY_SHARE)
    return min(_CPU_MAX_BYTES, int(_free_host_memory() * _CPU_MEMORY_SHARE))


def _free_host_memory() -> int:
    """What the kernel calls available, and no more than the container's limit leaves."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    limit, used = _lines("/sys/fs/cgroup/memory.max"), _lines("/sys/fs/cgroup/memory.current")
    if limit and used and limit[0].isdigit():
        free = min(free, max(0, int(limit[0]) - int(used[0])))
    return free


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
