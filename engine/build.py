"""The composition root of the engine: a configuration in, a core that is ready to step out."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import torch

from engine.attention.backend import AttentionBackend
from engine.attention.cache_size import CacheNeed, choose_num_blocks
from engine.attention.choice import find_flash, make_attention
from engine.attention.flash_functions import FlashFunctions
from engine.attention.kv_cache import KvCache
from engine.batch import Batch, Scheduled
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.device import choose_dtype, open_device
from engine.errors import CheckpointError, DeviceError
from engine.facts import ModelFacts
from engine.gpu_start import GpuStart, out_of_memory
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.tokens import read_token_bytes
from engine.model.checkpoint import Checkpoint
from engine.model.llama import Llama
from engine.model.loading import open_checkpoint
from engine.model.quantise import QuantisedWeights, quantise_matrix
from engine.model.tokenizer_files import read_tokenizer_archive
from engine.native.loading import NativeKernels, NativeUnavailableError, find_kernels
from engine.native.native_model import NativeAttention, NativeModel
from engine.parallel.exchange import ExpertExchange
from engine.parallel.spreading import SpreadExperts, num_own_parameters, open_exchange, spread_experts
from engine.request import Request
from engine.runner.decode_graphs import DecodeGraphs
from engine.runner.model_runner import ModelRunner, Transformer
from engine.runner.sampler import Sampler
from engine.sequence import Sequence

log = logging.getLogger(__name__)

__all__ = ["BuiltEngine", "Phase", "build_engine", "choose_dtype", "read_tokenizer_archive"]


class Phase(Enum):
    """What start-up is busy with, in this order."""

    LOADING_WEIGHTS = "loading_weights"
    FITTING_CACHE = "fitting_cache"
    WARMING_UP = "warming_up"


Progress = Callable[[Phase, int, int], None]


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """What start-up made and what it found out."""

    core: EngineCore
    facts: ModelFacts
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    device: str
    attention_backend: str
    num_threads: int
    spread: SpreadExperts | None = None  # None: this rank computes alone


def _silent(phase: Phase, done: int, total: int) -> None:
    """The default progress listener."""


def build_engine(config: EngineConfig, progress: Progress = _silent) -> BuiltEngine:
    """Loads the model, makes the cache, runs a first step.

    `progress` is called with (phase, done, total) on this thread. Raises DeviceError for a device that is not there,
    CheckpointError for a checkpoint that cannot be loaded and CacheSizeError when the cache cannot hold one longest
    sequence or is more than the free memory.
    """
    opened = _open(config)
    facts, device = opened.facts, opened.device
    placed = _place(config, opened, progress)
    runner = ModelRunner(
        placed.model,
        placed.attention,
        Sampler(facts.vocab_size, facts.eos_token_ids, device),
        block_size=config.block_size,
        num_threads=opened.num_threads,
        decode_graphs=placed.graphs,
        decoder=placed.model if isinstance(placed.model, NativeModel) else None,
    )
    progress(Phase.WARMING_UP, 0, 1)
    _warm_up(runner, config.block_size)
    if opened.gpu is not None and placed.graphs is not None:
        opened.gpu.capture(placed.graphs, lambda done, total: progress(Phase.WARMING_UP, done, total))
    progress(Phase.WARMING_UP, 1, 1)
    return BuiltEngine(
        core=EngineCore(
            runner,
            num_blocks=placed.cache.num_blocks,
            block_size=config.block_size,
            vocab_size=facts.vocab_size,
            max_model_len=facts.max_model_len,
            eos_token_ids=facts.eos_token_ids,
            embedding_size=facts.embedding_size,
            limits=config.limits,
            prefix_caching=config.prefix_caching,
            grammars=GrammarCompiler(
                lambda: read_token_bytes(config.model_path),
                vocab_size=facts.vocab_size,
                eos_token_ids=facts.eos_token_ids,
            ),
        ),
        facts=facts,
        num_blocks=placed.cache.num_blocks,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        device=str(device),
        attention_backend=placed.attention.name,
        num_threads=opened.num_threads,
        spread=spread_experts(placed.model, opened.exchange, facts, device),
    )


@dataclass(frozen=True, slots=True)
class _Opened:
    """What is known before anything large is loaded."""

    device: torch.device
    num_threads: int
    num_spare_threads: int  # of the native kernels, on cores that others may need
    checkpoint: Checkpoint
    native: NativeKernels | None  # None: torch computes
    dtype: torch.dtype
    facts: ModelFacts
    flash: FlashFunctions | None
    gpu: GpuStart | None
    exchange: ExpertExchange | None  # None: all experts are here


def _open(config: EngineConfig) -> _Opened:
    device = open_device(config.device)
    num_threads, num_spare = _threads(config)
    torch.set_num_threads(num_threads)
    checkpoint = open_checkpoint(config.model_path, dummy=config.load_format == "dummy", seed=config.seed)
    exchange = open_exchange(config, checkpoint)
    if config.quantization != "none" and device.type != "cpu":
        raise DeviceError(
            f"quantization: {config.quantization!r} is for CPUs, and device {config.device!r} is {device} here, where "
            "torch would hold the weights in full again; set device to cpu, or quantization to none"
        )
    native = _find_native(config, checkpoint, device)
    dtype = torch.bfloat16 if native is not None else choose_dtype(config.dtype, device)
    checkpoint = _quantised(config, checkpoint, native, num_threads)
    facts = _facts(checkpoint, dtype, config.max_model_len, config.model_path)
    flash, gpu = None, None
    if native is None:
        flash = find_flash(
            config.attention_backend,
            device=device,
            dtype=dtype,
            head_dim=checkpoint.config.head_dim,
            block_size=config.block_size,
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
        gpu = GpuStart(config, device, facts, num_own_parameters(checkpoint, exchange) * dtype.itemsize)
    return _Opened(device, num_threads, num_spare, checkpoint, native, dtype, facts, flash, gpu, exchange)


@dataclass(frozen=True, slots=True)
class _Placed:
    """What lies in the device's memory."""

    model: Transformer
    cache: KvCache
    attention: AttentionBackend
    graphs: DecodeGraphs | None  # not captured yet


