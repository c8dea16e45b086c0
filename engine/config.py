"""What an operator can choose about an engine; plain values, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DType = Literal["auto", "float32", "bfloat16", "float16"]
LoadFormat = Literal["auto", "dummy"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Input of `engine.build.build_engine`; what start-up learns is returned there, never written here.

    Raises ValueError, which names the field, for values that cannot work together.
    """

    model_path: Path  # a .gguf file or a directory in Hugging Face layout
    dtype: DType = "auto"  # auto: the checkpoint's, or what the device computes fastest
    device: str = "cpu"
    block_size: int = 16  # tokens per KV block
    num_blocks: int | None = None  # None: as many as fit kv_cache_bytes
    kv_cache_bytes: int | None = None  # None: a share of the free memory, see engine.build
    max_model_len: int | None = None  # prompt plus output; None: the checkpoint's
    max_num_seqs: int = 64  # sequences that hold KV blocks at the same time
    max_num_batched_tokens: int = 512  # tokens of one step; longer prompts are computed in chunks
    max_queued: int = 1024  # requests accepted beyond the max_num_seqs that can run
    prefix_caching: bool = True
    num_threads: int | None = None  # None: all cores but one, at least one
    load_format: LoadFormat = "auto"  # dummy: seeded random weights

    def __post_init__(self) -> None:
        positive = (
            "block_size",
            "num_blocks",
            "kv_cache_bytes",
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "num_threads",
        )
        for name in positive:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: {value} is below 1; give a positive number")
        if self.max_queued < 0:
            raise ValueError(f"max_queued: {self.max_queued} is negative; 0 accepts only what can run at once")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens: {self.max_num_batched_tokens} is below max_num_seqs {self.max_num_seqs}, "
                "so a step could not give each running sequence one token; raise it or lower max_num_seqs"
            )
