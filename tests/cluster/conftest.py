"""The tiny model on disk, and deployments of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.cluster import Cluster

# Small, deterministic, and on ports that nobody else has.
FLAGS = (
    *("--port", "0", "--grpc-port", "0", "--data-parallel-rpc-port", "0"),
    *("--dtype", "float32", "--max-model-len", "1024", "--num-blocks", "512", "--shutdown-timeout", "20"),
)

Launch = Callable[..., Cluster]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.tiny_model import write_huggingface_directory

    return write_huggingface_directory(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def launch(tiny_model: Path) -> Iterator[Launch]:
    """Starts a deployment of the tiny model; ended with the test."""
    with ExitStack() as running:

        def start(*flags: str) -> Cluster:
            return running.enter_context(Cluster(tiny_model, *FLAGS, *flags))

        yield start
