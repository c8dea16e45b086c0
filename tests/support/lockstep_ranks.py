"""Ranks in lockstep without a model: the production waves and streams, and exchanges that meet in this process.

async with running_head() as head, ranks_of(head, 3) as ranks:
    ranks[1].ask()
    await ranks[1].answered(1)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import reduce

from muster import v1 as wire

from engine.waves import Frames, Vote, WaveMember
from services.engine import wave_convert
from services.engine.state import EngineState
from services.engine.wave_stream import WaveStream
from tests.services.head.harness import Engine, Head
from tests.support.direct_member import DirectMember
from tests.support.waiting import eventually


class GroupBroken(Exception):
    """An exchange whose members are not all there any more."""


class Meeting:
    """The collectives of one epoch: everybody brings a value and gets all of them."""

    def __init__(self, num_members: int) -> None:
        self._num_members = num_members
        self._brought: dict[int, tuple[object, Vote | None]] = {}
        self._done: asyncio.Future[list[Vote | None]] = asyncio.get_running_loop().create_future()

    async def exchange(self, rank: int, what: object, vote: Vote | None = None) -> list[Vote | None]:
        done = self._done
        self._brought[rank] = (what, vote)
        assert len({name for name, _ in self._brought.values()}) == 1, f"different exchanges: {self._brought}"
        if len(self._brought) == self._num_members:
            done.set_result([brought for _, brought in self._brought.values()])
            self._brought, self._done = {}, asyncio.get_running_loop().create_future()
        return await asyncio.shield(done)

    def break_up(self) -> None:
        if not self._done.done():
            self._done.set_exception(GroupBroken())
            self._done.exception()  # perhaps nobody waits


class Rank:
    """One rank: a lease, a stream, and a loop that steps as engines do."""

    def __init__(self, head: Head, rank: int, meetings: dict[int, Meeting], incarnation: int) -> None:
        self.rank = rank
        self.num_steps = 0
        self.num_answered = 0
        self._num_waiting = 0
        self._head = head
        self._meetings = meetings
        self._state = EngineState(incarnation)
        self.member = WaveMember()
        self.stream = WaveStream(
            self._state, lambda target: head.another_channel(), connected=self._connected, hear=self._hear
        )
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._engine: Engine | None = None

    async def start(self) -> None:
        self._engine = self._head.engine()
        await self._engine.join(rank=self.rank, pid=100 + self.rank, incarnation=self._state.incarnation)
        self._state.welcomed(self.rank, "head")
        self._tasks = [asyncio.create_task(self.stream.run()), asyncio.create_task(self._loop())]

    async def die(self) -> None:
        """As a killed process: its streams end, and its peers' exchanges break."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if (meeting := self._meetings.get(self.member.epoch)) is not None:
            meeting.break_up()
        if self._engine is not None:
            self._engine.call.cancel()

    def ask(self) -> None:
        """A request for this rank, which takes one step."""
        self._num_waiting += 1
        self.stream.say(self.member.wake(has_work=True))
        self._news.set()

    async def answered(self, num_requests: int) -> None:
        await eventually(lambda: self.num_answered >= num_requests, f"{num_requests} answers of rank {self.rank}")

    def _connected(self) -> Frames:
        return self.member.connected(has_work=bool(self._num_waiting))

    def _hear(self, response: wire.SyncWaveResponse) -> Frames:
        has_work = bool(self._num_waiting)
        ears = DirectMember(self.member, has_work=has_work)
        wave_convert.apply(ears, response)
        said = ears.said
        if response.HasField("form"):
            self._meetings.setdefault(response.epoch, Meeting(len(response.form.members)))
            if not response.form.group_target:
                self.stream.listens(response.epoch, "here")
            said = (*said, *self.member.formed(has_work=has_work))
        if response.HasField("disband"):
            self._meetings[response.epoch].break_up()
        self._news.set()
        return said

    async def _loop(self) -> None:
        while True:
            if not self.member.running:
                self._news.clear()
                await self._news.wait()
                continue
            try:
                await self._turn(self._meetings[self.member.epoch])
            except GroupBroken:
                self.stream.say(self.member.broke(has_work=bool(self._num_waiting)))

    async def _turn(self, meeting: Meeting) -> None:
        state, has_work, taken = self.member.state, bool(self._num_waiting), self._num_waiting
        if self.member.votes_now:
            what = ("vote", state.wave, state.step)
            votes = await meeting.exchange(self.rank, what, self.member.vote(has_work=has_work))
            outcome = reduce(lambda left, right: left.combine(right), [vote for vote in votes if vote is not None])
            self.stream.say(self.member.agreed(outcome, has_work=bool(self._num_waiting)))
            if not outcome.goes_on:
                return
        await meeting.exchange(self.rank, ("step", state.wave, state.step))
        self.member.stepped()
        self.num_steps += 1
        self._num_waiting -= taken
        self.num_answered += taken


@contextlib.asynccontextmanager
async def ranks_of(head: Head, num_ranks: int) -> AsyncIterator[list[Rank]]:
    """Ranks 0, 1, … of the head, in no group yet. A dead one in the list may be replaced by a new one."""
    meetings: dict[int, Meeting] = {}
    ranks = [Rank(head, rank, meetings, incarnation=10 + rank) for rank in range(num_ranks)]
    try:
        for rank in ranks:
            await rank.start()
        yield ranks
    finally:
        for rank in ranks:
            await rank.die()


def replacement(rank: Rank) -> Rank:
    """Another process for the rank."""
    return Rank(rank._head, rank.rank, rank._meetings, rank._state.incarnation + 1000)
