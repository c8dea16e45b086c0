"""Operations on ranks: a command down the Register stream, then the roster tells when it is done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import grpc
from muster import v1 as wire

from services.head import convert
from services.head.control_plane import ControlPlane
from services.head.roster import Lease, RankRecord, RankState

_log = logging.getLogger(__name__)

# What an engine gets beyond a drain's own timeout: to abort what is left, and to say so.
_OBEY_S = 15.0
_SERVES = (RankState.READY, RankState.DRAINING)
# Thirty years: an engine that is told none takes its own limit.
_NO_TIMEOUT_S = 1e9

_Holds = Callable[[RankRecord], bool]


class RankOperations:
    """Each operation answers with one rank's result and raises nothing but WatchClosed, when the head stops.

    An operation goes on in the engine when its caller goes away.
    """

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self.restarting: set[int] = set()

    async def drain(self, rank: int, timeout_s: float | None) -> wire.RankResult:
        """Done when no request is left on the rank; None waits for as long as they take.

        It is an operator's wish: the rank's next processes drain too, until it is taken back.
        """
        record = self._record(rank)
        if record.lease is None or record.state not in _SERVES:
            return self._not_serving(record, "drain")
        self._control.keep_drained(rank, True)
        result = await self._drain(record, record.lease, timeout_s, for_restart=False)
        if result.code and self._is_kept_drained(rank):
            result.message += f"; it drains when it can, until 'muster undrain {rank}'"
        return result

    async def _drain(
        self, record: RankRecord, lease: Lease, timeout_s: float | None, *, for_restart: bool
    ) -> wire.RankResult:
        rank = record.rank
        command = wire.DrainCommand(for_restart=for_restart)
        if timeout_s is not None:
            command.timeout.CopyFrom(convert.duration(timeout_s))
        _log.info("rank %d is told to drain, timeout %s", rank, "none" if timeout_s is None else f"{timeout_s:g} s")
        self._control.command(lease, wire.RegisterResponse(drain=command))
        was_draining = record.state is RankState.DRAINING

        def ended(now: RankRecord) -> bool:
            if now.lease != lease or now.state not in _SERVES:
                return True
            nonlocal was_draining
            taken_back = was_draining and now.state is RankState.READY
            was_draining = was_draining or now.state is RankState.DRAINING
            return now.drained or taken_back

        limit_s = None if timeout_s is None else timeout_s + _OBEY_S
        after = await self.until(rank, ended, limit_s)
        if after is None:
            return _failed(rank, grpc.StatusCode.DEADLINE_EXCEEDED, f"not idle {limit_s:g} s after the command")
        if after.lease != lease or after.state not in _SERVES:
            return _failed(rank, grpc.StatusCode.ABORTED, f"{after.state.value} while draining: {after.reason}")
        if not after.drained:
            return _failed(rank, grpc.StatusCode.ABORTED, "the drain was taken back")
        return wire.RankResult(rank=rank, message="drained")

    async def undrain(self, rank: int) -> wire.RankResult:
        """Done when the rank takes requests again."""
        record, was_wished = self._record(rank), self._is_kept_drained(rank)
        self._control.keep_drained(rank, False)
        if record.retired:
            message = "cannot undrain: its process was told to leave for good, and finishes its requests"
            return _failed(rank, grpc.StatusCode.FAILED_PRECONDITION, message)
        if record.lease is not None and record.state is RankState.READY:
            if was_wished:
                self._take_back(record.lease)  # the engine has not told of the drain yet
            return wire.RankResult(rank=rank, message="takes requests; it was not draining")
        if record.lease is None or record.state is not RankState.DRAINING:
            return self._not_serving(record, "undrain")
        self._take_back(record.lease)
        after = await self.until(rank, lambda now: now.state is not RankState.DRAINING, _OBEY_S)
        if after is None:
            return _failed(rank, grpc.StatusCode.DEADLINE_EXCEEDED, f"still draining {_OBEY_S:g} s after the command")
        if after.state is not RankState.READY:
            return _failed(rank, grpc.StatusCode.ABORTED, f"{after.state.value}: {after.reason}")
        return wire.RankResult(rank=rank, message="takes requests")

    async def restart(self, rank: int, timeout_s: float | None, ready_timeout_s: float) -> wire.RankResult:
        """Done when a new process of the rank is READY; of a rank that has none, when it has one."""
        if rank in self.restarting:
            return _failed(rank, grpc.StatusCode.FAILED_PRECONDITION, "it is being restarted already")
        self.restarting.add(rank)
        try:
            return await self._restart(rank, timeout_s, ready_timeout_s)
        finally:
            self.restarting.discard(rank)

    async def _restart(self, rank: int, timeout_s: float | None, ready_timeout_s: float) -> wire.RankResult:
        roster, num_resizes = self._control.roster, self._control.roster.num_resizes

        def is_taken_away() -> bool:
            return roster.num_resizes != num_resizes and rank >= roster.wanted_size

        def is_back(now: RankRecord) -> bool:
            is_there = now.state is RankState.READY or (now.state is RankState.DRAINING and self._is_kept_drained(rank))
            return is_there and not now.retired

        record = self._record(rank)
        if record.lease is None:
            gone = record
            self._control.ask(rank)
            found = await self.until(rank, lambda now: is_taken_away() or is_back(now), ready_timeout_s)
            if found is None or found.engine is None or is_taken_away():
                return self._not_back(rank, ready_timeout_s, is_taken_away())
            record, new = found, found.engine
            if gone.engine is None or new.incarnation != gone.engine.incarnation:
                message = f"started: pid {new.pid} on {new.host}; it was {gone.state.value}: {gone.reason}"
                return wire.RankResult(rank=rank, message=message + self._stays_drained(rank))
        if record.lease is None or record.state not in _SERVES:
            return self._not_serving(record, "restart")
        drained = await self._drain(record, record.lease, timeout_s, for_restart=True)
        before = self._record(rank)
        if drained.code:
            if record.state is RankState.READY and not self._is_kept_drained(rank) and not before.retired:
                if before.lease == record.lease:
                    self._take_back(record.lease)
                drained.message += "; not restarted, and it takes requests again as soon as it can"
            return drained
        if before.lease is None or before.engine is None:
            return self._not_serving(before, "restart")
        old = before.engine
        stop = wire.StopCommand(reason="restart", timeout=convert.duration(0.0), restart=True)
        _log.info("rank %d (pid %d on %s) is told to restart", rank, old.pid, old.host)
        self._control.command(before.lease, wire.RegisterResponse(stop=stop))

        def is_replaced(now: RankRecord) -> bool:
            return is_back(now) and now.engine is not None and now.engine.incarnation != old.incarnation

        after = await self.until(rank, lambda now: is_taken_away() or is_replaced(now), ready_timeout_s)
        if after is None or after.engine is None or is_taken_away():
            return self._not_back(rank, ready_timeout_s, is_taken_away())
        message = f"restarted: pid {after.engine.pid} on {after.engine.host} in place of {old.pid}"
        return wire.RankResult(rank=rank, message=message + self._stays_drained(rank))

    def _not_back(self, rank: int, ready_timeout_s: float, is_taken_away: bool) -> wire.RankResult:
        if is_taken_away:
            size = self._control.roster.wanted_size
            message = (
                f"it was taken away while it restarted: the deployment was scaled to {size} rank{'s' * (size != 1)}"
            )
            return _failed(rank, grpc.StatusCode.ABORTED, message)
        now = self._record(rank)
        message = f"no new process was ready within {ready_timeout_s:g} s; {now.state.value}: {now.reason}"
        return _failed(rank, grpc.StatusCode.DEADLINE_EXCEEDED, message + self.why_absent(rank))

    def why_absent(self, rank: int) -> str:
        """What is known beyond the rank's state, to be put behind it."""
        turned_away = self._control.turned_away(rank)
        words = f"; turned away last: {turned_away}" if turned_away else ""
        if (now := self._record(rank)).lease is None:
            # Whether somebody tried to start one, a launcher for example, is not known here.
            fact = "no engine has registered for it, which" if now.engine is None else "why,"
            words += f"; {fact} the launcher's output explains where there is one"
        return words

    def _stays_drained(self, rank: int) -> str:
        return f"; it stays drained until 'muster undrain {rank}'" if self._is_kept_drained(rank) else ""

    def _is_kept_drained(self, rank: int) -> bool:
        return rank in self._control.roster.kept_drained

    def recall(self, rank: int) -> None:
        """Takes a drain back, whoever began it; a restart, which drains too, goes on."""
        record = self._record(rank)
        self._control.keep_drained(rank, False)
        drains = record.state is RankState.DRAINING and not record.retired
        if record.lease is not None and drains and rank not in self.restarting:
            self._take_back(record.lease)

    def _take_back(self, lease: Lease) -> None:
        _log.info("rank %d is told to take requests again", lease.rank)
        self._control.command(lease, wire.RegisterResponse(undrain=wire.UndrainCommand()))

    async def retire(self, rank: int, timeout_s: float | None) -> wire.RankResult:
        """Lets the rank finish its requests and ends its process for good; done when its engine has left."""
        record = self._record(rank)
        if (lease := record.lease) is None:
            was_lost = record.state is RankState.LOST
            message = (
                f"left: it was lost ({record.reason}), and is sent away should it come back" if was_lost else "left"
            )
            return wire.RankResult(rank=rank, message=message)
        if record.state not in _SERVES:
            timeout_s = 0.0  # it hangs, or has no requests yet
        self._control.retire(lease, _NO_TIMEOUT_S if timeout_s is None else timeout_s)
        limit_s = None if timeout_s is None else timeout_s + _OBEY_S
        serves = record.state in _SERVES

        def is_over(now: RankRecord) -> bool:
            return now.lease != lease or (serves and now.state not in _SERVES)

        after = await self.until(rank, is_over, limit_s)
        if after is None:
            message = f"it has not left {limit_s:g} s after the command; it is no more once its process ends"
            return _failed(rank, grpc.StatusCode.DEADLINE_EXCEEDED, message)
        if after.lease == lease:
            message = f"{after.state.value} while it finished its requests: {after.reason}"
            return _failed(rank, grpc.StatusCode.ABORTED, f"{message}; it is no more once its process ends")
        return wire.RankResult(rank=rank, message="left")

    async def restart_all(
        self, ranks: list[int], timeout_s: float | None, ready_timeout_s: float
    ) -> list[wire.RankResult]:
        """One rank after another; the first that fails ends the sequence."""
        results: list[wire.RankResult] = []
        for rank in ranks:
            if results and results[-1].code:
                reason = f"not restarted, because rank {results[-1].rank} was not: {results[-1].message}"
                results += [_failed(left, grpc.StatusCode.ABORTED, reason) for left in ranks[len(results) :]]
                break
            results.append(await self.restart(rank, timeout_s, ready_timeout_s))
        return results

    def _record(self, rank: int) -> RankRecord:
        ranks = self._control.roster.ranks
        return ranks[rank] if rank < len(ranks) else RankRecord(rank, 0.0, reason="the deployment has shrunk")

    def _not_serving(self, record: RankRecord, operation: str) -> wire.RankResult:
        message = f"cannot {operation}: {record.state.value}: {record.reason}"
        if operation != "restart" and record.rank in self.restarting:
            message += "; it is being restarted"
        return _failed(record.rank, grpc.StatusCode.FAILED_PRECONDITION, message)

    async def until(self, rank: int, holds: _Holds, limit_s: float | None) -> RankRecord | None:
        """The first record from now on for which `holds`; None after `limit_s` seconds."""
        watch = self._control.roster_watch
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    version = watch.version
                    if holds(self._record(rank)):
                        return self._record(rank)
                    await watch.newer_than(version)
        except TimeoutError:
            return None


def _failed(rank: int, code: grpc.StatusCode, message: str) -> wire.RankResult:
    return wire.RankResult(rank=rank, code=code.value[0], message=message)
