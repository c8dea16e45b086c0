"""One link per engine that serves, kept equal to the roster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from gateway.change_signal import ChangeSignal
from gateway.engine_link import Dial, EngineLink
from gateway.ranks import Rank, RankState
from gateway.targets import choose_target

logger = logging.getLogger(__name__)

RETIRE_GRACE_S = 10.0
# A rank that the head calls lost and that sends nothing for so long is.
LOST_SILENCE_S = 1.0


class EnginePool:
    """Links by rank: opened when a rank is READY, doubted when it is LOST, retired when it left.

    A link belongs to one incarnation; a restarted engine gets a new one. `changed` is notified whenever a rank became
    usable or stopped being so; `on_gone` hears of ranks whose process is no more.
    """

    def __init__(
        self,
        *,
        gateway: str,
        host_id: str,
        dial: Dial,
        changed: ChangeSignal,
        on_gone: Callable[[int], None] = lambda rank: None,
    ) -> None:
        self._gateway = gateway
        self._host_id = host_id
        self._dial = dial
        self._changed = changed
        self._on_gone = on_gone
        self._links: dict[int, EngineLink] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._lost_s: dict[int, float] = {}  # on the event loop's clock
        self._unreachable: dict[int, int] = {}  # ranks without an address for us: the incarnation that was told

    @property
    def num_handles(self) -> int:
        """Handles in use over all links."""
        return sum(link.num_handles for link in self._links.values())

    def link(self, rank: int) -> EngineLink | None:
        """The rank's link when requests can be submitted to it."""
        link = self._links.get(rank)
        return link if link is not None and link.attached else None

    def reconcile(self, ranks: Mapping[int, Rank]) -> None:
        """Makes the links equal to the ranks in scope."""
        if self._closed:
            return
        for number in [number for number in self._links if number not in ranks]:
            self._drop(number)
        for rank in ranks.values():
            link = self._links.get(rank.rank)
            if link is not None:
                self._follow(link, rank)
            if rank.state is RankState.READY and rank.rank not in self._links:
                self._open(rank)

    def lost_within(self, seconds: float) -> frozenset[int]:
        """Ranks whose stream broke, not in order, within the last `seconds`."""
        since_s = asyncio.get_running_loop().time() - seconds
        return frozenset(rank for rank, lost_s in self._lost_s.items() if lost_s >= since_s)

    async def close(self) -> None:
        """Ends all streams; the engines abort what was on them."""
        self._closed = True
        for link in self._links.values():
            link.close("the gateway stops")
        self._links.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _follow(self, link: EngineLink, rank: Rank) -> None:
        # MISSING has no incarnation; any other one means that the process we know was replaced.
        if link.incarnation != rank.incarnation or rank.state is RankState.MISSING:
            self._drop(rank.rank)
        elif rank.state is RankState.LOST:
            link.doubt(LOST_SILENCE_S, f"rank {rank.rank} was lost: {rank.reason or 'its lease broke'}")
        elif rank.state is RankState.READY:
            if link.closed:
                del self._links[rank.rank]
            else:
                link.trust()

    def _open(self, rank: Rank) -> None:
        target = choose_target(rank.targets, same_host=rank.host_id == self._host_id)
        if target is None:
            # Once per process: the roster changes often, and nothing here does.
            level = logging.DEBUG if self._unreachable.get(rank.rank) == rank.incarnation else logging.WARNING
            self._unreachable[rank.rank] = rank.incarnation
            logger.log(
                level,
                "rank %d on host %s offers no address this gateway can reach: %s; give the engine a TCP address "
                "with --host and --advertise-host",
                rank.rank,
                rank.host,
                ", ".join(rank.targets) or "none",
            )
            return
        link = EngineLink(
            rank=rank.rank,
            incarnation=rank.incarnation,
            target=target,
            gateway=self._gateway,
            dial=self._dial,
            changed=self._changed,
            node=rank.host_id,
            on_lost=self._note_loss,
        )
        self._links[rank.rank] = link
        task = link.open()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _note_loss(self, rank: int) -> None:
        self._lost_s[rank] = asyncio.get_running_loop().time()

    def _drop(self, rank: int) -> None:
        self._links.pop(rank).retire(RETIRE_GRACE_S)
        self._on_gone(rank)
        self._changed.notify()
