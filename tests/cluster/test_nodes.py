"""Three machines, each a network namespace: what happens to a deployment when one of them goes, in every way.

One deployment for all tests of this file, in the order of the file: a head with one rank, and two headless nodes with
one each. Sixteen clients ask without a pause, from the head's node; not one of their answers may fail or differ.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.cluster.answers import ask_rank
from tests.cluster.load import NUM_CLIENTS
from tests.cluster.trio import Trio
from tests.support.nodes import Node, Nodes

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def trio(tiny_model: Path, need_nodes: None) -> Iterator[Trio]:
    with Nodes("head", "left", "right") as nodes, ExitStack() as running:
        yield Trio(tiny_model, nodes, running)


def _cut(trio: Trio, node: Node) -> None:
    node.cut()


def _silence(trio: Trio, node: Node) -> None:
    node.silence()


def _freeze(trio: Trio, node: Node) -> None:
    node.send(signal.SIGSTOP)


def _mend(trio: Trio, node: Node) -> None:
    node.mend()


def _thaw(trio: Trio, node: Node) -> None:
    node.send(signal.SIGCONT)


def _kill(trio: Trio, node: Node) -> None:
    node.send(signal.SIGKILL)


def _start_again(trio: Trio, node: Node) -> None:
    assert trio.left.survivors() == []
    trio.start_left()


Act = Callable[[Trio, Node], None]


@pytest.mark.parametrize(
    ("happen", "undo"),
    [(_cut, _mend), (_silence, _mend), (_freeze, _thaw), (_kill, _start_again)],
    ids=["cable pulled", "frames dropped in silence", "frozen", "killed"],
)
def test_a_node_that_goes_takes_no_answer_with_it_and_comes_back(trio: Trio, happen: Act, undo: Act) -> None:
    continued = trio.num_continued(rank=1)
    with trio.load() as load:
        happen(trio, trio.nodes["left"])
        trio.wait_for_state(1, "LOST")
        load.wait_for_answers(NUM_CLIENTS)
        undo(trio, trio.nodes["left"])
        trio.wait_for_state(1, "READY")
        load.wait_for_answers(NUM_CLIENTS)
    assert load.problems == []
    assert trio.num_continued(rank=1) > continued, "nothing ran on the node that went"


def test_a_slow_and_lossy_way_to_a_node_costs_time_and_no_answer(trio: Trio) -> None:
    with trio.load() as load:
        trio.nodes["left"].worsen(delay_ms=40, jitter_ms=10, loss_percent=2)
        load.wait_for_answers(3 * NUM_CLIENTS)
        trio.nodes["left"].mend()
        load.wait_for_answers(NUM_CLIENTS)
    assert load.problems == []
    trio.wait_for_state(1, "READY")


def test_a_killed_head_fails_no_answer_and_its_successor_knows_everybody(trio: Trio) -> None:
    incarnation = trio.head.roster().head_incarnation
    with trio.load() as load:
        (process,) = trio.head.children("head")
        process.kill()
        load.wait_for_answers(NUM_CLIENTS)
        for rank in range(3):
            trio.wait_for_state(rank, "READY")
        load.wait_for_answers(NUM_CLIENTS)
    assert load.problems == []
    assert trio.head.roster().head_incarnation != incarnation


def test_a_gateway_of_another_node_serves_the_ranks_of_all_nodes(trio: Trio) -> None:
    """Also those of the head's node, whose own gateways reach them over Unix sockets."""
    right, url = trio.nodes["right"], f"http://{trio.nodes['right'].address}:8000"
    command = [sys.executable, "-m", "services.cli", "gateway", "--host", right.address, "--name", "far"]
    command += ["--head-target", f"{trio.nodes['head'].address}:29550"]
    gateway = subprocess.Popen(right.command(*command))
    try:
        trio.head.wait_for(lambda: right.call(lambda: _is_ready(url)), "a gateway that is ready")
        for rank in range(3):
            answer = right.call(partial(ask_rank, url, rank))
            assert answer.status_code == 200, answer.text
        assert "far" in [entry.name for entry in trio.head.roster().gateways]
    finally:
        gateway.terminate()
        assert gateway.wait(30) == 0


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=10).status_code == 200
    except httpx.TransportError:
        return False


def test_a_second_node_with_the_same_ranks_is_turned_away_and_disturbs_nobody(trio: Trio) -> None:
    before = trio.head.roster().ranks[1]
    with trio.load() as load:
        second = trio.start_again_as("right", "--headless", "-dpr", "1")
        assert second.wait() == 1
        load.wait_for_answers(NUM_CLIENTS)
    assert load.problems == []
    assert f"rank 1 ready on {before.host} (pid {before.pid})" in second.output
    assert "engine 1 was rejected (exit code 3)" in second.output.splitlines()[-1]
    assert "start this engine with a rank of its own" in second.output
    after = trio.head.roster().ranks[1]
    assert (after.pid, after.incarnation, after.since) == (before.pid, before.incarnation, before.since)


def test_everybody_stops_in_order(trio: Trio) -> None:
    assert [trio.left.stop(), trio.right.stop(), trio.head.stop()] == [0, 0, 0]
