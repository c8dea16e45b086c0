"""The event streams of several prompts as one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

from gateway.generation_request import GenerationEvent

Open = Callable[[], AsyncGenerator[GenerationEvent, None]]
_Item = tuple[int, GenerationEvent] | Exception | None

# A batch of a thousand prompts must not fill the engines' queues for everybody else.
_MAX_OPEN = 64
_MAX_QUEUED = 256


async def merged(streams: Sequence[Open]) -> AsyncGenerator[tuple[int, GenerationEvent], None]:
    """Yields (index of the stream, event) as they come; at most 64 streams are open at a time.

    The first error ends all of them and is raised; closing the generator closes all of them.
    """
    if len(streams) == 1:
        async with contextlib.aclosing(streams[0]()) as events:
            async for event in events:
                yield 0, event
        return
    queue: asyncio.Queue[_Item] = asyncio.Queue(_MAX_QUEUED)
    waiting = iter(enumerate(streams))
    movers = [
        asyncio.create_task(_move(waiting, queue), name="merge-prompts") for _ in range(min(_MAX_OPEN, len(streams)))
    ]
    running = len(movers)
    try:
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for mover in movers:
            mover.cancel()
        await asyncio.gather(*movers, return_exceptions=True)


async def _move(waiting: Iterator[tuple[int, Open]], queue: asyncio.Queue[_Item]) -> None:
    """Moves the events of one stream after the other; says at the end that there are no more, or why."""
    try:
        for index, stream in waiting:
            async with contextlib.aclosing(stream()) as events:
                async for event in events:
                    await queue.put((index, event))
    except Exception as error:
        await queue.put(error)
    else:
        await queue.put(None)
