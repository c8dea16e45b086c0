"""The engine's configuration refuses what cannot work and names the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import EngineConfig, SchedulerLimits


def test_defaults_work() -> None:
    assert EngineConfig(Path("model")).limits == SchedulerLimits()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dtype", "int8"),
        ("load_format", "pickle"),
        ("block_size", 0),
        ("num_blocks", 0),
        ("kv_cache_bytes", -1),
        ("max_model_len", 0),
        ("num_threads", 0),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", 0),
        ("max_num_batched_tokens", 63),
        ("max_queued", -1),
    ],
)
def test_wrong_values(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field}: "):
        EngineConfig(Path("model"), **{field: value})  # type: ignore[arg-type]
