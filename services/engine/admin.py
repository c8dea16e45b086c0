"""AdminService of one engine, for itself."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import grpc
from muster import v1 as wire

from services.engine import errors
from services.engine.drain import Drain
from services.engine.intake import Intake
from services.engine.state import EngineState
from services.rpc.errors import RpcError, invalid_field
from services.rpc.log_level import set_log_level

_Context = grpc.aio.ServicerContext[Any, Any]


class AdminServicer(wire.AdminServiceServicer):
    """Operates this rank; a selector that leaves this rank out is refused."""

    def __init__(self, state: EngineState, intake: Intake, drain: Drain) -> None:
        self._state = state
        self._intake = intake
        self._drain = drain

    async def Drain(self, request: wire.DrainRequest, context: _Context) -> wire.DrainResponse:
        rank = self._select(request.selector)
        timeout_s = None
        if request.HasField("timeout"):
            timeout_s = max(0.0, request.timeout.seconds + request.timeout.nanos / 1e9)
        self._drain.begin(timeout_s)
        if await self._drain.wait():
            result = wire.RankResult(rank=rank, message="drained")
        else:
            code: int = grpc.StatusCode.ABORTED.value[0]
            result = wire.RankResult(rank=rank, code=code, message="the drain was taken back")
        return wire.DrainResponse(results=[result])

    async def Undrain(self, request: wire.UndrainRequest, context: _Context) -> wire.UndrainResponse:
        rank = self._select(request.selector)
        self._drain.end()
        return wire.UndrainResponse(results=[wire.RankResult(rank=rank, message="takes requests")])

    async def Restart(self, request: wire.RestartRequest, context: _Context) -> wire.RestartResponse:
        _not_served("Restart", "ask the head, which waits for the rank's return")

    async def Scale(self, request: wire.ScaleRequest, context: _Context) -> wire.ScaleResponse:
        _not_served("Scale", "ask the head, which knows the other ranks")

    async def ResetPrefixCache(
        self, request: wire.ResetPrefixCacheRequest, context: _Context
    ) -> wire.ResetPrefixCacheResponse:
        rank = self._select(request.selector)
        loop = self._intake.engine_loop
        if loop is None:
            raise errors.unavailable("ENGINE_LOADING", f"this engine is not ready yet: {self._state.now.progress_text}")
        num_blocks = await asyncio.wrap_future(loop.call(lambda core: core.reset_prefix_cache()))
        result = wire.RankResult(rank=rank, message=f"forgot {num_blocks} cached blocks")
        return wire.ResetPrefixCacheResponse(results=[result])

    async def SetLogLevel(self, request: wire.SetLogLevelRequest, context: _Context) -> wire.SetLogLevelResponse:
        rank = self._select(request.selector)
        result = wire.RankResult(rank=rank, message=f"log level {set_log_level(request.level)}")
        return wire.SetLogLevelResponse(results=[result])

    async def Pause(self, request: wire.PauseRequest, context: _Context) -> wire.PauseResponse:
        _not_served("Pause", "drain the rank instead")

    async def Resume(self, request: wire.ResumeRequest, context: _Context) -> wire.ResumeResponse:
        _not_served("Resume", "undrain the rank instead")

    async def Sleep(self, request: wire.SleepRequest, context: _Context) -> wire.SleepResponse:
        _not_served("Sleep", "stop the engine to free its memory")

    async def Wake(self, request: wire.WakeRequest, context: _Context) -> wire.WakeResponse:
        _not_served("Wake", "start an engine instead")

    async def StartProfile(self, request: wire.StartProfileRequest, context: _Context) -> wire.StartProfileResponse:
        _not_served("StartProfile", "WatchStats has the times of every step")

    async def StopProfile(self, request: wire.StopProfileRequest, context: _Context) -> wire.StopProfileResponse:
        _not_served("StopProfile", "WatchStats has the times of every step")

    def _select(self, selector: wire.RankSelector) -> int:
        rank = self._state.now.rank
        if rank is None:
            raise errors.unavailable("ENGINE_JOINING", "the head has not assigned a rank to this engine yet")
        if selector.ranks and rank not in selector.ranks:
            raise invalid_field("selector.ranks", f"leaves out rank {rank}, the only one here; ask the head for others")
        return rank


def _not_served(method: str, instead: str) -> NoReturn:
    raise RpcError(
        grpc.StatusCode.UNIMPLEMENTED,
        f"AdminService/{method} is part of the contract but not served by engines of this version; {instead}",
        reason="UNIMPLEMENTED",
    )
