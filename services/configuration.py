"""The settings that must be equal on all ranks, in the one spelling that head and engines compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

AUTO = "auto"


def canonical_configuration(
    *,
    model: Path,
    dtype: str,
    quantization: str,
    max_model_len: int | None,
    block_size: int,
    seed: int,
    served_model_names: Sequence[str],
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
    }
