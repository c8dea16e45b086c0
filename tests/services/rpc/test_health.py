"""Health checks over a real port."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.rpc.errors import describe
from tests.services.rpc.serving import SERVICE, serving, unwritten_servicer

Status = health_pb2.HealthCheckResponse


def request(service: str) -> Any:
    return health_pb2.HealthCheckRequest(service=service)


async def test_everything_is_not_serving_until_set() -> None:
    async with serving(unwritten_servicer()) as served:
        stub = health_pb2_grpc.HealthStub(served.channel)
        for name in ("", SERVICE):
            assert (await stub.Check(request(name))).status == Status.NOT_SERVING
            served.server.set_serving(name, True)
            assert (await stub.Check(request(name))).status == Status.SERVING


async def test_an_unknown_service_is_not_found() -> None:
    async with serving(unwritten_servicer()) as served:
        stub = health_pb2_grpc.HealthStub(served.channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(request("no.such.Service"))
        error = describe(caught.value)
        assert error.code is grpc.StatusCode.NOT_FOUND
        assert SERVICE in error.message
        watch = stub.Watch(request("no.such.Service"))
        assert (await watch.read()).status == Status.SERVICE_UNKNOWN
        served.server.set_serving("no.such.Service", True)
        assert (await watch.read()).status == Status.SERVING
        watch.cancel()


async def test_watchers_hear_every_change_also_after_another_one_left() -> None:
    async with serving(unwritten_servicer()) as served, asyncio.timeout(10):
        stub = health_pb2_grpc.HealthStub(served.channel)
        leaver, stayer = stub.Watch(request(SERVICE)), stub.Watch(request(SERVICE))
        assert (await leaver.read()).status == (await stayer.read()).status == Status.NOT_SERVING
        leaver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaver.read()
        served.server.set_serving("another", True)  # nothing that this watcher asked for
        served.server.set_serving(SERVICE, True)
        assert (await stayer.read()).status == Status.SERVING
        served.server.set_all_not_serving()
        assert (await stayer.read()).status == Status.NOT_SERVING
        stayer.cancel()
