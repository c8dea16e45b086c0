"""The versioned cell."""

from __future__ import annotations

import asyncio

import pytest

from services.rpc.watched import WatchClosed, Watched


async def test_the_first_value_is_there_at_once() -> None:
    assert await Watched("a").newer_than(0) == "a"


async def test_every_waiter_gets_the_newest_value_only() -> None:
    cell = Watched(0)
    waiters = [asyncio.create_task(cell.newer_than(cell.version)) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(waiter.done() for waiter in waiters)
    for value in range(1, 101):
        cell.publish(value)
    assert await asyncio.gather(*waiters) == [100, 100, 100]
    assert cell.version == 101


async def test_a_change_between_two_waits_is_not_missed() -> None:
    cell = Watched("a")
    version = cell.version
    cell.publish("b")
    assert await cell.newer_than(version) == "b"


async def test_publishing_needs_no_task_however_many_watch() -> None:
    cell = Watched(0)
    waiters = [asyncio.create_task(cell.newer_than(1)) for _ in range(50)]
    await asyncio.sleep(0)
    num_tasks = len(asyncio.all_tasks())
    cell.publish(1)
    assert len(asyncio.all_tasks()) == num_tasks
    await asyncio.gather(*waiters)


async def test_close_ends_waits_and_rests_now_and_later() -> None:
    cell = Watched(0)
    waits = [asyncio.create_task(cell.newer_than(1)), asyncio.create_task(cell.rest(1000))]
    await asyncio.sleep(0)
    cell.close()
    results = await asyncio.gather(*waits, return_exceptions=True)
    assert [type(result) for result in results] == [WatchClosed, WatchClosed]
    with pytest.raises(WatchClosed):
        await cell.newer_than(0)
    with pytest.raises(WatchClosed):
        await cell.rest(0.001)


async def test_a_rest_lasts_through_changes() -> None:
    cell = Watched(0)
    rest = asyncio.create_task(cell.rest(0.3))
    await asyncio.sleep(0)
    cell.publish(1)
    await asyncio.sleep(0)
    assert not rest.done()
    await rest
