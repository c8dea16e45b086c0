"""Fixtures of the engine's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support import default_model


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Several builds share the machine, and sums must not depend on how many threads there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model's file; `make test` fetches it."""
    return default_model.default_model_path()
