"""What an operator can choose about an engine; plain values, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_DTYPES = ("auto", "float32", "bfloat16", "float16")
_LOAD_FORMATS = ("auto", "dummy")
_QUANTIZATIONS = ("none", "int8", "int4")
_KERNELS = ("auto", "native", "torch")
_ATTENTION_BACKENDS = ("auto", "flash", "torch")


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """How much the scheduler takes on at a time. Raises ValueError, which names the field."""

    max_num_seqs: int = 64  # sequences that hold KV blocks at the same time
    max_num_batched_tokens: int = 512  # tokens of one step; longer prompts are computed in chunks
    max_queued: int = 1024  # requests accepted beyond the max_num_seqs that can run

    def __post_init__(self) -> None:
        _at_least_one("max_num_seqs", self.max_num_seqs)
        _at_least_one("max_num_batched_tokens", self.max_num_batched_tokens)
        if self.max_queued < 0:
            raise ValueError(f"max_queued: {self.max_queued} is negative; 0 accepts only what can run at once")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens: {self.max_num_batched_tokens} is below max_num_seqs {self.max_num_seqs}, "
                "so a step could not give each running sequence one token; raise it or lower max_num_seqs"
            )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Input of `engine.build.build_engine`; what start-up learns is returned there, never written here.

    Raises ValueError, which names the field, for values that cannot work.
    """

    model_path: Path  # a .gguf file or a directory in Hugging Face layout
    dtype: str = "auto"  # auto, float32, bfloat16 or float16
    device: str = "cpu"  # cpu, cuda, or auto: a GPU where torch sees one
    attention_backend: str = "auto"  # flash, torch, or auto: flash on a GPU where it can be had
    block_size: int = 16  # tokens per KV block
    num_blocks: int | None = None  # None: as many as fit kv_cache_bytes
    kv_cache_bytes: int | None = None  # None: see engine.attention.cache_size
    gpu_memory_utilization: float = 0.9  # share of a GPU that the rank may use; sizes the cache
    enforce_eager: bool = False  # no CUDA graphs
    max_cudagraph_capture_size: int = 256  # largest decode batch that becomes a CUDA graph
    max_model_len: int | None = None  # prompt plus output; None: the checkpoint's
    max_num_seqs: int = 64  # see SchedulerLimits
    max_num_batched_tokens: int = 512
    max_queued: int = 1024
    prefix_caching: bool = True
    num_threads: int | None = None  # None: all cores but one, at least one
    num_spare_threads: int = 0  # beside them, of the native kernels, while their cores are idle
    cache_directory: Path | None = None  # compiled kernels lie in its folder native; None: see engine.native.compiler
    kernels: str = "auto"  # native, torch, or auto: native on a CPU with dtype auto where it can be had
    quantization: str = "none"  # int8 or int4: of a floating-point checkpoint, while it is loaded
    load_format: str = "auto"  # auto, or dummy: random weights from `seed`
    seed: int = 0
    expert_parallel: bool = False  # the experts of a mixture are spread over a group of ranks
    group_size: int = 1  # ranks of that group
    group_index: int = 0  # of this rank in it

    def __post_init__(self) -> None:
        for name, choices in (
            ("dtype", _DTYPES),
            ("kernels", _KERNELS),
            ("load_format", _LOAD_FORMATS),
            ("quantization", _QUANTIZATIONS),
            ("attention_backend", _ATTENTION_BACKENDS),
        ):
            value = getattr(self, name)
            if value not in choices:
                raise ValueError(f"{name}: {value!r} is unknown; choose one of {', '.join(choices)}")
        for name in ("block_size", "num_blocks", "kv_cache_bytes", "max_model_len", "num_threads"):
            _at_least_one(name, getattr(self, name))
        if self.num_spare_threads < 0:
            raise ValueError(f"num_spare_threads: {self.num_spare_threads} is negative; give 0 or more")
        _at_least_one("max_cudagraph_capture_size", self.max_cudagraph_capture_size)
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                f"gpu_memory_utilization: {self.gpu_memory_utilization} is no share; give more than 0 and at most 1"
            )
        if self.attention_backend == "flash" and self.device == "cpu":
            raise ValueError("attention_backend: 'flash' needs a GPU; choose device cuda, or attention_backend torch")
        if self.kernels == "native" and (self.device == "cuda" or self.dtype not in ("auto", "bfloat16")):
            raise ValueError(
                f"kernels: 'native' computes on the CPU in its own mixed precision, not with device {self.device!r} "
                f"and dtype {self.dtype!r}; choose device cpu and dtype auto, or kernels torch"
            )
        if self.quantization != "none" and self.device == "cuda":
            raise ValueError(
                f"quantization: {self.quantization!r} is for CPUs; on device {self.device!r} torch would hold the "
                "weights in full again, with the error and without the gain: set it to none"
            )
        if not 0 <= self.group_index < self.group_size:
            raise ValueError(f"group_index: {self.group_index} is not in a group of {self.group_size}")
        _ = self.limits  # checks them

    @property
    def limits(self) -> SchedulerLimits:
        return SchedulerLimits(self.max_num_seqs, self.max_num_batched_tokens, self.max_queued)


def _at_least_one(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ValueError(f"{name}: {value} is below 1; give a positive number")
