"""Where tests find the default model; `make test` fetches it."""

from __future__ import annotations

import os
from pathlib import Path


def default_model_path() -> Path:
    """Raises FileNotFoundError with the fix: a test that needs the model fails without it, it never skips."""
    cache = Path(os.environ.get("MUSTER_CACHE") or "~/.cache/muster").expanduser()
    path = Path(os.environ.get("MUSTER_TEST_MODEL") or cache / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: run `muster fetch`, or name the file in MUSTER_TEST_MODEL")
    return path
