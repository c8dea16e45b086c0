"""The tiny model on disk, and deployments of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.nodes import unavailable

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


@pytest.fixture(scope="session")
def need_nodes() -> None:
    """Skips where no network namespaces can be had; `.ci/run` as root says that they must be."""
    reason = unavailable()
    if reason is not None and os.environ.get("MUSTER_TEST_NODES") == "required":
        pytest.fail(f"MUSTER_TEST_NODES is required, but there can be no nodes: {reason}")
    if reason is not None:
        pytest.skip(f"no nodes: {reason}")


@pytest.fixture
def launch(tiny_model: Path) -> Iterator[Launch]:
    """Starts a deployment of the tiny model; ended with the test."""
    with ExitStack() as running:

        def start(*flags: str) -> Cluster:
            return running.enter_context(Cluster(tiny_model, *FLAGS, *flags))

        yield start
