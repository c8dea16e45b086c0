"""Ranks as actors of a Ray cluster of several raylets, which die one after another. Nightly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import openai
import pytest

from tests.cluster.conftest import FLAGS
from tests.support import ray_nodes
from tests.support.cluster import Cluster
from tests.support.ray_nodes import RayNodes
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(ray_nodes.unavailable() is not None, reason=str(ray_nodes.unavailable())),
    pytest.mark.skipif(os.environ.get("MUSTER_NIGHTLY") != "1", reason="nightly: Ray takes long to start"),
]

NUM_CLIENTS = 4
NUM_TOKENS = 200
PAUSE_S = 0.2  # between two answers, so that engines that start get to compute
START_S = 120.0


@pytest.fixture
def nodes() -> Iterator[RayNodes]:
    with RayNodes(num_cpus=1) as cluster:
        yield cluster


def serve(model: Path, nodes: RayNodes, *flags: str) -> Cluster:
    where = ("--data-parallel-backend", "ray", "--ray-address", nodes.address)
    return Cluster(model, *FLAGS, *where, *flags, environment=ray_nodes.ENVIRONMENT)


def test_actors_and_nodes_die_under_load_and_no_answer_fails(tiny_model: Path, nodes: RayNodes) -> None:
    one, two = nodes.start("one"), nodes.start("two")
    with serve(tiny_model, nodes, "-dp", "2", "--ray-placement", "span") as cluster:
        cluster.wait_until_ready(START_S)
        assert [len(node.engines()) for node in (one, two)] == [1, 1]
        assert [entry["host"] for entry in cluster.status()["roster"]["ranks"]] == ["one", "two"]
        with SdkLoad(cluster.url) as load:
            load.wait_for_answers(4 * NUM_CLIENTS)

            (actor,) = two.actors()
            (engine,) = two.engines()
            actor.kill()
            engine.wait(30)  # it ends with its actor
            cluster.wait_for_output(r"engine 1 ended .*its Ray actor is gone")
            load.wait_for_answers(4 * NUM_CLIENTS)
            cluster.wait_for(lambda: cluster.state(1) == "READY" and two.engines(), "rank 1 again", START_S)
            load.wait_for_answers(4 * NUM_CLIENTS)

            two.raylet.kill()
            cluster.wait_for(two.is_gone, "the end of what ran on the node", START_S)
            cluster.wait_for_output(r"engine 1 waits for 1 CPU on one node of the Ray cluster; free are one ", START_S)
            load.wait_for_answers(4 * NUM_CLIENTS)

            back = nodes.start("two")
            cluster.wait_for(lambda: cluster.state(1) == "READY" and back.engines(), "rank 1 again", START_S)
            load.wait_for_answers(4 * NUM_CLIENTS)

            spare = nodes.start("three")
            back.raylet.kill()
            cluster.wait_for(lambda: cluster.state(1) == "READY" and spare.engines(), "rank 1 elsewhere", START_S)
            load.wait_for_answers(4 * NUM_CLIENTS)
        assert load.problems == []
        assert cluster.status()["roster"]["ranks"][1]["host"] == "three"
        assert cluster.stop(signal.SIGINT, START_S) == 0
    print(load.summary)
    assert nodes.reserved() == []
    assert [node.engines() + node.actors() for node in (one, back, spare)] == [[], [], []]


def test_ctrl_c_ends_everything_while_a_rank_waits_for_a_place(tiny_model: Path, nodes: RayNodes) -> None:
    one, two = nodes.start("one"), nodes.start("two")
    with serve(tiny_model, nodes, "-dp", "2") as cluster:
        cluster.wait_until_ready(START_S)
        two.raylet.kill()
        cluster.wait_for_output(r"engine 1 waits for 1 CPU", START_S)
        assert cluster.stop(signal.SIGINT, START_S) == 0
    assert (nodes.reserved(), one.engines(), two.engines()) == ([], [], [])


def test_a_killed_launcher_leaves_nothing_in_the_cluster(tiny_model: Path, nodes: RayNodes) -> None:
    one, two = nodes.start("one"), nodes.start("two")
    with serve(tiny_model, nodes, "-dp", "2") as cluster:
        cluster.wait_until_ready(START_S)
        cluster.send(signal.SIGKILL)
        cluster.wait()
        wait_until(lambda: not one.engines() and not two.engines(), "the end of both engines", START_S)
        wait_until(lambda: nodes.reserved() == [], "nothing left in the cluster", START_S)


def test_too_few_resources_say_what_is_there(tiny_model: Path, nodes: RayNodes) -> None:
    nodes.start("one")
    with serve(tiny_model, nodes, "-dp", "2") as cluster:
        cluster.wait_for_end(START_S)
        assert cluster.output.startswith(
            "muster serve: --data-parallel-size 2 with --ray-placement fill: each rank needs"
        )
        assert "1 of 2 fit. Free on the Ray cluster: one (127.0.0.2, this node): 1 of 1 CPU, no GPU" in cluster.output
    assert nodes.reserved() == []


def test_ranks_come_to_free_nodes_and_go(tiny_model: Path, nodes: RayNodes) -> None:
    one = nodes.start("one")
    with serve(tiny_model, nodes, "-dp", "1", "--max-data-parallel-size", "2") as cluster:
        cluster.wait_until_ready(START_S)
        two = nodes.start("two")
        scale(cluster, 2)
        assert [len(node.engines()) for node in (one, two)] == [1, 1]
        scale(cluster, 1)
        wait_until(lambda: not two.engines() and not two.actors(), "the end of rank 1", START_S)
        wait_until(
            lambda: nodes.reserved() == ["muster default rank 0", "EngineActor", "1 CPUs"], "one place free", START_S
        )
        assert cluster.stop(signal.SIGINT, START_S) == 0
    assert nodes.reserved() == []


def scale(cluster: Cluster, size: int) -> None:
    command = [sys.executable, "-m", "services.cli", "scale", str(size), "--head-target", cluster.head_target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{cluster.output}"


class SdkLoad:
    """So many clients of the official SDK, each with one streamed answer after another, for the length of the block.

    The SDK may not try again by itself, so that each failure counts. Texts have to stay what they were at first.
    """

    def __init__(self, url: str) -> None:
        self.problems: list[str] = []
        self.num_answers = 0
        self._longest_s = 0.0
        self._url = url
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask_on, args=(number,)) for number in range(NUM_CLIENTS)]

    def __enter__(self) -> SdkLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads), "an answer never ended"

    @property
    def summary(self) -> str:
        return f"{self.num_answers} answers, {len(self.problems)} failures, the longest took {self._longest_s:.2f} s"

    def wait_for_answers(self, num_more: int) -> None:
        until, deadline = self.num_answers + num_more, time.monotonic() + 60
        while self.num_answers < until and not self.problems:
            assert time.monotonic() < deadline, f"no {num_more} more answers within 60 s"
            time.sleep(0.02)

    def _ask_on(self, number: int) -> None:
        expected = None
        with openai.OpenAI(base_url=f"{self._url}/v1", api_key="none", max_retries=0, timeout=60) as client:
            while not self._stop.wait(PAUSE_S):
                begun = time.monotonic()
                try:
                    text = self._answer(client, number)
                    expected = expected or text
                    assert text == expected, f"another text than before: {text!r} instead of {expected!r}"
                except Exception as error:
                    self.problems.append(f"client {number}: {error!r}")
                with self._lock:
                    self.num_answers += 1
                    self._longest_s = max(self._longest_s, time.monotonic() - begun)

    def _answer(self, client: openai.OpenAI, number: int) -> str:
        text, reason = "", None
        for event in client.completions.create(
            model="tiny",
            prompt=f"Client {number} asks",
            max_tokens=NUM_TOKENS,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        ):
            for choice in event.choices:
                text += choice.text
                reason = choice.finish_reason or reason
        assert reason == "length", f"ended with {reason}"
        return text
