"""Writing from where something comes up: at once, one at a time, and with what goes wrong kept."""

from __future__ import annotations

import asyncio

from services.engine.eager_writer import EagerWriter
from tests.support.waiting import eventually


async def test_a_write_begins_before_start_returns_and_goes_on_by_itself() -> None:
    gate, written, num_done = asyncio.Event(), list[str](), 0

    async def write(message: str) -> None:
        written.append(f"begins {message}")
        await gate.wait()
        await asyncio.sleep(0)
        written.append(f"ends {message}")

    def done() -> None:
        nonlocal num_done
        num_done += 1

    writer = EagerWriter(write, done)
    writer.start("a")
    assert (written, writer.busy, num_done) == (["begins a"], True, 0)
    gate.set()
    await eventually(lambda: not writer.busy, "written")
    assert (written, num_done) == (["begins a", "ends a"], 1)
    writer.start("b")
    await eventually(lambda: num_done == 2, "written")
    assert written[2:] == ["begins b", "ends b"]


async def test_nothing_is_written_after_a_failure() -> None:
    written: list[str] = []

    async def write(message: str) -> None:
        written.append(message)
        await asyncio.sleep(0)
        raise asyncio.CancelledError  # as gRPC says that the call is over

    writer = EagerWriter(write, lambda: None)
    writer.start("a")
    await eventually(lambda: not writer.busy, "failed")
    assert isinstance(writer.failure, asyncio.CancelledError)
    writer.start("b")
    assert (written, writer.busy) == (["a"], False)
