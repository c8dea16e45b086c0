"""When readers are woken: at once where there is time, together where there is none."""

from __future__ import annotations

import asyncio

from gateway.rouser import Rouser
from tests.support.clock import ManualClock
from tests.support.waiting import eventually


class Readers:
    """Readers whose run takes a while by the clock; `num_taken` are the frames that each round found."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.takes_s = 0.0
        self.num_frames = 0
        self.num_taken: list[int] = []
        self.rouser = Rouser(self.wake, clock=clock)

    def frame(self) -> None:
        self.num_frames += 1
        self.rouser.frame_came()

    def wake(self) -> None:
        self.num_taken.append(self.num_frames)
        self.num_frames = 0
        asyncio.get_running_loop().call_soon(self.clock.advance, self.takes_s)


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_frames_with_pauses_between_them_wake_at_once() -> None:
    readers = Readers(ManualClock())
    readers.takes_s = 0.01
    for number in range(1, 4):
        readers.frame()
        assert readers.num_taken == [1] * number
        await settle()
        readers.clock.advance(0.02)


async def test_frames_that_wait_for_a_round_are_taken_together() -> None:
    readers = Readers(ManualClock())
    readers.takes_s = 0.004
    readers.frame()
    for _ in range(3):
        readers.frame()
    assert readers.num_taken == [1]
    await settle()
    readers.frame()
    assert readers.num_taken == [1], "the round is over, and there may be more behind these"
    await eventually(lambda: readers.num_taken == [1, 4], "woken after a moment")


async def test_a_frame_soon_after_a_round_waits_for_those_behind_it() -> None:
    readers = Readers(ManualClock())
    readers.takes_s = 0.004
    readers.frame()
    await settle()
    readers.clock.advance(0.001)
    for _ in range(32):
        assert readers.num_taken == [1]
        readers.frame()
    assert readers.num_taken == [1, 32], "so many are not made to wait any longer"


async def test_short_rounds_are_never_delayed() -> None:
    readers = Readers(ManualClock())
    readers.takes_s = 0.00005
    for number in range(1, 4):
        readers.frame()
        await settle()
        assert readers.num_taken == [1] * number
