"""Fixtures of the engine's tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

_DEFAULT_MODEL = "~/.cache/muster/models/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Several builds share the machine, and sums must not depend on how many threads there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model's file; `make test` fetches it. Its absence is a failure, not a reason to skip."""
    path = Path(os.environ.get("MUSTER_TEST_MODEL") or _DEFAULT_MODEL).expanduser()
    if not path.is_file():
        pytest.fail(f"{path} is missing: `make test` fetches it, or name the file in MUSTER_TEST_MODEL")
    return path
