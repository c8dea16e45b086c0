"""What this gateway knows of the deployment: roster, loads, model, tokenizer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from muster import v1 as wire

from gateway import ports
from gateway.balancer import Candidate
from gateway.change_signal import ChangeSignal
from gateway.engine_link import Dial
from gateway.errors import Loading
from gateway.head_watch import HeadWatch
from gateway.load_board import LoadBoard
from gateway.ranks import GatewayPeer, Rank, RankLoad, RankState, Roster
from gateway.roster_book import KEEP_S, RosterBook
from gateway.tokenizer import Tokenizer
from gateway.tokenizer_source import TokenizerSource
from gateway.wire_convert import to_load_snapshot, to_roster

# Engines report once a second when nothing changes.
SILENT_AFTER_S = 10.0
LOAD_INTERVAL_MS = 100
LOAD_HEARTBEAT_MS = 1000
LOAD_SILENCE_S = 10.0


class ClusterView:
    """Watches the head and keeps its last word while it is gone.

    Everything but `start` and `close` answers at once from memory. `changed` is notified when a rank's state, the model
    or the tokenizer changed; `on_roster` is called after each change of the ranks in scope, `on_load` after each
    snapshot of their loads. `scope` lists the global ranks this gateway may use; None means all.
    """

    def __init__(
        self,
        *,
        head_target: str,
        gateway: wire.GatewayEntry,
        host_id: str,
        dial: Dial,
        changed: ChangeSignal,
        scope: Sequence[int] | None = None,
        in_flight: Callable[[int], int] = lambda rank: 0,
        on_roster: Callable[[ClusterView], None] = lambda view: None,
        on_load: Callable[[ClusterView], None] = lambda view: None,
        silent_after_s: float = SILENT_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gateway = gateway
        self._changed = changed
        self._scope = None if scope is None else frozenset(scope)
        self._in_flight = in_flight
        self._on_roster = on_roster
        self._on_load = on_load
        self._silent_after_s = silent_after_s
        self._clock = clock
        self._book = RosterBook()
        self._board = LoadBoard()
        self._model: wire.ModelInfo | None = None
        self._tokenizers = TokenizerSource(
            host_id=host_id, dial=dial, changed=changed, ranks=lambda: self.ranks().values()
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._keep_timer: asyncio.TimerHandle | None = None
        self._roster_watch = HeadWatch(
            name="WatchRoster",
            target=head_target,
            dial=dial,
            watch=self._watch_roster,
            apply=self._apply_roster,
            on_broken=lambda: None,
        )
        self._load_watch = HeadWatch(
            name="WatchLoad",
            target=head_target,
            dial=dial,
            watch=_watch_load,
            apply=self._apply_load,
            on_broken=self._board.watch_broken,
            silence_s=LOAD_SILENCE_S,
        )

    def start(self) -> None:
        """Starts watching; needs a running event loop."""
        work: dict[str, Coroutine[Any, Any, None]] = {
            "watch-roster": self._roster_watch.run(),
            "watch-load": self._load_watch.run(),
            "fetch-tokenizer": self._tokenizers.run(),
        }
        self._tasks = [asyncio.create_task(coroutine, name=name) for name, coroutine in work.items()]

    async def close(self) -> None:
        """Stops watching; the gateway leaves the roster."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._keep_timer is not None:
            self._keep_timer.cancel()

    @property
    def head_connected(self) -> bool:
        """The head is there now; without it serving goes on."""
        return self._roster_watch.connected

    @property
    def ready(self) -> bool:
        return self._tokenizers.tokenizer is not None and bool(self.candidates())

    @property
    def tokenizer_problem(self) -> str:
        """Why this gateway will never serve: no rank has a tokenizer that can be used. Empty while there is hope."""
        return self._tokenizers.problem if self._tokenizers.tokenizer is None else ""

    @property
    def num_ranks(self) -> int:
        return len(self._roster().ranks)

    @property
    def num_gateways(self) -> int:
        """Gateways that share the ranks, this one included; at least 1."""
        return max(1, len(self._roster().gateways))

    @property
    def gateway_index(self) -> int:
        """This gateway's place among them, by name."""
        gateways = self._roster().gateways
        return gateways.index(self._gateway.name) if self._gateway.name in gateways else 0

    def peers(self) -> Sequence[GatewayPeer]:
        """All gateways of the deployment, this one included."""
        return self._roster().peers

    def ranks(self) -> Mapping[int, Rank]:
        """The ranks in scope, by global rank."""
        ranks = self._book.ranks(self._clock())
        return ranks if self._scope is None else {number: ranks[number] for number in ranks if number in self._scope}

    def candidates(self) -> list[Candidate]:
        """The ranks in scope that may be chosen: READY and not silent, with their loads."""
        now_s = self._clock()
        return [
            Candidate(rank.rank, self._board.load(rank.rank, rank.incarnation))
            for rank in self.ranks().values()
            if rank.state is RankState.READY
            and self._board.age_s(rank.rank, rank.incarnation, now_s) <= self._silent_after_s
        ]

    def model(self) -> wire.ModelInfo:
        """The served model, also while its ranks are lost. Raises Loading before the first rank was ready."""
        if self._model is None:
            raise Loading(self._loading_message())
        return self._model

    def models(self) -> list[wire.ModelInfo]:
        return [] if self._model is None else [self._model]

    def tokenizer(self) -> Tokenizer:
        if self._tokenizers.tokenizer is None:
            raise Loading(self._loading_message())
        return self._tokenizers.tokenizer

    def tokenizer_archive(self) -> bytes:
        """The zip that it was built from, see `gateway.tokenizer_archive`. Raises Loading before it was fetched."""
        self.tokenizer()
        return self._tokenizers.archive

    def progress(self) -> list[ports.RankProgress]:
        return [
            ports.RankProgress(
                rank=rank.rank,
                state=rank.state.value,
                phase=rank.phase,
                percent=100.0 * rank.phase_done / rank.phase_total if rank.phase_total else None,
                host=rank.host,
            )
            for rank in self.ranks().values()
        ]

    def loads(self) -> list[ports.RankLoad]:
        return [self._report_load(rank) for rank in self.ranks().values()]

    def rank_loads(self) -> dict[int, RankLoad]:
        """Everything the engines told, of the ranks in scope that have reported."""
        found = {rank.rank: self._board.load(rank.rank, rank.incarnation) for rank in self.ranks().values()}
        return {number: load for number, load in found.items() if load is not None}

    def _report_load(self, rank: Rank) -> ports.RankLoad:
        load = self._board.load(rank.rank, rank.incarnation)
        return ports.RankLoad(
            rank=rank.rank,
            state=rank.state.value,
            waiting=load.waiting if load else 0,
            running=load.running if load else 0,
            kv_usage=load.kv_usage if load else None,
            in_flight=self._in_flight(rank.rank),
            age_s=self._board.age_s(rank.rank, rank.incarnation, self._clock()) if load else None,
        )

    def _roster(self) -> Roster:
        return self._book.roster or Roster(sequence=0, head_incarnation=0)

    def _loading_message(self) -> str:
        parts = [
            f"rank {rank.rank} {rank.phase.replace('_', ' ') or rank.state.value}"
            for rank in self.ranks().values()
            if rank.state is not RankState.READY
        ]
        waiting_for = "the head" if not self.ranks() else "the tokenizer"
        return f"The model is loading: {', '.join(parts) or f'waiting for {waiting_for}'}. Try again soon."

    def _watch_roster(self, channel: grpc.aio.Channel) -> AsyncIterator[wire.WatchRosterResponse]:
        watcher = wire.Watcher(gateway=self._gateway)
        return aiter(wire.RendezvousServiceStub(channel).WatchRoster(wire.WatchRosterRequest(watcher=watcher)))

    def _apply_roster(self, response: wire.WatchRosterResponse) -> None:
        if not self._book.apply(to_roster(response.roster, self._scope), self._clock()):
            return
        if self._keep_timer is not None:
            self._keep_timer.cancel()
        # Ranks that a restarted head doesn't know are kept for a while; somebody has to notice when it is over.
        self._keep_timer = asyncio.get_running_loop().call_later(KEEP_S + 0.1, self._ranks_changed)
        self._ranks_changed()

    def _ranks_changed(self) -> None:
        serving = [rank for rank in self.ranks().values() if rank.state is RankState.READY and rank.model is not None]
        if serving:
            self._model = serving[0].model
        self._on_roster(self)
        self._changed.notify()

    def _apply_load(self, response: wire.WatchLoadResponse) -> None:
        silent_before = {candidate.rank for candidate in self.candidates()}
        self._board.apply(to_load_snapshot(response), self._clock())
        self._on_load(self)
        if {candidate.rank for candidate in self.candidates()} != silent_before:
            self._changed.notify()


def _watch_load(channel: grpc.aio.Channel) -> AsyncIterator[wire.WatchLoadResponse]:
    request = wire.WatchLoadRequest()
    request.min_interval.CopyFrom(_milliseconds(LOAD_INTERVAL_MS))
    request.heartbeat_interval.CopyFrom(_milliseconds(LOAD_HEARTBEAT_MS))
    return aiter(wire.CoordinatorServiceStub(channel).WatchLoad(request))


def _milliseconds(milliseconds: int) -> Duration:
    duration = Duration()
    duration.FromMilliseconds(milliseconds)
    return duration
