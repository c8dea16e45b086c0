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
from engine.attention.cache_size import choose_num_blocks
from engine.attention.kv_cache import KvCache
from engine.attention.torch_backend import TorchAttention
from engine.batch import Batch, Scheduled
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import CheckpointError, DeviceError
from engine.facts import ModelFacts
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.tokens import read_token_bytes
from engine.model.checkpoint import Checkpoint
from engine.model.llama import Llama
from engine.model.loading import open_checkpoint
from engine.model.quantise import QuantisedWeights, quantise_matrix
from engine.model.tokenizer_files import read_tokenizer_archive
from engine.native.loading import NativeKernels, NativeUnavailableError, find_kernels
from engine.native.native_model import NativeAttention, NativeModel
from engine.request import Request
from engine.runner.model_runner import ModelRunner, Transformer
from engine.runner.sampler import Sampler
from engine.sequence import Sequence

log = logging.getLogger(__name__)

__all__ = ["BuiltEngine", "Phase", "build_engine", "read_tokenizer_archive"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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


def _silent(phase: Phase, done: int, total: int) -> None:
    """The default progress listener."""


def build_engine(config: EngineConfig, progress: Progress = _silent) -> BuiltEngine:
    """Loads the model, makes the cache, runs a first step.

    `progress` is called with (phase, done, total) on this thread. Raises DeviceError for a device that is not there,
    CheckpointError for a checkpoint that cannot be loaded and CacheSizeError when the cache cannot hold one longest
    sequence or is more than the free memory.
    """
    device = _open_device(config.device)
    num_threads = config.num_threads or max(1, _num_cores() - 1)
    torch.set_num_threads(num_threads)
    checkpoint = open_checkpoint(config.model_path, dummy=config.load_format == "dummy", seed=config.seed)
    native = _find_native(config, checkpoint)
    dtype = torch.bfloat16 if native is not None else choose_dtype(config.dtype, device)
    checkpoint = _quantised(config, checkpoint, native, num_threads)
    facts = _facts(checkpoint, dtype, config.max_model_len, config.model_path)

    def loaded(done: int, total: int) -> None:
        progress(Phase.LOADING_WEIGHTS, done, total)

    with torch.inference_mode():
        model: Transformer
        if native is not None:
            model = native.load(checkpoint.config, checkpoint.weights, num_threads, loaded)
        else:
            model = Llama(checkpoint.config, checkpoint.weights, dtype, device, loaded)
        progress(Phase.FITTING_CACHE, 0, 1)
        cache = _make_cache(config, checkpoint, facts.max_model_len, dtype, device)
        progress(Phase.FITTING_CACHE, 1, 1)
    attention: AttentionBackend
    if isinstance(model, NativeModel):
        attention = NativeAttention(model, cache)
    else:
        attention = TorchAttention(cache, checkpoint.config.sliding_window)
    runner = ModelRunner(
        model,
        attention,
        Sampler(facts.vocab_size, facts.eos_token_ids, device),
        block_size=config.block_size,
        num_threads=num_threads,
    )
    progress(Phase.WARMING_UP, 0, 1)
    _warm_up(runner, config.block_size)
    progress(Phase.WARMING_UP, 1, 1)
    return BuiltEngine(
        core=EngineCore(
            runner,
            num_blocks=cache.num_blocks,
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
        num_blocks=cache.num_blocks,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        device=str(device),
        attention_backend=attention.name,
        num_threads=num_threads,
    )


def _open_device(name: str) -> torch.device:
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        why = "no GPU is visible" if torch.version.cuda is not None else "this installation of torch is for CPUs only"
        raise DeviceError(
            f"device: {name} cannot be used: {why}; set it to cpu, or install Muster's extra cuda on a GPU host"
        )
    return device


def _find_native(config: EngineConfig, checkpoint: Checkpoint) -> NativeKernels | None:
    """The native kernels where they are asked for, or "auto" and to be had; None: torch computes.

    Raises CheckpointError when they are asked for by name and cannot be had.
    """
    if config.kernels == "torch" or config.device != "cpu":
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


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of the computation; "auto" takes what the machine multiplies fastest.

    Measured on one thread of a CPU with AMX, SmolLM2-135M, milliseconds of a decode step at batch 1 / 8 / 32 and of
    a prefill of 512 tokens: float32 62 / 153 / 248 / 990, float16 63 / 95 / 182 / 1095, bfloat16 49 / 64 / 117 / 311.
    So bfloat16 where the processor has instructions for it, and float32 elsewhere, which is also the exact one:
    against float32 the first token's logprobs move by up to 0.2 in bfloat16 and 0.03 in float16.
    """
    if name != "auto":
        return _DTYPES[name]
    if device.type != "cpu" or _cpu_multiplies_bfloat16():
        return torch.bfloat16
    return torch.float32


def _cpu_multiplies_bfloat16() -> bool:
    """Whether /proc/cpuinfo lists bfloat16 products: AMX or AVX-512 on x86-64, BF16 on arm64."""
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return False
    return bool(words & {"amx_bf16", "avx512_bf16", "bf16"})


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
    )


def _make_cache(
    config: EngineConfig,
    checkpoint: Checkpoint,
    max_model_len: int,
    dtype: torch.dtype,
    device: torch.device,
) -> KvCache:
    model = checkpoint.config
    num_blocks = choose_num_blocks(
        num_blocks=config.num_blocks,
        kv_cache_bytes=config.kv_cache_bytes,
        bytes_per_block=config.block_size * model.kv_bytes_per_token(dtype.itemsize),
        block_size=config.block_size,
        max_model_len=max_model_len,
        max_num_seqs=config.max_num_seqs,
        device=device,
    )
    return KvCache(
        num_layers=model.num_layers,
        num_blocks=num_blocks,
        block_size=config.block_size,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        dtype=dtype,
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
