"""What a GPU adds to start-up: memory measured instead of guessed, and decode steps recorded."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from engine.attention.backend import AttentionBackend
from engine.attention.cache_size import CacheNeed, check_weights_fit, fill_device
from engine.attention.flash_backend import FlashAttention
from engine.attention.kv_cache import KvCache
from engine.config import EngineConfig
from engine.errors import CacheSizeError
from engine.facts import ModelFacts
from engine.memory_profile import CudaMemory, MemoryProfile, largest_batch
from engine.runner.cuda_graph import CudaGraphRecorder
from engine.runner.decode_graphs import DecodeGraphs, decode_buckets
from engine.runner.model_runner import ModelRunner, Transformer
from engine.runner.sampler import Sampler

log = logging.getLogger(__name__)

# Makes the rank's attention over a cache, the same for the profile and for serving.
MakeAttention = Callable[[KvCache], AttentionBackend]
# Makes a cache of so many blocks.
MakeCache = Callable[[int], KvCache]


class GpuStart:
    """One rank's way onto its GPU. Made before the weights are loaded."""

    def __init__(self, config: EngineConfig, device: torch.device, facts: ModelFacts, weights_bytes: int) -> None:
        """Raises CacheSizeError when the weights cannot fit."""
        self._config = config
        self._device = device
        self._facts = facts
        counters = CudaMemory(device)
        self._profile = MemoryProfile(counters)
        check_weights_fit(
            weights_bytes,
            free=self._profile.free_before,
            total=counters.total(),
            utilization=config.gpu_memory_utilization,
        )

    def fit_cache(
        self, model: Transformer, make_cache: MakeCache, make_attention: MakeAttention, need: CacheNeed
    ) -> int:
        """Runs the largest step and returns how many blocks fit into what it leaves. Raises CacheSizeError."""
        config = self._config
        attention = make_attention(make_cache(1))
        runner = ModelRunner(
            model,
            attention,
            Sampler(self._facts.vocab_size, self._facts.eos_token_ids, self._device),
            block_size=config.block_size,
        )
        largest = largest_batch(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=self._facts.max_model_len,
            block_size=config.block_size,
        )
        with out_of_memory(
            f"the largest step, of {config.max_num_batched_tokens} tokens and {config.max_num_seqs} sequences, does "
            "not fit beside the weights: lower --max-num-batched-tokens or --max-num-seqs, free the device, or choose "
            "a smaller model or --dtype"
        ):
            memory = self._profile.measure(runner.execute, largest, self._buckets(attention))
        num_blocks = fill_device(memory, config.gpu_memory_utilization, need)
        log.info(
            "GPU memory: %.2f GiB in all, %.2f GiB for weights, largest step and graphs, %.2f GiB for %d KV blocks",
            memory.total / 2**30,
            memory.used / 2**30,
            num_blocks * need.bytes_per_block / 2**30,
            num_blocks,
        )
        return num_blocks

    def decode_graphs(self, model: Transformer, attention: AttentionBackend) -> DecodeGraphs | None:
        """Graphs that are still to be captured; None where there are to be none."""
        buckets = self._buckets(attention)
        if not buckets or not isinstance(attention, FlashAttention):
            return None
        return DecodeGraphs(model, attention, CudaGraphRecorder(self._device), buckets)

    def capture(self, graphs: DecodeGraphs, progress: Callable[[int, int], None]) -> None:
        """Records all graphs. Raises CacheSizeError when the memory does not suffice."""
        started = time.monotonic()
        with out_of_memory(
            "the decode graphs do not fit beside the KV cache: lower --gpu-memory-utilization or "
            "--max-cudagraph-capture-size, or give --enforce-eager"
        ):
            graphs.capture(progress)
        log.info("captured decode graphs for batches of %s in %.1f s", graphs.sizes_text, time.monotonic() - started)

    def _buckets(self, attention: AttentionBackend) -> tuple[int, ...]:
        """The torch backend gathers contexts of every length, which no recording can repeat, and neither can it repeat
        the routing of tokens to experts."""
        config = self._config
        if config.enforce_eager or self._facts.num_experts or not isinstance(attention, FlashAttention):
            return ()
        return decode_buckets(config.max_num_seqs, config.max_cudagraph_capture_size)


@contextmanager
def out_of_memory(message: str) -> Iterator[None]:
    """Turns a device's refusal into CacheSizeError with what to do about it."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise CacheSizeError(f"{message} ({str(error).splitlines()[0]})") from error
