"""Command-line values as the engine's own configuration; the CLI itself knows nothing of `engine`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.config import EngineConfig


def engine_config(*, model_path: Path, seed: int, **values: Any) -> EngineConfig:
    return EngineConfig(model_path=model_path, **values)
