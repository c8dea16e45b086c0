"""A rehearsal of deploy/kubernetes: its commands in network namespaces, with mutual TLS and tokens, under load.

Engines and gateways are rolled over, the head is replaced, ranks are added and taken away. No request may fail. For
every change one of two gateways is replaced, and the number of pods stays; `make nightly` does the rest.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from services.development_authority import Authority
from tests.cluster.answers import TIMEOUT_S, completion_body
from tests.support.kubernetes import Endpoints, Pod, hosts_file, manifests
from tests.support.nodes import Node, Nodes

pytestmark = pytest.mark.cluster

NUM_CLIENTS = 6
NIGHTLY = os.environ.get("MUSTER_NIGHTLY") == "1"
NUM_TOKENS = 60
TINY = ("--dtype=float32", "--max-model-len=1024", "--num-blocks=512", "--num-threads=1")


class Clients:
    """Each keeps a connection for some requests, as connection pools do, to whatever endpoint it is sent to."""

    def __init__(self, node: Node, endpoints: Endpoints) -> None:
        self.problems: list[str] = []
        self.num_answers = 0
        self._node = node
        self._endpoints = endpoints
        self._texts: dict[int, str] = {}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask_on, args=(number,)) for number in range(NUM_CLIENTS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wait_for(self, num_more: int) -> None:
        until = self.num_answers + num_more
        while self.num_answers < until and not self.problems:
            assert not self._stop.wait(0.02)

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)

    def _ask_on(self, number: int) -> None:
        self._node.enter()
        try:
            while not self._stop.is_set():
                with httpx.Client(base_url=self._endpoints.url(), timeout=TIMEOUT_S) as client:
                    for _ in range(random.randrange(1, 6)):
                        if self._ask(client, number) == "close":
                            break
        except Exception as error:
            self.problems.append(f"client {number}: {error!r}")

    def _ask(self, client: httpx.Client, number: int) -> str:
        body = completion_body(num_tokens=NUM_TOKENS, prompt=f"Client {number} asks")
        answer = client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        text = answer.json()["choices"][0]["text"]
        assert text == self._texts.setdefault(number, text), f"another text: {text!r}"
        with self._lock:
            self.num_answers += 1
        return str(answer.headers.get("connection", ""))


class Rehearsal:
    """The example "secure", applied."""

    def __init__(self, model: Path, directory: Path, nodes: Nodes, running: ExitStack) -> None:
        self._directory = directory
        self._model = model
        self._running = running
        self.nodes = nodes
        self._objects = manifests("secure")
        self._hosts = hosts_file(directory / "hosts", {"muster-head": nodes["head"].address})
        self._write_secrets()
        self.endpoints = Endpoints(port=8000)
        running.callback(self.endpoints.close)
        self.head = self.pod("Deployment", "muster-head", "head")
        self.engines = [self.pod("StatefulSet", "muster-engine", f"engine{index}", index=index) for index in range(2)]
        self.gateways = [self.gateway(f"gateway{number}") for number in range(2)]
        for pod in (self.head, *self.engines, *self.gateways):
            pod.wait_until_ready()
        self.clients = Clients(nodes["client"], self.endpoints)
        running.callback(self.clients.close)
        self.clients.start()
        self.clients.wait_for(2 * NUM_CLIENTS)

    def pod(self, kind: str, name: str, node: str, *, index: int = 0) -> Pod:
        workload = self._objects[kind, name]
        pod = Pod(
            f"{name}-{node}",
            self.nodes[node],
            workload,
            index=index,
            adapt=self._adapt,
            hosts=self._hosts,
            log=self._directory / f"{node}.log",
        )
        self._running.callback(pod.close)
        return pod.start()

    def gateway(self, node: str) -> Pod:
        pod = self.pod("Deployment", "muster-gateway", node)
        self.endpoints.add(pod)
        return pod

    def ranks(self) -> dict[int, str]:
        """Those that a gateway knows, with their states."""
        url = self.endpoints.url()
        ready = self.nodes["client"].call(lambda: httpx.get(f"{url}/readyz", timeout=30)).json()
        return {rank["rank"]: rank["state"] for rank in ready["ranks"]}

    def wait_for_ranks(self, ranks: dict[int, str]) -> None:
        while self.ranks() != ranks:
            self.clients.wait_for(1)
            assert not self.clients.problems, self.clients.problems

    def _adapt(self, arguments: list[str]) -> list[str]:
        """Secrets and the model are on this disk; the model is small."""
        arguments = [argument.replace("/etc/muster", str(self._directory)) for argument in arguments]
        return ["engine", str(self._model), *arguments[1:], *TINY] if arguments[0] == "engine" else arguments

    def _write_secrets(self) -> None:
        authority = Authority.in_directory(self._directory / "authority", days=1)
        files = authority.issue("muster.internal", also=(), days=1)
        tls, token = self._directory / "tls", self._directory / "token"
        tls.mkdir()
        token.mkdir()
        (tls / "tls.crt").write_bytes(files.certificate.read_bytes())
        (tls / "tls.key").write_bytes(files.key.read_bytes())
        (tls / "ca.crt").write_bytes(authority.certificate_path.read_bytes())
        (token / "tokens").write_text("a-token-for-the-rehearsal\n")
        (tls / "tls.key").chmod(0o600)


@pytest.fixture(scope="module")
def rehearsal(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, need_nodes: None) -> Iterator[Rehearsal]:
    names = ("head", "engine0", "engine1", "engine2", "gateway0", "gateway1", "gateway2", "client")
    with Nodes(*names) as nodes, ExitStack() as running:
        rehearsal = Rehearsal(tiny_model, tmp_path_factory.mktemp("kubernetes"), nodes, running)
        yield rehearsal
        # Before the pods that came later: what asks them would wait for ranks that never come.
        rehearsal.clients.close()


def test_engines_are_rolled_over(rehearsal: Rehearsal) -> None:
    """A StatefulSet's update: from the last pod to the first, each ready before the next one goes."""
    for index in reversed(range(2)):
        assert rehearsal.engines[index].terminate() == 0, rehearsal.engines[index].log
        rehearsal.engines[index] = rehearsal.pod("StatefulSet", "muster-engine", f"engine{index}", index=index)
        rehearsal.engines[index].wait_until_ready()
        rehearsal.clients.wait_for(NUM_CLIENTS)
    assert rehearsal.clients.problems == []
    assert rehearsal.ranks() == {0: "ready", 1: "ready"}


