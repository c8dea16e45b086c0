"""The settings that must, or should, be equal on all ranks, in the one spelling that head and engines compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

AUTO = "auto"
EXPERT_PARALLEL = "enable-expert-parallel"  # "on": all ranks of the deployment are one group that steps together


def canonical_configuration(
    *,
    model: Path,
    dtype: str,
    quantization: str,
    max_model_len: int | None,
    block_size: int,
    seed: int,
    served_model_names: Sequence[str],
    enable_expert_parallel: bool = False,
) -> dict[str, str]:
    """The settings as text, keyed by flag name without the dashes in front.

    A model may lie at different places on different nodes, so only its name is compared here; that the
    checkpoints are really equal is proven by the fingerprint when the engines are ready. The data-parallel size
    has its own field in Hello, where an engine may leave it open.
    """
    return {
        "model": model.name,
        "dtype": dtype,
        "quantization": quantization,
        "max-model-len": AUTO if max_model_len is None else str(max_model_len),
        "block-size": str(block_size),
        "seed": str(seed),
        "served-model-name": ",".join(served_model_names),
        EXPERT_PARALLEL: "on" if enable_expert_parallel else "off",
    }


def advisory_configuration(
    *, max_num_seqs: int, max_num_batched_tokens: int, max_num_queued_reqs: int, enable_prefix_caching: bool
) -> dict[str, str]:
    """Settings that may differ, between nodes of different size, but more often do by mistake: worth a warning."""
    return {
        "max-num-seqs": str(max_num_seqs),
        "max-num-batched-tokens": str(max_num_batched_tokens),
        "max-num-queued-reqs": str(max_num_queued_reqs),
        "enable-prefix-caching": "on" if enable_prefix_caching else "off",
    }
