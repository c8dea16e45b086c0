"""A real head for the engine's tests, in this process and on a free port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from services.head.server import HeadOptions, run_head

TIMEOUT_S = 20.0


async def eventually(condition: Callable[[], object]) -> None:
    """Waits until `condition` holds; fails after a generous deadline."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110  # conditions of all kinds, most without an event
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running_head(**changes: object) -> AsyncIterator[str]:
    """A head with short intervals; yields its TCP target."""
    options: dict[str, object] = {
        "deployment_id": "test",
        "data_parallel_size": 2,
        "heartbeat_interval_s": 0.1,
        "heartbeat_timeout_s": 5.0,
    }
    listening: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        run_head(HeadOptions(**{**options, **changes}), on_listening=listening.set_result)  # type: ignore[arg-type]
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.wait({task, listening}, return_when=asyncio.FIRST_COMPLETED)
            yield_target = listening.result()[-1]
        yield yield_target
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def head_target() -> AsyncIterator[str]:
    async with running_head() as target:
        yield target