def _place(config: EngineConfig, opened: _Opened, progress: Progress) -> _Placed:
    """Loads the weights and makes the cache."""
    model_config, gpu = opened.checkpoint.config, opened.gpu

    def make_cache(num_blocks: int) -> KvCache:
        return KvCache(
            num_layers=model_config.num_layers,
            num_blocks=num_blocks,
            block_size=config.block_size,
            num_kv_heads=model_config.num_kv_heads,
            head_dim=model_config.head_dim,
            dtype=opened.dtype,
            device=opened.device,
            has_scratch=opened.flash is not None,
        )

    def attend(cache: KvCache) -> AttentionBackend:
        return make_attention(
            cache,
            opened.flash,
            sliding_window=model_config.sliding_window,
            max_num_seqs=config.max_num_seqs,
            max_model_len=opened.facts.max_model_len,
        )

    with torch.inference_mode():
        model = _load_model(opened, progress)
        progress(Phase.FITTING_CACHE, 0, 1)
        bytes_per_block = config.block_size * model_config.kv_bytes_per_token(opened.dtype.itemsize)
        need = CacheNeed(bytes_per_block, config.block_size, opened.facts.max_model_len)
        if gpu is not None and config.num_blocks is None and config.kv_cache_bytes is None:
            cache = make_cache(gpu.fit_cache(model, make_cache, attend, need))
        else:
            cache = make_cache(_num_blocks(config, need, opened.device))
        progress(Phase.FITTING_CACHE, 1, 1)
        attention = NativeAttention(model, cache) if isinstance(model, NativeModel) else attend(cache)
        graphs = gpu.decode_graphs(model, attention) if gpu is not None else None
    return _Placed(model, cache, attention, graphs)


def _load_model(opened: _Opened, progress: Progress) -> Transformer:
    checkpoint = opened.checkpoint

    def loaded(done: int, total: int) -> None:
        progress(Phase.LOADING_WEIGHTS, done, total)

    if opened.native is not None:
        return opened.native.load(
            checkpoint.config,
            checkpoint.weights,
            num_threads=opened.num_threads,
            num_spare_threads=opened.num_spare_threads,
            progress=loaded,
        )
    with out_of_memory("the weights do not fit: free the device, or choose a smaller model or --dtype"):
        return Llama(checkpoint.config, checkpoint.weights, opened.dtype, opened.device, loaded, opened.exchange)


