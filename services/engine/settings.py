"""Command-line values as the engine's own configuration; the CLI itself knows nothing of `engine`."""

from __future__ import annotations

from pathlib import Path

from engine.config import EngineConfig


def engine_config(
    *,
    model_path: Path,
    cache_directory: Path,
    load_format: str,
    dtype: str,
    device: str,
    attention_backend: str,
    gpu_memory_utilization: float,
    enforce_eager: bool,
    max_cudagraph_capture_size: int,
    kernels: str,
    quantization: str,
    seed: int,
    block_size: int,
    num_blocks: int | None,
    kv_cache_bytes: int | None,
    max_model_len: int | None,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_queued: int,
    prefix_caching: bool,
    num_threads: int | None,
    num_spare_threads: int = 0,
    expert_parallel: bool = False,
) -> EngineConfig:
    """Raises ValueError, naming the field, for values that cannot work."""
    return EngineConfig(
        model_path=model_path,
        cache_directory=cache_directory,
        load_format=load_format,
        dtype=dtype,
        device=device,
        attention_backend=attention_backend,
        gpu_memory_utilization=gpu_memory_utilization,
        enforce_eager=enforce_eager,
        max_cudagraph_capture_size=max_cudagraph_capture_size,
        kernels=kernels,
        quantization=quantization,
        seed=seed,
        block_size=block_size,
        num_blocks=num_blocks,
        kv_cache_bytes=kv_cache_bytes,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_queued=max_queued,
        prefix_caching=prefix_caching,
        num_threads=num_threads,
        num_spare_threads=num_spare_threads,
        expert_parallel=expert_parallel,
    )
