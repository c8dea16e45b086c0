"""What one caller may take of a port: connections, streams, message sizes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from muster import v1 as wire

from benchmarks.attacks import http2
from services.rpc import open_files
from services.rpc.channels import dial
from tests.services.rpc.serving import SERVICE, Placeholder, serving

PATH = f"/{SERVICE}/GetDeployment"
TIMEOUT_S = 10.0
SETTINGS_MAX_CONCURRENT_STREAMS = 3


class Deployment(Placeholder):
    def __init__(self) -> None:
        self.num_calls = 0

    async def GetDeployment(self, request: Any, context: Any) -> wire.GetDeploymentResponse:
        self.num_calls += 1
        return wire.GetDeploymentResponse(product_version="seen")


@pytest.mark.parametrize(("files", "most"), [(3, None), (3, 4), (30, 3)])
async def test_connections_beyond_the_limit_are_closed_and_those_there_go_on(
    files: int, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "num_connections", lambda limit, share=1.0: files)
    async with serving(Deployment(), most_connections=most) as served, asyncio.timeout(TIMEOUT_S):
        await served.stub.GetDeployment(wire.GetDeploymentRequest())
        crowd = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(6)]
        for _, writer in crowd:
            writer.write(http2.PREFACE + http2.settings())
        closed = 0
        for reader, _ in crowd:
            try:
                closed += await reader.read(1) == b""  # one that is open hears the server's settings
            except ConnectionResetError:
                closed += 1
        assert closed == 4
        answer = await served.stub.GetDeployment(wire.GetDeploymentRequest())
        assert answer.product_version == "seen"
        for _, writer in crowd:
            writer.transport.abort()


async def test_a_port_says_how_many_streams_it_takes() -> None:
    async with serving(Deployment()) as served, asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(http2.PREFACE + http2.settings())
        header = await reader.readexactly(9)
        assert header[3] == http2.SETTINGS
        payload = await reader.readexactly(int.from_bytes(header[:3], "big"))
        pairs = {
            int.from_bytes(payload[at : at + 2], "big"): int.from_bytes(payload[at + 2 : at + 6], "big")
            for at in range(0, len(payload), 6)
        }
        writer.transport.abort()
    assert pairs[SETTINGS_MAX_CONCURRENT_STREAMS] == 1024


async def test_a_message_of_100_mb_is_refused_with_its_size_and_the_limit() -> None:
    async with serving(Deployment()) as served:
        call: Any = served.channel.unary_unary(PATH)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(bytes(100 << 20), timeout=TIMEOUT_S)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "104857600" in str(caught.value.details())
        assert (await served.stub.GetDeployment(wire.GetDeploymentRequest())).product_version == "seen"


async def nothing() -> AsyncIterator[bytes]:
    return
    yield b""


async def silence() -> AsyncIterator[bytes]:
    await asyncio.sleep(3600)
    yield b""


@pytest.mark.parametrize("method", ["GetDeployment", "WatchRoster"])
async def test_a_call_without_its_message_ends_and_says_why(method: str) -> None:
    async with serving(Deployment()) as served:
        start: Any = served.channel.stream_stream(f"/{SERVICE}/{method}")
        call = start(nothing(), timeout=TIMEOUT_S)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "takes one message" in str(caught.value.details())


async def test_a_call_whose_message_never_comes_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.rpc.interceptor._MESSAGE_TIMEOUT_S", 0.05)
    async with serving(Deployment()) as served:
        start: Any = served.channel.stream_stream(PATH)
        call = start(silence(), timeout=TIMEOUT_S)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert "got no message within 0.05 s" in str(caught.value.details())


@pytest.mark.parametrize("path", ["/\udcff\udcfe", "no slash", "/", "", "/a/b/c/d", "/x" * 2000])
async def test_a_path_that_makes_no_sense_ends_its_own_call_alone(path: str) -> None:
    async with serving(Deployment()) as served, asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(http2.PREFACE + http2.settings() + http2.call(1, path, b""))
        await reader.read(1000)
        writer.transport.abort()
        # On a connection of its own, made after the other's call was taken.
        async with dial(f"127.0.0.1:{served.port}") as channel:
            answer = await wire.RendezvousServiceStub(channel).GetDeployment(wire.GetDeploymentRequest())
        assert answer.product_version == "seen"


async def test_a_process_whose_server_failed_ends(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    ended = asyncio.Event()
    monkeypatch.setattr("services.rpc.server._end_process", ended.set)

    async def fail(self: Any, timeout: float | None = None) -> bool:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    monkeypatch.setattr("grpc.aio._server.Server.wait_for_termination", fail)
    async with serving(Deployment()):
        await asyncio.wait_for(ended.wait(), TIMEOUT_S)
    assert "the gRPC server has failed" in caplog.text
