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

    async def drain(self, rank: int, timeout_s: float | None, *, lasting: bool = False) -> wire.RankResult:
        """Done when no request is left on the rank; None waits for as long as they take.

        A `lasting` drain is an operator's wish: the rank's next processes drain too, until it is taken back.
        """
        record = self._record(rank)
        lease = record.lease
        if lease is None or record.state not in _SERVES:
            return _not_serving(record, "drain")
        if lasting:
            self._control.keep_drained(rank, True)
        command = wire.DrainCommand()
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
        record = self._record(rank)
        self._control.keep_drained(rank, False)
        if record.state is RankState.READY:
            return wire.RankResult(rank=rank, message="takes requests; it was not draining")
        if record.lease is None or record.state is not RankState.DRAINING:
            return _not_serving(record, "undrain")
        self._take_back(record.lease)
        after = await self.until(rank, lambda now: now.state is not RankState.DRAINING, _OBEY_S)
        if after is None:
            return _failed(rank, grpc.StatusCode.DEADLINE_EXCEEDED, f"still draining {_OBEY_S:g} s after the command")
        if after.state is not RankState.READY:
            return _failed(rank, grpc.StatusCode.ABORTED, f"{after.state.value}: {after.reason}")
        return wire.RankResult(rank=rank, message="takes requests")

    async def restart(self, rank: int, timeout_s: float | None, ready_timeout_s: float) -> wire.RankResult:
        """Done when a new process of the rank is READY."""
        self.restarting.add(rank)
        try:
            return await self._restart(rank, timeout_s, ready_timeout_s)
        finally:
            self.restarting.discard(rank)

    async def _restart(self, rank: int, timeout_s: float | None, ready_timeout_s: float) -> wire.RankResult:
        num_resizes = self._control.roster.num_resizes
        drained = await self.drain(rank, timeout_s)
        if drained.code:
            return drained
        before = self._record(rank)
        if before.lease is None or before.engine is None:
            return _not_serving(before, "restart")
        old = before.engine
        stop = wire.StopCommand(reason="restart", timeout=convert.duration(0.0), restart=True)
        _log.info("rank %d (pid %d on %s) is told to restart", rank, old.pid, old.host)
        self._control.command(before.lease, wire.RegisterResponse(stop=stop))

        def is_taken_away() -> bool:
            roster = self._control.roster
            return roster.num_resizes != num_resizes and rank >= roster.wanted_size

        def is_back(now: RankRecord) -> bool:
            new = now.engine
            is_there = now.state is RankState.READY or (now.state is RankState.DRAINING and self._is_kept_drained(rank))
            return is_there and new is not None and new.incarnation != old.incarnation

        after = await self.until(rank, lambda now: is_taken_away() or is_back(now), ready_timeout_s)
        if after is not None and is_taken_away():
            size = self._control.roster.wanted_size
            message = (
                f"it was taken away while it restarted: the deployment was scaled to {size} rank{'s' * (size != 1)}"
            )
            return _failed(rank, grpc.StatusCode.ABORTED, message)
        if after is None:
            now = self._record(rank)
            message = f"no new process was ready within {ready_timeout_s:g} s; {now.state.value}: {now.reason}"
            return _failed(rank, grpc.StatusCode.DEADLINE_EXCEEDED, message)
        assert after.engine is not None
        message = f"restarted: pid {after.engine.pid} on {after.engine.host} in place of {old.pid}"
        if self._is_kept_drained(rank):
            message += f"; it stays drained until 'muster undrain {rank}'"
        return wire.RankResult(rank=rank, message=message)

    def _is_kept_drained(self, rank: int) -> bool:
        return rank in self._control.roster.kept_drained

    def recall(self, rank: int) -> None:
        """Takes a drain back, whoever began it; a restart, which drains too, goes on."""
        record = self._record(rank)
        self._control.keep_drained(rank, False)
        if record.lease is not None and record.state is RankState.DRAINING and rank not in self.restarting:
            self._take_back(record.lease)

    def _take_back(self, lease: Lease) -> None:
        _log.info("rank %d is told to take requests again", lease.rank)
        self._control.command(lease, wire.RegisterResponse(undrain=wire.UndrainCommand()))

    async def retire(self, rank: int, timeout_s: float | None) -> wire.RankResult:
        """Lets the rank finish its requests and ends its process for good; done when its engine has left."""
        record = self._record(rank)
        if (lease := record.lease) is None:
            return wire.RankResult(rank=rank, message="left")
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


def _not_serving(record: RankRecord, operation: str) -> wire.RankResult:
    message = f"cannot {operation}: {record.state.value}: {record.reason}"
    return _failed(record.rank, grpc.StatusCode.FAILED_PRECONDITION, message)


def _failed(rank: int, code: grpc.StatusCode, message: str) -> wire.RankResult:
    return wire.RankResult(rank=rank, code=code.value[0], message=message)
