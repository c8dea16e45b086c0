"""What the tests of several nodes rest on: cables that do what they say, and nothing left behind."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.support.nodes import Node, Nodes, remove_leftovers

pytestmark = pytest.mark.cluster


@pytest.fixture(params=[False, True], ids=["IPv4", "IPv6"])
def nodes(request: pytest.FixtureRequest, need_nodes: None) -> Iterator[Nodes]:
    with Nodes("a", "b", ipv6=request.param) as nodes:
        yield nodes


def reaches(node: Node, address: str) -> bool:
    """A port that nobody listens on refuses: somebody is there."""

    def knock() -> bool:
        try:
            socket.create_connection((address, 9), timeout=1.0).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return True

    return node.call(knock)


def test_cables_can_be_pulled_silenced_worsened_and_mended(nodes: Nodes) -> None:
    a, b = nodes["a"], nodes["b"]
    for spoil in (b.cut, b.silence):
        assert reaches(a, b.address)
        spoil()
        assert not reaches(a, b.address)
        b.mend()
        assert reaches(b, a.address)
    b.worsen(delay_ms=0, jitter_ms=0, loss_percent=100)
    assert not reaches(a, b.address)
    b.mend()
    b.worsen(delay_ms=1, jitter_ms=0, loss_percent=0)
    assert reaches(a, b.address)
    b.mend()
    assert reaches(a, b.address)


def test_a_killed_runs_namespaces_and_processes_are_removed(need_nodes: None) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    name = f"muster-test-{ended.pid}-1-left"
    subprocess.run(["ip", "netns", "add", name], check=True)
    sleeper = subprocess.Popen(["ip", "netns", "exec", name, "sleep", "600"])
    wait_inside(name, sleeper)
    remove_leftovers()
    assert sleeper.wait(10) != 0
    assert name not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


def wait_inside(namespace: str, process: subprocess.Popen[bytes]) -> None:
    """A process has to enter its namespace first; one that has not belongs to nobody yet."""
    deadline = time.monotonic() + 10
    while str(process.pid) not in subprocess.check_output(["ip", "netns", "pids", namespace], text=True).split():
        assert time.monotonic() < deadline


def test_nodes_are_removed_after_a_failure_too(need_nodes: None) -> None:
    def fail() -> None:
        with Nodes("a") as nodes:
            found.append(subprocess.Popen(nodes["a"].command("sleep", "600")))
            deadline = time.monotonic() + 10
            while found[0].pid not in nodes["a"].pids():
                assert time.monotonic() < deadline
            raise RuntimeError("in the middle")

    found: list[subprocess.Popen[bytes]] = []
    with pytest.raises(RuntimeError, match="in the middle"):
        fail()
    assert found[0].wait(10) == -9