def test_gateways_are_rolled_over(rehearsal: Rehearsal) -> None:
    """A Deployment's update with maxSurge 1: a new pod is ready before an old one goes, and endpoints follow late."""
    spare = "gateway2"
    for number, node in enumerate(("gateway0", "gateway1") if NIGHTLY else ("gateway0",)):
        new = rehearsal.gateway(spare).wait_until_ready()
        assert rehearsal.gateways[number].terminate() == 0, rehearsal.gateways[number].log
        rehearsal.gateways[number], spare = new, node
        rehearsal.clients.wait_for(NUM_CLIENTS)
    assert rehearsal.clients.problems == []


def test_the_head_is_replaced(rehearsal: Rehearsal) -> None:
    assert rehearsal.head.terminate() == 0, rehearsal.head.log
    rehearsal.clients.wait_for(NUM_CLIENTS)
    rehearsal.head = rehearsal.pod("Deployment", "muster-head", "head").wait_until_ready()
    rehearsal.wait_for_ranks({0: "ready", 1: "ready"})
    rehearsal.clients.wait_for(NUM_CLIENTS)
    assert rehearsal.clients.problems == []


@pytest.mark.skipif(not NIGHTLY, reason="for make nightly; tests/cluster/test_scaling.py has ranks that come and go")
def test_the_roster_follows_the_number_of_pods(rehearsal: Rehearsal) -> None:
    third = rehearsal.pod("StatefulSet", "muster-engine", "engine2", index=2).wait_until_ready()
    rehearsal.wait_for_ranks({0: "ready", 1: "ready", 2: "ready"})
    rehearsal.clients.wait_for(NUM_CLIENTS)
    assert third.terminate() == 0, third.log
    rehearsal.wait_for_ranks({0: "ready", 1: "ready"})
    rehearsal.clients.wait_for(NUM_CLIENTS)
    assert rehearsal.clients.problems == []


def test_no_probe_would_have_restarted_anything(rehearsal: Rehearsal) -> None:
    pods = (rehearsal.head, *rehearsal.engines, *rehearsal.gateways)
    assert [(pod.name, pod.complaints) for pod in pods if pod.complaints] == []
