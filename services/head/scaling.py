"""Changing how many independent ranks there are: the roster's wanted size, then the ranks that come or go."""

from __future__ import annotations

import asyncio
import logging

import grpc
from muster import v1 as wire

from services.head.control_plane import ControlPlane
from services.head.operations import RankOperations
from services.head.roster import RankRecord, RankState
from services.rpc.errors import RpcError, invalid_field

_log = logging.getLogger(__name__)


class Scaling:
    """One change at a time. What is asked for is what remains, or what is really there when that cannot be had."""

    def __init__(self, control: ControlPlane, operations: RankOperations) -> None:
        self._control = control
        self._operations = operations
        self._lock = asyncio.Lock()

    async def scale(self, size: int, timeout_s: float | None, ready_timeout_s: float) -> list[wire.RankResult]:
        """A result per rank that came, came back or went. Raises RpcError when the size cannot be.

        In the end all ranks below `size` serve and there are no others, whatever an earlier change has left.
        """
        self._check(size)
        if self._lock.locked():
            raise RpcError(
                grpc.StatusCode.ABORTED,
                "the deployment is being scaled already; ask again when that is done",
                reason="SCALING",
                retry_after_s=1.0,
            )
        async with self._lock:
            if size < self._size:
                return await self._shrink(size, timeout_s, ready_timeout_s)
            return await self._grow(size, ready_timeout_s)

    @property
    def _size(self) -> int:
        return len(self._control.roster.ranks)

    def _check(self, size: int) -> None:
        most = self._control.rules.most_ranks
        if not 1 <= size <= most:
            raise invalid_field(
                "data_parallel_size",
                f"{size} is not between 1 and {most}; the head's --max-data-parallel-size is the limit",
            )
        if self._control.is_lockstep and size != self._size:
            raise RpcError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "the ranks compute in lockstep, each with its share of the experts; their number is that of the start",
                reason="LOCKSTEP_GROUP",
            )

    async def _grow(self, size: int, ready_timeout_s: float) -> list[wire.RankResult]:
        """New ranks come, and those that should be there already come back, whatever was interrupted before."""
        before = self._size
        behind = [record.rank for record in self._control.roster.ranks if record.state is not RankState.READY]
        self._control.resize(size)
        self._recall(size)
        coming = (*behind, *range(before, size))
        results = await asyncio.gather(*(self._await_ready(rank, ready_timeout_s) for rank in coming))
        missed = [result for result in results if result.code and result.rank >= before]
        if missed:
            # The size is what serves: a rank that came is kept, unless one before it did not.
            kept = missed[0].rank
            _log.warning("scaled to %d ranks instead of %d: %s", kept, size, missed[0].message)
            await self._leave(kept, 0.0)
            message = f"left again, because rank {kept} did not come"
            results = [
                result if result.code or result.rank < kept else _taken_back(result, message) for result in results
            ]
        return results

    async def _await_ready(self, rank: int, timeout_s: float) -> wire.RankResult:
        after = await self._operations.until(rank, lambda now: now.state is RankState.READY, timeout_s)
        if after is not None and after.engine is not None:
            return wire.RankResult(rank=rank, message=f"ready: pid {after.engine.pid} on {after.engine.host}")
        ranks = self._control.roster.ranks
        now = ranks[rank] if rank < len(ranks) else RankRecord(rank, 0.0)
        message = f"not ready within {timeout_s:g} s, given up; {now.state.value}: {now.reason}"
        if now.engine is None:
            # Whether somebody tried to start one, a launcher for example, is not known here.
            message += "; no engine has registered for it, which the launcher's output explains where there is one"
        return wire.RankResult(rank=rank, code=grpc.StatusCode.DEADLINE_EXCEEDED.value[0], message=message)

    async def _shrink(self, size: int, timeout_s: float | None, ready_timeout_s: float) -> list[wire.RankResult]:
        recalled = self._recall(size)
        if not self._is_anybody_ready(size):
            await asyncio.gather(*(self._await_ready(rank, ready_timeout_s) for rank in recalled))
        if not self._is_anybody_ready(size):
            raise RpcError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"none of the {size} ranks that would remain is ready: requests would have nowhere to go",
                reason="NOBODY_WOULD_SERVE",
            )
        back = asyncio.gather(*(self._await_ready(rank, ready_timeout_s) for rank in recalled))
        left = await self._leave(size, timeout_s)
        return [*await back, *left]

    def _is_anybody_ready(self, size: int) -> bool:
        return any(record.state is RankState.READY for record in self._control.roster.ranks[:size])

    def _recall(self, size: int) -> list[int]:
        """Takes drains of ranks that are to serve back, and returns those ranks: a head may have died over them."""
        ranks = self._control.roster.ranks[:size]
        for record in ranks:
            self._operations.recall(record.rank)
        return [record.rank for record in ranks if record.state is RankState.DRAINING]

    async def _leave(self, size: int, timeout_s: float | None) -> list[wire.RankResult]:
        """The ranks from `size` on leave, all at one time."""
        leaving = range(size, self._size)
        self._control.resize(size)
        results = await asyncio.gather(*(self._operations.retire(rank, timeout_s) for rank in leaving))
        for rank in reversed(leaving):
            if rank < self._size:
                self._control.forget(rank, "not wanted any more")
        return results


def _taken_back(result: wire.RankResult, message: str) -> wire.RankResult:
    return wire.RankResult(rank=result.rank, code=grpc.StatusCode.ABORTED.value[0], message=message)
