"""AdminService of the head."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

import grpc
from muster import v1 as wire

from services.head.control_plane import ControlPlane
from services.rpc.errors import RpcError, invalid_field
from services.rpc.log_level import set_log_level

_log = logging.getLogger(__name__)

_ASK_THE_ENGINE = "call AdminService on the engine itself; `muster status --json` has its targets"


class AdminServicer(wire.AdminServiceServicer):
    """Sets the head's own log level; operations on ranks are not forwarded to the engines yet."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    async def Drain(self, request: wire.DrainRequest, context: Any) -> wire.DrainResponse:
        _not_forwarded("Drain", _ASK_THE_ENGINE)

    async def Undrain(self, request: wire.UndrainRequest, context: Any) -> wire.UndrainResponse:
        _not_forwarded("Undrain", _ASK_THE_ENGINE)

    async def ResetPrefixCache(
        self, request: wire.ResetPrefixCacheRequest, context: Any
    ) -> wire.ResetPrefixCacheResponse:
        _not_forwarded("ResetPrefixCache", _ASK_THE_ENGINE)

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
        size = self._control.rules.data_parallel_size
        for rank in request.selector.ranks:
            if rank >= size:
                raise invalid_field(
                    "selector.ranks", f"{rank} does not exist; the deployment has ranks 0 to {size - 1}"
                )
        _log.warning("log level is %s from now on", set_log_level(request.level))
        code = grpc.StatusCode.UNIMPLEMENTED.value[0]
        message = f"the head's level is set; the head does not forward to engines yet: {_ASK_THE_ENGINE}"
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
