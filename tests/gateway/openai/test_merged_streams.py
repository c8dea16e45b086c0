"""Several prompts in one request: all events, a bound on what is open, and nothing left open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from functools import partial

import pytest

from gateway.errors import Overloaded
from gateway.generation_request import ChoiceDelta, GenerationEvent
from gateway.merged_streams import Open, merged
from tests.support.waiting import eventually


class Streams:
    """Counts what is open."""

    def __init__(self) -> None:
        self.num_open = 0
        self.most_open = 0

    async def stream(self, name: str, num_events: int) -> AsyncGenerator[GenerationEvent, None]:
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            for _ in range(num_events):
                await asyncio.sleep(0)
                yield ChoiceDelta(0, name)
        finally:
            self.num_open -= 1

    async def failing(self) -> AsyncGenerator[GenerationEvent, None]:
        async for event in self.stream("failing", 1):
            yield event
        raise Overloaded("full")

    async def silent(self) -> AsyncGenerator[GenerationEvent, None]:
        async for event in self.stream("silent", 0):
            yield event
        self.num_open += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.num_open -= 1


async def test_every_event_arrives_with_its_number() -> None:
    streams = Streams()
    found: dict[int, list[str]] = {}
    async for number, event in merged([partial(streams.stream, str(i), i % 7) for i in range(300)]):
        assert isinstance(event, ChoiceDelta)
        found.setdefault(number, []).append(event.text)
    assert found == {i: [str(i)] * (i % 7) for i in range(300) if i % 7}
    assert streams.most_open == 64
    assert streams.num_open == 0


@pytest.mark.parametrize("num_others", [0, 3, 200])
async def test_the_first_error_ends_all(num_others: int) -> None:
    streams = Streams()
    opened: list[Open] = [streams.failing, *[partial(streams.stream, "other", 10_000)] * num_others]
    with pytest.raises(Overloaded):
        async for _ in merged(opened):
            pass
    assert streams.num_open == 0


@pytest.mark.parametrize("num_streams", [1, 5])
async def test_closing_closes_all(num_streams: int) -> None:
    streams = Streams()
    async with contextlib.aclosing(merged([partial(streams.stream, "x", 10_000)] * num_streams)) as events:
        await anext(events)
        assert streams.num_open == num_streams
    assert streams.num_open == 0


@pytest.mark.parametrize("num_streams", [1, 5])
async def test_cancelling_closes_all(num_streams: int) -> None:
    streams = Streams()

    async def drain() -> None:
        async with contextlib.aclosing(merged([streams.silent] * num_streams)) as events:
            async for _ in events:
                pass

    task = asyncio.create_task(drain())
    await eventually(lambda: streams.num_open == num_streams, "all open")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert streams.num_open == 0


async def test_a_slow_reader_slows_the_streams() -> None:
    """No more events wait than the queue holds and the movers have in hand."""
    produced = 0

    async def endless() -> AsyncGenerator[GenerationEvent, None]:
        nonlocal produced
        while True:
            await asyncio.sleep(0)
            produced += 1
            yield ChoiceDelta(0, "x")

    async with contextlib.aclosing(merged([endless] * 3)) as events:
        await anext(events)
        for _ in range(2000):
            await asyncio.sleep(0)
        assert produced <= 256 + 1 + 3
