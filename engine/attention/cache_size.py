"""How many KV cache blocks to make: from what was asked, or from a careful share of free memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.errors import CacheSizeError

# Several ranks, gateways and the page cache share a host: one rank's default leaves room for the others.
_CPU_MEMORY_SHARE = 0.15
_CPU_MAX_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class CacheNeed:
    """What a model asks of its cache. Sizes in bytes and tokens."""

    bytes_per_block: int
    block_size: int
    max_model_len: int

    @property
    def blocks_per_sequence(self) -> int:
        return -(-self.max_model_len // self.block_size)

    @property
    def bytes_per_sequence(self) -> int:
        """Of one longest sequence."""
        return self.blocks_per_sequence * self.bytes_per_block


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A GPU's memory with the weights loaded, in bytes; see engine.memory_profile."""

    total: int
    free: int
    reserved: int  # what torch holds; part of it are the weights
    peak: int  # what torch holds at most during the largest step, weights included
    outside_torch: int  # what loading and stepping took beside torch: libraries and their workspaces
    graphs: int  # what the decode graphs are expected to take

    @property
    def used(self) -> int:
        """All that this rank needs beside its cache."""
        return self.peak + self.outside_torch + self.graphs

    def left(self, utilization: float) -> int:
        """Bytes for the cache when the rank takes that share of the device, and no more than is really free."""
        by_share = int(self.total * utilization) - self.used
        by_free = self.free - max(0, self.peak - self.reserved) - self.graphs
        return min(by_share, by_free)


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
    """Returns the number of blocks; raises CacheSizeError when one longest sequence would not fit or the free
    memory is less than what was asked for.

    `num_blocks` wins over `kv_cache_bytes`, which wins over the default of a CPU: 15 % of free memory, at most 4 GiB,
    and never more than max_num_seqs longest sequences can use. A device's default is `fill_device`.
    """
    need = CacheNeed(bytes_per_block, block_size, max_model_len)
    if num_blocks is None:
        budget = kv_cache_bytes if kv_cache_bytes is not None else default_cache_bytes()
        num_blocks = budget // bytes_per_block
        if kv_cache_bytes is None:
            num_blocks = min(num_blocks, need.blocks_per_sequence * max_num_seqs)
    if num_blocks < need.blocks_per_sequence:
        fix = f", or lower max_model_len to {num_blocks * block_size} or less" if num_blocks > 0 else ""
        raise CacheSizeError(
            f"the KV cache of {num_blocks} blocks ({_size(num_blocks * bytes_per_block)}) cannot hold one "
            f"sequence of max_model_len {max_model_len} tokens, which takes {need.blocks_per_sequence} blocks "
            f"({_size(need.bytes_per_sequence)}): raise kv_cache_memory or num_blocks{fix}"
        )
    _check_free(num_blocks * bytes_per_block, device)
    return num_blocks


def fill_device(memory: DeviceMemory, utilization: float, need: CacheNeed) -> int:
    """Blocks that fit what is left of a device. Raises CacheSizeError when one longest sequence does not fit.

    As many as there is room for: what running sequences do not use keeps prefixes.
    """
    left = memory.left(utilization)
    num_blocks = max(0, left) // need.bytes_per_block
    if num_blocks >= need.blocks_per_sequence:
        return num_blocks
    others = memory.total - memory.free - memory.reserved - memory.outside_torch
    fixes = ["raise --gpu-memory-utilization (at most 1)"]
    fixes += [f"lower --max-model-len to {num_blocks * need.block_size} or less"] if num_blocks else []
    raise CacheSizeError(
        f"--gpu-memory-utilization {utilization:g} lets this rank use {_size(int(memory.total * utilization))} of the "
        f"device's {_size(memory.total)}; weights, the largest step and decode graphs take {_size(memory.used)}, the "
        f"driver and other processes {_size(max(0, others))}, which leaves {_size(max(0, left))} for the KV cache, and "
        f"one sequence of --max-model-len {need.max_model_len} needs {_size(need.bytes_per_sequence)}: "
        f"{', '.join(fixes)}, lower --max-num-batched-tokens or --max-num-seqs, or free the device"
    )


def check_weights_fit(num_bytes: int, *, free: int, total: int, utilization: float) -> None:
    """Raises CacheSizeError before weights of that size are loaded onto a device that cannot hold them."""
    allowed = int(total * utilization)
    if num_bytes > min(free, allowed):
        raise CacheSizeError(
            f"the weights take {_size(num_bytes)}, the device has {_size(free)} of {_size(total)} free, and "
            f"--gpu-memory-utilization {utilization:g} allows {_size(allowed)}: take a GPU with more memory, "
            "free this one, raise --gpu-memory-utilization, or choose a smaller model or --dtype"
        )


def _check_free(num_bytes: int, device: torch.device) -> None:
    """The kernel promises pages that it does not have and kills a process when they are touched, in the middle of
    somebody's request; a device refuses by itself, but without saying which flag was too large."""
    where, free = "host", _free_host_memory() if device.type == "cpu" else num_bytes
    if device.type == "cuda":
        where, free = "device", torch.cuda.mem_get_info(device)[0]
    if num_bytes > free:
        raise CacheSizeError(
            f"the KV cache would take {_size(num_bytes)} and the {where} has {_size(free)} free: "
            f"lower kv_cache_memory or num_blocks"
        )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.3g} MiB" if num_bytes < 100 << 20 else f"{num_bytes / 2**20:.0f} MiB"


def default_cache_bytes() -> int:
    """Bytes that a rank on a CPU takes for its KV cache when nobody says how many."""
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
