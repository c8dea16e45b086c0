"""Engines that stop in every phase of their registration, in every way: the head is disturbed by none of them.

Three nodes of engine processes that do nothing but register (`tests/support/registering.py`), a process per phase on
each. One node's processes are frozen, one's are killed, and one's cable loses every frame.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import grpc
import pytest
from muster import v1 as wire

from tests.support.nodes import Node, Nodes

pytestmark = pytest.mark.cluster

PHASES = ("hello", "loading", "ready", "accepted")  # "connected" holds no rank
WAYS = ("frozen", "killed", "silent")
SIZE = len(PHASES) * len(WAYS) + 1  # and one that serves all the time
DEADLINE_S = 30.0


def ranks_of(way: str) -> list[int]:
    first = WAYS.index(way) * len(PHASES)
    return list(range(first, first + len(PHASES)))


class Registration:
    """A head with its Unix socket for us and a TCP port for the engines of other nodes."""

    def __init__(self, nodes: Nodes, directory: Path, running: ExitStack) -> None:
        self.nodes = nodes
        self.target = f"{nodes['head'].address}:29550"
        self._directory = directory
        self._running = running
        self.log = directory / "head.log"

    def start_head(self, *flags: str, size: int = SIZE) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "services.cli", "head", "-dp", str(size), "--unix-path", str(self._socket)]
        command += ["--host", self.nodes["head"].address, *flags]
        head = self._start(self.nodes["head"], self.log, *command)
        self.wait_for(lambda: self.roster() is not None, "a head")
        return head

    def start(self, node: str, phase: str, *ranks: int) -> Path:
        """Engines that stop in a phase; returns their log."""
        output = self._directory / f"{node}-{phase}-{'-'.join(map(str, ranks))}-{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", "tests.support.registering", self.target, phase, *map(str, ranks)]
        self._start(self.nodes[node], output, *command)
        return output

    def roster(self) -> wire.Roster | None:
        with grpc.insecure_channel(f"unix:{self._socket}") as channel:
            try:
                return wire.RendezvousServiceStub(channel).GetDeployment(wire.GetDeploymentRequest(), timeout=10).roster
            except grpc.RpcError:
                return None

    def entry(self, rank: int) -> wire.RankEntry:
        roster = self.roster()
        assert roster is not None, "the head has gone"
        return roster.ranks[rank]

    def states(self, ranks: list[int]) -> set[str]:
        roster = self.roster()
        assert roster is not None, "the head has gone"
        return {wire.RankState.Name(roster.ranks[rank].state).removeprefix("RANK_STATE_") for rank in ranks}

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"no {what} within {DEADLINE_S:g} s:\n{self.log.read_text()}"
            time.sleep(0.05)

    @property
    def _socket(self) -> Path:
        return self._directory / "head.sock"

    def _start(self, node: Node, output: Path, *command: str) -> subprocess.Popen[bytes]:
        file = self._running.enter_context(output.open("wb"))
        process = self._running.enter_context(subprocess.Popen(node.command(*command), stdout=file, stderr=file))
        self._running.callback(process.kill)
        return process


@pytest.fixture
def registration(tmp_path: Path, need_nodes: None) -> Iterator[Registration]:
    with Nodes("head", *WAYS, "well") as nodes, ExitStack() as running:
        yield Registration(nodes, tmp_path, running)


def test_a_node_that_stops_in_any_phase_is_lost_by_name_and_may_come_back(registration: Registration) -> None:
    reg = registration
    reg.start_head("--heartbeat-interval", "500ms", "--heartbeat-timeout", "2s", "--ready-timeout", "5m")
    said = reg.start("well", "serving", SIZE - 1)
    logs = {way: [reg.start(way, "connected", 0)] for way in WAYS}
    for way in WAYS:
        logs[way] += [reg.start(way, phase, rank) for phase, rank in zip(PHASES, ranks_of(way), strict=True)]
    reg.wait_for(lambda: all("there" in log.read_text() for log in (said, *chain(*logs.values()))), "everybody")
    reg.nodes["frozen"].send(signal.SIGSTOP)
    reg.nodes["killed"].send(signal.SIGKILL)
    reg.nodes["silent"].silence()

    # The deadline holds for all of them, the roster says what each was busy with, and nobody else is disturbed.
    everybody = list(range(SIZE - 1))
    reg.wait_for(lambda: reg.states(everybody) == {"LOST"}, "loss of all that stopped")
    for way in WAYS:
        silence = r"its stream ended without Goodbye" if way == "killed" else r"no heartbeat for \d+\.\d s"
        for phase, rank in zip(PHASES, ranks_of(way), strict=True):
            busy = {"hello": "; it was starting", "loading": "; it was loading weights 10 of 272"}.get(phase, "")
            assert re.fullmatch(silence + busy, reg.entry(rank).reason), (way, phase, reg.entry(rank).reason)
    assert reg.states([SIZE - 1]) == {"READY"}
    assert "ended" not in said.read_text()

    # New processes take the ranks over, also while the old ones still sleep.
    reg.nodes["silent"].mend()
    reg.start("well", "serving", *everybody)
    reg.wait_for(lambda: reg.states(everybody) == {"READY"}, "all ranks again")
    reg.nodes["frozen"].send(signal.SIGCONT)
    reg.wait_for(lambda: all("ended" in log.read_text() for log in logs["frozen"][1:]), "its end at all who slept")
    said = reg.start("well", "hello", 0)
    reg.wait_for(lambda: "rank 0 may be taken" in said.read_text(), "a rejection")
    assert reg.states(everybody) == {"READY"}


def test_the_heads_deadline_ends_a_start_and_names_the_rank_and_its_phase(registration: Registration) -> None:
    reg = registration
    head = reg.start_head("--ready-timeout", "3s", "--heartbeat-timeout", "5s", size=2)
    said = reg.start("well", "slow", 1)
    reg.wait_for(lambda: "there" in said.read_text(), "the slow engine")
    assert head.wait(DEADLINE_S) == 1
    (error,) = [line for line in reg.log.read_text().splitlines() if " ERROR " in line]
    assert "not all ranks were ready within 3 s" in error
    assert "rank 0 missing" in error
    assert "rank 1 joining on" in error
    assert "loading weights 10 of 272" in error
    # Engines hear the same, so that every node's log tells it.
    reg.wait_for(lambda: "DEADLINE_EXCEEDED" in said.read_text(), "the deadline at the engine")
    assert "loading weights 10 of 272" in said.read_text()
