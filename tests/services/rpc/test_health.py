"""Health checks over a real port."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from muster import v1 as wire

from services.rpc.errors import describe
from services.rpc.server import RpcServer
from tests.services.rpc.serving import SERVICE, serving, unwritten_servicer
from tests.support.certificates import TestAuthority

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


async def test_a_health_port_answers_without_tls_and_tokens_and_nothing_else(tmp_path: Path) -> None:
    """For probes that cannot speak TLS."""
    token = tmp_path / "token"
    token.write_text("a-token-of-many-characters\n")
    security = replace(TestAuthority(tmp_path / "ours").node(), cluster_token_file=token)
    server = RpcServer(security=security)
    server.add(SERVICE, wire.add_RendezvousServiceServicer_to_server, unwritten_servicer())
    server.listen_tcp("127.0.0.1", 0, flags="--port")
    port = server.listen_health("127.0.0.1", 0, flags="--health-port")
    await server.start()
    server.set_serving("", True)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            assert (await stub.Check(request(""))).status == Status.SERVING
            assert (await stub.Check(request(SERVICE))).status == Status.NOT_SERVING
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Check(request("no.such.Service"))
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await wire.RendezvousServiceStub(channel).GetDeployment(wire.GetDeploymentRequest())
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    finally:
        await server.stop(0)
