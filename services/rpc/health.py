"""grpc.health.v1, with a Watch that many callers may share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.rpc.errors import RpcError
from services.rpc.watched import Watched

_Status = health_pb2.HealthCheckResponse

SERVICE_NAME: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Own servicer: the packaged one forgets all watchers of a service when one of them leaves."""

    def __init__(self) -> None:
        self._statuses: Watched[dict[str, int]] = Watched({"": _Status.NOT_SERVING})

    def set(self, service: str, serving: bool) -> None:
        status = _Status.SERVING if serving else _Status.NOT_SERVING
        if self._statuses.value.get(service) != status:
            self._statuses.publish({**self._statuses.value, service: status})

    def set_all_not_serving(self) -> None:
        self._statuses.publish(dict.fromkeys(self._statuses.value, _Status.NOT_SERVING))

    async def Check(self, request: Any, context: Any) -> Any:
        status = self._statuses.value.get(request.service)
        if status is None:
            raise RpcError(
                grpc.StatusCode.NOT_FOUND,
                f"no service {request.service!r} here; known: {', '.join(sorted(self._statuses.value))}",
                reason="UNKNOWN_SERVICE",
            )
        return _Status(status=status)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        told, version = None, 0
        while True:
            statuses = await self._statuses.newer_than(version)
            version = self._statuses.version
            status = statuses.get(request.service, _Status.SERVICE_UNKNOWN)
            if status != told:
                told = status
                yield _Status(status=status)


def add_to_server(servicer: HealthServicer, server: grpc.aio.Server) -> None:
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
