"""The Generate calls that run, by the ids under which smg aborts them; event loop only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")


class Aborted(Exception):
    """The call was aborted by its request id."""


class Call:
    """One call, from its handler's side."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self._aborted = False
        self._waiting: asyncio.Timeout | None = None

    async def next(self, events: AsyncIterator[T]) -> T | None:
        """The next event, None after the last; raises Aborted, also while it waits."""
        if self._aborted:
            raise Aborted
        try:
            async with asyncio.timeout(None) as self._waiting:
                return await anext(events, None)
        except TimeoutError:
            if not self._aborted:
                raise
            raise Aborted from None
        finally:
            self._waiting = None

    def abort(self) -> None:
        self._aborted = True
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())


class Calls:
    """Ids are smg's own and should be unique; where they are not, an abort ends all of that id."""

    def __init__(self) -> None:
        self._by_id: dict[str, set[Call]] = {}

    def open(self, request_id: str) -> Call:
        call = Call(request_id)
        self._by_id.setdefault(request_id, set()).add(call)
        return call

    def close(self, call: Call) -> None:
        calls = self._by_id[call.request_id]
        calls.discard(call)
        if not calls:
            del self._by_id[call.request_id]

    def abort(self, request_ids: Iterable[str]) -> int:
        """Ends the calls with these ids and tells how many; ids that are unknown, or ended, are none."""
        calls = [call for request_id in set(request_ids) for call in self._by_id.get(request_id, ())]
        for call in calls:
            call.abort()
        return len(calls)

    def __len__(self) -> int:
        return sum(map(len, self._by_id.values()))
