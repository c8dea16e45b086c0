"""From "processes started" to "serves": follows the roster, shows progress, and says when everything is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import grpc
from muster import v1 as wire

from services.launcher import progress
from services.launcher.front_door import FrontDoor, answers_ready
from services.launcher.roster_watch import watch_roster
from services.launcher.screen import Screen

_POLL_S = 0.05


class Readiness:
    """Watches the ranks that concern this launcher: all of them on the head's node, its own on a headless one."""

    def __init__(
        self,
        target: str,
        dial: Callable[[str], grpc.aio.Channel],
        concerns: Callable[[wire.RankEntry], bool],
        num_expected: Callable[[], int],
        screen: Screen,
        on_roster: Callable[[wire.Roster], None] = lambda roster: None,
    ) -> None:
        self._target = target
        self._dial = dial
        self._concerns = concerns
        self._num_expected = num_expected
        self._screen = screen
        self._on_roster = on_roster
        self._entries: list[wire.RankEntry] = []
        self._head_seen = False
        self._ready = asyncio.Event()

    async def follow(self) -> None:
        """Shows what changes in the roster, for as long as the launcher runs."""
        lines = progress.ProgressLines()
        async for roster in watch_roster(self._target, self._dial):
            self._head_seen = True
            self._on_roster(roster)
            self._entries = [entry for entry in roster.ranks if self._concerns(entry)]
            news = lines.news(self._entries)
            if self._ready.is_set() or not self._screen.is_terminal:  # there, the bars tell it
                for line in news:
                    self._screen.say(line)
            if self._ready.is_set():
                continue
            self._screen.show_moving(progress.bars(self._entries))
            if self._all_ready(self._entries):
                self._screen.show_moving([])
                self._ready.set()

    @property
    def entries(self) -> Sequence[wire.RankEntry]:
        """The ranks that concern this launcher, as the head told last."""
        return self._entries

    async def ranks_ready(self) -> None:
        await self._ready.wait()

    async def gateway_ready(self, door: FrontDoor) -> None:
        """Ready ranks are not enough: a gateway must know them and have its tokenizer."""
        while not await answers_ready(door):  # noqa: ASYNC110  (what is waited for is in another process)
            await asyncio.sleep(_POLL_S)

    def missing(self) -> str:
        """Which ranks are not ready, and what they are busy with."""
        if not self._head_seen:
            where = "" if self._target.startswith("unix:") else " (--data-parallel-address, --data-parallel-rpc-port)"
            return f"no head answered at {self._target}{where}"
        late = [f"rank {e.rank}: {progress.state_text(e)}" for e in self._entries if e.state != wire.RANK_STATE_READY]
        unknown = self._num_expected() - len(self._entries)
        if unknown > 0:
            late.append(f"{unknown} engine{'s' if unknown > 1 else ''} of this node not in the roster")
        return "; ".join(late) or "the gateway is not ready"

    def _all_ready(self, entries: Sequence[wire.RankEntry]) -> bool:
        # As many as were asked for at the start and are still wanted; one that `muster scale` adds comes afterwards.
        return sum(entry.state == wire.RANK_STATE_READY for entry in entries) >= self._num_expected()
