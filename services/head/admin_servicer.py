"""AdminService of the head."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

import grpc
from muster import v1 as wire

from services.head.control_plane import ControlPlane
from services.head.errors import invalid
from services.rpc.errors import RpcError

_log = logging.getLogger(__name__)

_LEVELS = {
    wire.LOG_LEVEL_DEBUG: logging.DEBUG,
    wire.LOG_LEVEL_INFO: logging.INFO,
    wire.LOG_LEVEL_WARNING: logging.WARNING,
    wire.LOG_LEVEL_ERROR: logging.ERROR,
}


class AdminServicer(wire.AdminServiceServicer):
    """Sets the head's own log level; operations on ranks are not forwarded to the engines yet."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    async def Drain(self, request: wire.DrainRequest, context: Any) -> wire.DrainResponse:
        _not_forwarded("Drain", "send SIGTERM to the engine: it finishes its requests and leaves")

    async def Undrain(self, request: wire.UndrainRequest, context: Any) -> wire.UndrainResponse:
        _not_forwarded("Undrain", "restart the engine")

    async def ResetPrefixCache(
        self, request: wire.ResetPrefixCacheRequest, context: Any
    ) -> wire.ResetPrefixCacheResponse:
        _not_forwarded("ResetPrefixCache", "send another cache_salt with requests that must not share blocks")

    async def Pause(self, request: wire.PauseRequest, context: Any) -> wire.PauseResponse:
        _not_forwarded("Pause", "hold requests back at the gateways")

    async def Resume(self, request: wire.ResumeRequest, context: Any) -> wire.ResumeResponse:
        _not_forwarded("Resume", "there is no Pause to take back either")

    async def Sleep(self, request: wire.SleepRequest, context: Any) -> wire.SleepResponse:
        _not_forwarded("Sleep", "stop the engine to free its memory")

    async def Wake(self, request: wire.WakeRequest, context: Any) -> wire.WakeResponse:
        _not_forwarded("Wake", "there is no Sleep to take back either")

    async def StartProfile(self, request: wire.StartProfileRequest, context: Any) -> wire.StartProfileResponse:
        _not_forwarded("StartProfile", "attach a sampling profiler to the engine's process")

    async def StopProfile(self, request: wire.StopProfileRequest, context: Any) -> wire.StopProfileResponse:
        _not_forwarded("StopProfile", "there is no StartProfile to end either")

    async def SetLogLevel(self, request: wire.SetLogLevelRequest, context: Any) -> wire.SetLogLevelResponse:
        """Sets the head's level at once; each selected rank answers that it has to be asked itself."""
        level = _LEVELS.get(request.level)
        if level is None:
            raise invalid("level", f"{request.level} is no log level; send one of DEBUG, INFO, WARNING, ERROR")
        size = self._control.rules.data_parallel_size
        for rank in request.selector.ranks:
            if rank >= size:
                raise invalid("selector.ranks", f"{rank} does not exist; the deployment has ranks 0 to {size - 1}")
        logging.getLogger().setLevel(level)
        _log.log(level, "log level is %s from now on", logging.getLevelName(level))
        code = grpc.StatusCode.UNIMPLEMENTED.value[0]
        message = (
            "the head's level is set; the head does not forward to engines yet: restart the engine with --log-level"
        )
        ranks = sorted(set(request.selector.ranks)) or range(size)
        results = [wire.RankResult(rank=rank, code=code, message=message) for rank in ranks]
        return wire.SetLogLevelResponse(results=results)


def _not_forwarded(operation: str, instead: str) -> NoReturn:
    raise RpcError(
        grpc.StatusCode.UNIMPLEMENTED,
        f"{operation} is not there yet: the head does not forward operations to engines. Until then: {instead}",
        reason="OPERATION_UNIMPLEMENTED",
        metadata={"operation": operation},
    )
