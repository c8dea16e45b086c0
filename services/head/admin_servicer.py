"""AdminService of the head."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Literal, NoReturn

import grpc
from google.protobuf.duration_pb2 import Duration
from muster import v1 as wire

from services.head.control_plane import ControlPlane
from services.head.operations import RankOperations
from services.head.rank_calls import RankCalls
from services.head.scaling import Scaling
from services.rpc.channels import dial
from services.rpc.errors import RpcError, invalid_field
from services.rpc.identity import host_id
from services.rpc.log_level import set_log_level

_log = logging.getLogger(__name__)

# What google.protobuf.Duration allows: ten thousand years.
_LONGEST_S = 315_576_000_000


class AdminServicer(wire.AdminServiceServicer):
    """Drains, restarts, adds and takes away ranks, pauses groups, and passes on what each engine does for itself."""

    def __init__(
        self, control: ControlPlane, dial: Callable[[str], grpc.aio.Channel] = dial, own_host_id: str | None = None
    ) -> None:
        """`dial` makes channels to engines."""
        self._control = control
        self._calls = RankCalls(control, dial, own_host_id or host_id())
        self._operations = RankOperations(control)
        self._scaling = Scaling(control, self._operations)
        self._running: set[asyncio.Task[list[wire.RankResult]]] = set()

    async def Drain(self, request: wire.DrainRequest, context: Any) -> wire.DrainResponse:
        ranks, timeout_s = self._selected(request.selector), _seconds(request, "timeout")
        results = await asyncio.gather(*(self._operations.drain(rank, timeout_s, lasting=True) for rank in ranks))
        return wire.DrainResponse(results=results)

    async def Undrain(self, request: wire.UndrainRequest, context: Any) -> wire.UndrainResponse:
        ranks = self._selected(request.selector)
        results = await asyncio.gather(*(self._operations.undrain(rank) for rank in ranks))
        return wire.UndrainResponse(results=results)

    async def Restart(self, request: wire.RestartRequest, context: Any) -> wire.RestartResponse:
        ranks, timeout_s = self._selected(request.selector), _seconds(request, "timeout")
        ready_timeout_s = _seconds(request, "ready_timeout")
        if ready_timeout_s is None:
            ready_timeout_s = self._control.timing.ready_timeout_s
        results = await self._to_the_end(self._operations.restart_all(ranks, timeout_s, ready_timeout_s))
        return wire.RestartResponse(results=results)

    async def Scale(self, request: wire.ScaleRequest, context: Any) -> wire.ScaleResponse:
        ready_timeout_s = _seconds(request, "ready_timeout")
        if ready_timeout_s is None:
            ready_timeout_s = self._control.timing.ready_timeout_s
        scaling = self._scaling.scale(request.data_parallel_size, _seconds(request, "timeout"), ready_timeout_s)
        results = await self._to_the_end(scaling)
        return wire.ScaleResponse(results=results, data_parallel_size=len(self._control.roster.ranks))

    async def ResetPrefixCache(
        self, request: wire.ResetPrefixCacheRequest, context: Any
    ) -> wire.ResetPrefixCacheResponse:
        ranks = self._selected(request.selector)
        results = await self._calls.each(ranks, lambda engine: engine.ResetPrefixCache(wire.ResetPrefixCacheRequest()))
        return wire.ResetPrefixCacheResponse(results=results)

    async def Pause(self, request: wire.PauseRequest, context: Any) -> wire.PauseResponse:
        """Of a lockstep group, as a whole; answers when no rank steps."""
        ranks = self._whole_group(request.selector, "Pause", "hold requests back at the gateways")
        await self._control.wave_group.pause()
        code = 0 if self._control.wave_group.is_pausing else grpc.StatusCode.ABORTED.value[0]
        message = "paused" if not code else "the pause was taken back"
        return wire.PauseResponse(results=[wire.RankResult(rank=rank, code=code, message=message) for rank in ranks])

    async def Resume(self, request: wire.ResumeRequest, context: Any) -> wire.ResumeResponse:
        ranks = self._whole_group(request.selector, "Resume", "there is no Pause to take back either")
        self._control.wave_group.resume()
        return wire.ResumeResponse(results=[wire.RankResult(rank=rank, message="steps again") for rank in ranks])

    async def Sleep(self, request: wire.SleepRequest, context: Any) -> wire.SleepResponse:
        _not_served("Sleep", "stop the engine to free its memory")

    async def Wake(self, request: wire.WakeRequest, context: Any) -> wire.WakeResponse:
        _not_served("Wake", "there is no Sleep to take back either")

    async def StartProfile(self, request: wire.StartProfileRequest, context: Any) -> wire.StartProfileResponse:
        _not_served("StartProfile", "attach a sampling profiler to the engine's process")

    async def StopProfile(self, request: wire.StopProfileRequest, context: Any) -> wire.StopProfileResponse:
        _not_served("StopProfile", "there is no StartProfile to end either")

    async def SetLogLevel(self, request: wire.SetLogLevelRequest, context: Any) -> wire.SetLogLevelResponse:
        """Sets the head's level too."""
        ranks = self._selected(request.selector)
        _log.warning("log level is %s from now on", set_log_level(request.level))
        level = wire.SetLogLevelRequest(level=request.level)
        return wire.SetLogLevelResponse(results=await self._calls.each(ranks, lambda engine: engine.SetLogLevel(level)))

    async def _to_the_end(self, operation: Coroutine[Any, Any, list[wire.RankResult]]) -> list[wire.RankResult]:
        """Also when the caller goes away: a rank that was drained to be stopped must not stay between the two."""
        task = asyncio.create_task(operation)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[list[wire.RankResult]]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.debug("an operation on ranks ended: %s", task.exception())

    def _whole_group(self, selector: wire.RankSelector, operation: str, instead: str) -> list[int]:
        if not self._control.is_lockstep:
            _not_served(operation, instead)
        members = list(self._control.wave_group.members)
        ranks = self._selected(selector) if selector.ranks else members
        if ranks != members:
            words = f"leaves members of the lockstep group out, which stops as a whole: {members}; name all or none"
            raise invalid_field("selector.ranks", words)
        return ranks

    def _selected(self, selector: wire.RankSelector) -> list[int]:
        """In order, each once; none means all."""
        size = len(self._control.roster.ranks)
        for rank in selector.ranks:
            if rank >= size:
                description = f"{rank} does not exist; the deployment has ranks 0 to {size - 1}"
                raise invalid_field("selector.ranks", description)
        return sorted(set(selector.ranks)) or list(range(size))


def _seconds(
    request: wire.DrainRequest | wire.RestartRequest | wire.ScaleRequest, field: Literal["timeout", "ready_timeout"]
) -> float | None:
    if not request.HasField(field):  # type: ignore[arg-type]  # Drain has the first only
        return None
    duration: Duration = getattr(request, field)
    if abs(duration.seconds) > _LONGEST_S:
        raise invalid_field(field, f"{duration.seconds} s is no duration; give less, or leave it out")
    seconds: float = duration.ToNanoseconds() / 1e9
    if seconds < 0:
        raise invalid_field(field, f"is {seconds:g} s; give 0 or more, or leave it out")
    return seconds


def _not_served(operation: str, instead: str) -> NoReturn:
    raise RpcError(
        grpc.StatusCode.UNIMPLEMENTED,
        f"{operation} is not there yet; instead: {instead}",
        reason="OPERATION_UNIMPLEMENTED",
        metadata={"operation": operation},
    )
