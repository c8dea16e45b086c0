"""What the largest step takes of a GPU's memory, found out by running it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Protocol

import torch

from engine.attention.cache_size import DeviceMemory
from engine.batch import Batch, Scheduled
from engine.request import Request, SamplingParams
from engine.sequence import Sequence

# Outside torch's memory the driver keeps each graph's kernels; nobody reports how much. An estimate.
_BYTES_PER_GRAPH = 8 << 20


class MemoryCounters(Protocol):
    """A device's memory as torch and the driver count it, in bytes."""

    def total(self) -> int: ...

    def free(self) -> int:
        """Of the whole device, with all that other processes hold taken off."""
        ...

    def reserved(self) -> int:
        """What torch's allocator holds after it gave back all that it can."""
        ...

    def allocated(self) -> int: ...

    def peak_allocated(self) -> int:
        """Since `reset_peak`."""
        ...

    def reset_peak(self) -> None: ...


class CudaMemory:
    """The counters of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def total(self) -> int:
        return torch.cuda.mem_get_info(self._device)[1]

    def free(self) -> int:
        return torch.cuda.mem_get_info(self._device)[0]

    def reserved(self) -> int:
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(self._device)

    def allocated(self) -> int:
        return torch.cuda.memory_allocated(self._device)

    def peak_allocated(self) -> int:
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device)

    def reset_peak(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)


class MemoryProfile:
    """Made before the weights are loaded, asked afterwards."""

    def __init__(self, counters: MemoryCounters) -> None:
        self._counters = counters
        self._reserved_before = counters.reserved()
        self.free_before = counters.free()

    def measure(self, run: Callable[[Batch], object], largest: Batch, graphs: tuple[int, ...]) -> DeviceMemory:
        """`run` computes a batch on a cache of one block; `graphs` are the sizes of the decode graphs to be recorded.

        Raises what `run` raises when the device has no memory for it.
        """
        counters = self._counters
        counters.reset_peak()
        run(largest)
        peak = counters.peak_allocated()
        graph_bytes = 0
        if graphs:
            decode = decode_batch(graphs[-1])
            counters.reset_peak()
            before = counters.allocated()
            run(decode)
            graph_bytes = counters.peak_allocated() - before + len(graphs) * _BYTES_PER_GRAPH
        reserved = counters.reserved()
        free = counters.free()
        taken_outside_torch = self.free_before - free - (reserved - self._reserved_before)
        return DeviceMemory(
            total=counters.total(),
            free=free,
            reserved=reserved,
            peak=peak,
            outside_torch=max(0, taken_outside_torch),
            graphs=graph_bytes,
        )


def largest_batch(*, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int, block_size: int) -> Batch:
    """A step that needs as much memory as any: as many tokens as there may be, all sequences sampled with everything.

    All blocks are block 0, so a cache of one block is enough.
    """
    num_sequences = max(1, min(max_num_seqs, max_num_batched_tokens))
    share, rest = divmod(max_num_batched_tokens, num_sequences)
    lengths = [min(max_model_len, share + (index < rest)) for index in range(num_sequences)]
    sampling = SamplingParams(temperature=1.0, top_k=50, top_p=0.9, min_p=0.01, seed=1, frequency_penalty=0.1)
    scheduled = [
        Scheduled(_sequence(f"profile-{index}", length, block_size, sampling), length)
        for index, length in enumerate(lengths)
    ]
    return Batch(step=0, scheduled=tuple(scheduled))


def decode_batch(num_sequences: int) -> Batch:
    """Sequences of one token each, in block 0."""
    sampling = SamplingParams(temperature=0.0)
    return Batch(
        step=0, scheduled=tuple(Scheduled(_sequence(f"decode-{i}", 1, 1, sampling), 1) for i in range(num_sequences))
    )


def _sequence(name: str, num_tokens: int, block_size: int, sampling: SamplingParams) -> Sequence:
    request = Request(name, (0,) * num_tokens, sampling, logprobs=1)
    sequence = Sequence(request, arrival=0, max_total_tokens=num_tokens + 1)
    sequence.block_table.block_ids = [0] * -(-num_tokens // block_size)
    return sequence
