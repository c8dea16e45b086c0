"""The roster as its watchers get it: built when somebody looks, once for all of them."""

from __future__ import annotations

from collections.abc import Callable

from muster import v1 as wire

from services.rpc.watched import Watched

# A thousand ranks that load change thousands of times a second; nobody can use, or pay for, each of these snapshots.
_REST_S_PER_RANK = 1e-4


class RosterWatch:
    """Like Watched, but changes cost nothing until a watcher asks. Belongs to the head's event loop."""

    def __init__(self, build: Callable[[], wire.Roster]) -> None:
        self._build = build
        self._changes = Watched(None)
        self._response = wire.WatchRosterResponse(roster=build())
        self._built_version = self._changes.version

    @property
    def response(self) -> wire.WatchRosterResponse:
        """The newest, shared: not to be changed."""
        if self._built_version != self._changes.version:
            self._response = wire.WatchRosterResponse(roster=self._build())
            self._built_version = self._changes.version
        return self._response

    @property
    def value(self) -> wire.Roster:
        return self.response.roster

    @property
    def version(self) -> int:
        """Grows by one with every change; the first has version 1."""
        return self._changes.version

    def changed(self) -> None:
        self._changes.publish(None)

    def close(self) -> None:
        """Ends all watches, now and from now on, with WatchClosed."""
        self._changes.close()

    async def newer_than(self, version: int) -> wire.Roster:
        """The newest roster, as soon as its version is greater than `version`; 0 answers at once."""
        await self._changes.newer_than(version)
        return self.value

    async def rest(self) -> None:
        """What a watcher waits after each snapshot: the longer, the more ranks are in it."""
        await self._changes.rest(_REST_S_PER_RANK * len(self._response.roster.ranks))