def _find_native(config: EngineConfig, checkpoint: Checkpoint, device: torch.device) -> NativeKernels | None:
    """The native kernels where they are asked for, or "auto" and to be had; None: torch computes.

    Raises CheckpointError when they are asked for by name and cannot be had.
    """
    if config.kernels == "torch" or device.type != "cpu":
        return None
    if config.kernels == "auto" and config.dtype != "auto":
        return None
    try:
        return find_kernels(checkpoint.config, config.cache_directory)
    except NativeUnavailableError as error:
        if config.kernels == "native":
            raise CheckpointError(f"kernels: 'native' cannot be used: {error}; or choose kernels torch") from error
        log.warning("torch computes, slower than the native CPU kernels would: %s", error)
        return None


def _quantised(
    config: EngineConfig, checkpoint: Checkpoint, native: NativeKernels | None, num_threads: int
) -> Checkpoint:
    """The checkpoint with the quantisation that was asked for. Raises CheckpointError where it has one already."""
    if config.quantization == "none":
        return checkpoint
    if checkpoint.quantization:
        raise CheckpointError(
            f"quantization: {config.model_path} is quantised already, as {checkpoint.quantization}; leave quantization "
            f"out, or give a checkpoint in float32, float16 or bfloat16 for {config.quantization}"
        )
    if native is None:
        log.warning("torch computes with what the %s blocks stand for: no faster, no smaller", config.quantization)
    quantise = native.quantise(num_threads) if native is not None else quantise_matrix
    return replace(
        checkpoint,
        weights=QuantisedWeights(checkpoint.weights, config.quantization, quantise),
        digest=f"{checkpoint.digest} {config.quantization}",
        quantization=config.quantization,
    )


def _threads(config: EngineConfig) -> tuple[int, int]:
    """Threads that always compute, and spare ones. A number that was given is kept to."""
    if config.num_threads is not None:
        return config.num_threads, config.num_spare_threads
    num_cores = _num_cores()
    num_threads = max(1, num_cores - 1)
    return num_threads, config.num_spare_threads or num_cores - num_threads


def _num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _facts(checkpoint: Checkpoint, dtype: torch.dtype, max_model_len: int | None, model_path: Path) -> ModelFacts:
    limit = checkpoint.config.max_position
    if max_model_len is not None and max_model_len > limit:
        raise CheckpointError(
            f"max_model_len: {max_model_len} is more than the {limit} positions that {model_path} was trained for; "
            f"lower it, or leave it out for {limit}"
        )
    dtype_name = str(dtype).removeprefix("torch.")
    fingerprint = hashlib.sha256(f"{checkpoint.digest} {dtype_name}".encode()).hexdigest()[:32]
    return ModelFacts(
        architecture=checkpoint.config.architecture,
        dtype=dtype_name,
        quantization=checkpoint.quantization,
        vocab_size=checkpoint.config.vocab_size,
        max_model_len=max_model_len or limit,
        eos_token_ids=checkpoint.eos_token_ids,
        bos_token_id=checkpoint.bos_token_id,
        num_parameters=checkpoint.num_parameters,
        fingerprint=fingerprint,
        embedding_size=checkpoint.config.hidden_size,
        default_sampling=checkpoint.default_sampling,
        num_experts=0 if checkpoint.config.experts is None else checkpoint.config.experts.num_experts,
    )


def _num_blocks(config: EngineConfig, need: CacheNeed, device: torch.device) -> int:
    return choose_num_blocks(
        num_blocks=config.num_blocks,
        kv_cache_bytes=config.kv_cache_bytes,
        bytes_per_block=need.bytes_per_block,
        block_size=need.block_size,
        max_model_len=need.max_model_len,
        max_num_seqs=config.max_num_seqs,
        device=device,
    )


def _warm_up(runner: ModelRunner, num_tokens: int) -> None:
    """One prefill and one decode step, so that the first request does not pay for what is set up lazily.

    They write to block 0 only, which nobody reads before writing it again.
    """
    sequence = Sequence(Request("warm-up", (0,) * num_tokens), arrival=0, max_total_tokens=num_tokens)
    sequence.block_table.block_ids = [0]
    runner.execute(Batch(step=0, scheduled=(Scheduled(sequence, num_tokens),)))
    sequence.num_computed = num_tokens - 1
    runner.execute(Batch(step=0, scheduled=(Scheduled(sequence, 1),)))
    runner.forget("warm-up")
