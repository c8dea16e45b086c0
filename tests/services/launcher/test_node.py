"""What a node does without one of its processes, with pieces of Python for processes."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from muster import v1 as wire

from services.launcher import node as node_module
from services.launcher.kept_child import KeptChild
from services.launcher.node import Node
from services.launcher.plan import ChildSpec, Places, ThreadShare
from services.launcher.restart_policy import RestartPolicy
from services.launcher.screen import Screen
from services.launcher.staff import Staff
from tests.services.launcher.serve_options import serve_options

DIES = "import sys; sys.exit(1)"
LIVES = "import time; time.sleep(60)"


class Python(ChildSpec):
    @property
    def command(self) -> tuple[str, ...]:
        return (sys.executable, "-c", self.arguments[0])


class Nodes:
    """A node of two engines and a gateway that run what the test says, each twice at most."""

    def __init__(self, flags: str, *, engines: tuple[str, ...], gateway: str = LIVES, ready: bool = True) -> None:
        self.out = io.StringIO()
        options = serve_options(f"--max-early-deaths 2 {flags}")
        places = Places(Path("/nowhere"), Path("/nowhere/m"), ("m",), ThreadShare(1, 0), "127.0.0.1")
        self.node = Node(
            options,
            places,
            screen=Screen(out=self.out),
            environment_of=lambda spec: os.environ,
            was_ready=lambda: ready,
            served_s=lambda pid: 0.0,
        )
        self.node._engines = [self._kept(f"engine {rank}", code, ready) for rank, code in enumerate(engines)]
        self.node._gateways = [self._kept("gateway", gateway, ready)]

    def _kept(self, name: str, code: str, ready: bool) -> KeptChild:
        return KeptChild(
            lambda: replace(Python(name, (code,))),
            screen=Screen(out=self.out),
            environment_of=lambda spec: os.environ,
            was_ready=lambda: ready,
            policy=RestartPolicy(max_early_deaths=2, first_delay_s=0.01),
        )

    async def failure(self) -> str | None:
        """Why the node stops; None while it goes on although an engine was given up."""
        self.node.start_workers()
        failing = asyncio.create_task(self.node.first_failure())
        try:
            async with asyncio.timeout(20):
                while not failing.done() and not self.node.given_up:  # noqa: ASYNC110  (processes die)
                    await asyncio.sleep(0.01)
            return failing.result() if failing.done() else None
        finally:
            failing.cancel()
            await asyncio.wait([failing])
            await self.node.stop(drain_s=0.0)


async def test_others_serve_on_without_an_engine_that_was_given_up() -> None:
    nodes = Nodes("-dp 2", engines=(DIES, LIVES))
    assert await nodes.failure() is None
    assert nodes.node.given_up == [
        "engine 0 died 2 times in a row before it had worked for 10 s, last with exit code 1: it said nothing"
    ]
    assert "ERROR given up, the others serve on" in nodes.out.getvalue()


async def test_a_switch_stops_the_node() -> None:
    nodes = Nodes("-dp 2 --on-given-up stop", engines=(DIES, LIVES))
    assert "engine 0 died 2 times" in (await nodes.failure() or "")


@pytest.mark.parametrize(("flags", "goes_on"), [("-dp 1", False), ("-dp 2 -dpl 1", True), ("-dp 2 -dpl 1 -dph", False)])
async def test_the_last_engine_ends_the_node_unless_it_serves_ranks_of_others(flags: str, goes_on: bool) -> None:
    assert (await Nodes(flags, engines=(DIES,)).failure() is None) is goes_on


async def test_the_last_gateway_ends_the_node() -> None:
    assert "gateway died" in (await Nodes("-dp 1", engines=(LIVES,), gateway=DIES).failure() or "")


async def test_before_the_node_was_ready_nothing_is_done_without() -> None:
    nodes = Nodes("-dp 2", engines=(DIES, LIVES), ready=False)
    assert await nodes.failure() == "engine 0 failed (exit code 1): it said nothing"


def one_rank() -> wire.Roster:
    """That of a head which was asked for one rank, and which the others have left."""
    ready = wire.RankEntry(rank=0, state=wire.RANK_STATE_READY)
    return wire.Roster(wanted_size=1, data_parallel_size=1, ranks=[ready])


async def test_a_stopped_engine_whose_rank_is_taken_away_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "GOODBYE_S", 0.1)
    nodes = Nodes("-dp 2 --shutdown-timeout 0.1", engines=(LIVES, "import os; os.kill(os.getpid(), 19)"))
    node = nodes.node
    node._staff = Staff([0, 1], node._engines)
    node.start_workers()
    ending = asyncio.create_task(node.first_failure())
    try:
        async with asyncio.timeout(20):
            while len(node.engine_pids) < 2:  # noqa: ASYNC110  (processes start)
                await asyncio.sleep(0.01)
            node.follow_size(one_rank())
            node.follow_size(one_rank())
            while node.num_engines > 1:  # noqa: ASYNC110  (one ends)
                await asyncio.sleep(0.01)
        assert (len(node.engine_pids), node.given_up, ending.done()) == (1, [], False)
        assert node._staff.free_slot(2) == 1, "there is room for another one"
    finally:
        ending.cancel()
        await asyncio.wait([ending])
        await node.stop(drain_s=0.0)


async def test_an_engine_that_was_given_up_is_not_missed_once_its_rank_is_taken_away() -> None:
    nodes = Nodes("-dp 2", engines=(LIVES, DIES))
    nodes.node._staff = Staff([0, 1], nodes.node._engines)
    assert await nodes.failure() is None
    assert len(nodes.node.given_up) == 1
    nodes.node.follow_size(one_rank())
    assert (nodes.node.given_up, nodes.node.num_engines) == ([], 1)


def test_the_next_head_is_told_the_size() -> None:
    nodes = Nodes("-dp 3", engines=())
    assert "--wanted-size" not in nodes.node._head_spec().arguments
    nodes.node.note_size(wire.Roster(wanted_size=1))
    arguments = nodes.node._head_spec().arguments
    assert arguments[arguments.index("--wanted-size") + 1] == "1"
    nodes.node.note_size(wire.Roster(wanted_size=3))
    assert "--wanted-size" not in nodes.node._head_spec().arguments
