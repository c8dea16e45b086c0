"""Operations that the head passes on: the AdminService of each rank's engine is called, and each answers for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

import grpc
from muster import v1 as wire

from services.head.control_plane import ControlPlane
from services.head.roster import RankRecord
from services.rpc.errors import describe

# An engine answers between two steps; one that takes longer hangs, and its rank is about to be LOST.
_ANSWER_S = 15.0
_MAX_CONCURRENT = 64
_UNIX = "unix:"


class _Response(Protocol):
    @property
    def results(self) -> Sequence[wire.RankResult]: ...


Call = Callable[["wire.AdminServiceAsyncStub"], Awaitable[_Response]]


class RankCalls:
    """Calls engines on behalf of an operator. One rank's failure is its own result and stops nothing."""

    def __init__(self, control: ControlPlane, dial: Callable[[str], grpc.aio.Channel], host_id: str) -> None:
        """`host_id` is the head's own, see Hello.host_id."""
        self._control = control
        self._dial = dial
        self._host_id = host_id
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)

    async def each(self, ranks: Sequence[int], call: Call) -> list[wire.RankResult]:
        """A result per rank, in the order of `ranks`."""
        return await asyncio.gather(*(self._one(rank, call) for rank in ranks))

    async def _one(self, rank: int, call: Call) -> wire.RankResult:
        record = self._control.roster.ranks[rank]  # at once: a rank may leave later
        target = self._target(record)
        if target is None:
            message = f"there is no engine to ask: {record.state.value}: {record.reason}"
            return _failed(rank, grpc.StatusCode.FAILED_PRECONDITION, message)
        async with self._slots, self._dial(target) as channel:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    response = await call(wire.AdminServiceStub(channel))
            except grpc.aio.AioRpcError as error:
                described = describe(error)
                return _failed(rank, described.code, f"the engine at {target}: {described.message}")
            except TimeoutError:
                return _failed(
                    rank, grpc.StatusCode.DEADLINE_EXCEEDED, f"no answer of the engine within {_ANSWER_S:g} s"
                )
        for result in response.results:
            if result.rank == rank:
                return result
        return _failed(rank, grpc.StatusCode.INTERNAL, f"the engine at {target} answered for another rank")

    def _target(self, record: RankRecord) -> str | None:
        """The Unix socket on this host, else a TCP target; None when no engine holds the rank and serves."""
        if record.lease is None or record.offer is None or record.engine is None:
            return None
        targets = record.offer.targets
        if record.engine.host_id == self._host_id:
            for target in targets:
                if target.startswith(_UNIX) and Path(target.removeprefix(_UNIX)).exists():
                    return target
        return next((target for target in targets if not target.startswith(_UNIX)), targets[0])


def _failed(rank: int, code: grpc.StatusCode, message: str) -> wire.RankResult:
    return wire.RankResult(rank=rank, code=code.value[0], message=message)
