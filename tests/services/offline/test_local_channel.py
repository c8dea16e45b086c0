"""Stubs over servicers of the same process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from muster import v1 as wire

from services.offline.local_channel import LocalChannel
from services.rpc.errors import RpcError


class Servicer(wire.EngineServiceServicer):
    def __init__(self) -> None:
        self.over: list[str] = []

    async def GetModel(self, request: wire.GetModelRequest, context: Any) -> wire.GetModelResponse:
        raise RpcError(grpc.StatusCode.UNAVAILABLE, "still loading", reason="ENGINE_LOADING")

    async def GetTokenizer(
        self, request: wire.GetTokenizerRequest, context: Any
    ) -> AsyncIterator[wire.GetTokenizerResponse]:
        for data in (b"a", b"b"):
            yield wire.GetTokenizerResponse(data=data)
        raise ValueError("broken")

    async def Attach(self, request_iterator: Any, context: Any) -> AsyncIterator[wire.AttachResponse]:
        context.add_done_callback(lambda _: self.over.append("callback"))
        try:
            async for frame in request_iterator:
                yield wire.AttachResponse(outputs=wire.StepOutputs(step=frame.submit.handle))
        finally:
            self.over.append("closed")


def table(error: Exception) -> RpcError | None:
    return RpcError(grpc.StatusCode.INTERNAL, str(error), reason="X") if isinstance(error, ValueError) else None


def servicer_of_a_part() -> Servicer:
    """The methods it lacks are the generated placeholders."""
    return Servicer()  # type: ignore[abstract]


def stub_of(servicer: Servicer) -> tuple[Any, LocalChannel]:
    channel = LocalChannel({"muster.v1.EngineService": servicer}, (table,))
    as_channel: Any = channel
    return wire.EngineServiceStub(as_channel), channel


async def test_a_stream_in_both_directions_until_the_caller_has_said_all() -> None:
    servicer = servicer_of_a_part()
    stub, channel = stub_of(servicer)
    call = stub.Attach()
    for handle in (1, 2):
        await call.write(wire.AttachRequest(submit=wire.Submit(handle=handle)))
        assert (await call.read()).outputs.step == handle
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert sorted(servicer.over) == ["callback", "closed"]
    await channel.close()


async def test_cancelling_ends_the_servicer_also_while_it_is_read() -> None:
    servicer = servicer_of_a_part()
    stub, channel = stub_of(servicer)
    call = stub.Attach()
    reading = asyncio.create_task(call.read())
    await asyncio.sleep(0.01)  # it reads
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert call.cancel()
    assert not call.cancel()
    await channel.close()
    assert sorted(servicer.over) == ["callback", "closed"]


async def test_closing_the_channel_ends_what_is_open() -> None:
    servicer = servicer_of_a_part()
    stub, channel = stub_of(servicer)
    call = stub.Attach()
    await call.write(wire.AttachRequest(submit=wire.Submit(handle=1)))
    await call.read()
    await channel.close()
    assert sorted(servicer.over) == ["callback", "closed"]


async def test_errors_arrive_as_over_a_network() -> None:
    stub, _ = stub_of(servicer_of_a_part())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetModel(wire.GetModelRequest(), timeout=3)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, "still loading")
    chunks = stub.GetTokenizer(wire.GetTokenizerRequest())
    assert [(await anext(chunks)).data for _ in range(2)] == [b"a", b"b"]
    with pytest.raises(grpc.aio.AioRpcError, match="broken"):
        await anext(chunks)
