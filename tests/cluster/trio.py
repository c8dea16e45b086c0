"""A deployment on three nodes, with a load from the head's node."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import httpx

from tests.cluster.load import SustainedLoad, undisturbed_texts
from tests.support.cluster import Cluster
from tests.support.nodes import Nodes

MODEL_FLAGS = ("--dtype", "float32", "--max-model-len", "1024", "--num-blocks", "512")
# Short, so that a test need not wait long for a silence to be noticed, and long enough for two busy cores.
HEARTBEATS = ("--heartbeat-interval", "500ms", "--heartbeat-timeout", "3s")


class Trio:
    """The head's node with rank 0, `left` with rank 1 and `right` with rank 2; serves when it is made.

    Its launchers end with `running`.
    """

    def __init__(self, model: Path, nodes: Nodes, running: ExitStack, heartbeats: tuple[str, ...] = HEARTBEATS) -> None:
        self._model = model
        self._running = running
        self.nodes = nodes
        address = nodes["head"].address
        self._join = ("-dp", "3", "-dpl", "1", "--data-parallel-address", address, *MODEL_FLAGS)
        self.head = self._start("head", *self._join, "--host", "0.0.0.0", *heartbeats)
        self.left = self.start_left()
        self.right = self._start("right", *self._join, "--headless", "-dpr", "2")
        self.head.wait_until_ready()
        self.url = self.head.url
        self._enter = nodes["head"].enter
        self._texts = undisturbed_texts(self.url, self._enter)

    def start_left(self) -> Cluster:
        self.left = self._start("left", *self._join, "--headless", "-dpr", "1")
        return self.left

    def start_again_as(self, name: str, *flags: str) -> Cluster:
        """A further launcher on a node."""
        return self._start(name, *self._join, *flags)

    def load(self) -> SustainedLoad:
        return SustainedLoad(self.url, enter=self._enter, expected=self._texts)

    def get(self, path: str) -> httpx.Response:
        return self.nodes["head"].call(lambda: httpx.get(f"{self.url}{path}", timeout=30))

    def num_continued(self, rank: int) -> float:
        """Answers that a loss of this rank interrupted and another rank went on with."""
        for line in self.get("/metrics").text.splitlines():
            name, _, value = line.rpartition(" ")
            if name.startswith("muster:request_continued_total{") and f'rank="{rank}"' in name:
                return float(value)
        return 0.0

    def wait_for_state(self, rank: int, state: str) -> None:
        self.head.wait_for(lambda: self.head.state(rank) == state, f"rank {rank} {state}")

    def _start(self, name: str, *flags: str) -> Cluster:
        return self._running.enter_context(Cluster(self._model, *flags, node=self.nodes[name]))
