"""Exceptions of handlers become statuses, for every kind of handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from muster import v1 as wire

from services.rpc.errors import FieldViolation, RpcError, describe
from tests.services.rpc.serving import Placeholder, Served, serving, unwritten_servicer


class DomainError(Exception):
    """Known to the table below."""


def table(error: Exception) -> RpcError | None:
    if isinstance(error, DomainError):
        return RpcError(grpc.StatusCode.NOT_FOUND, str(error), reason="DOMAIN")
    return None


class Failing(wire.RendezvousServiceServicer):
    """Fails in each kind of handler with one error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def GetDeployment(self, request: Any, context: Any) -> wire.GetDeploymentResponse:
        raise self._error

    async def WatchRoster(self, request: Any, context: Any) -> AsyncIterator[wire.WatchRosterResponse]:
        yield wire.WatchRosterResponse()
        raise self._error

    async def Register(self, request_iterator: Any, context: Any) -> AsyncIterator[wire.RegisterResponse]:
        async for _ in request_iterator:
            yield wire.RegisterResponse()
            raise self._error


async def fail_unary(served: Served) -> RpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.stub.GetDeployment(wire.GetDeploymentRequest())
    return describe(caught.value)


async def fail_server_stream(served: Served) -> RpcError:
    call = served.stub.WatchRoster(wire.WatchRosterRequest())
    assert await call.read() == wire.WatchRosterResponse()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    return describe(caught.value)


async def fail_bidi(served: Served) -> RpcError:
    call = served.stub.Register()
    await call.write(wire.RegisterRequest())
    assert await call.read() == wire.RegisterResponse()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    return describe(caught.value)


KINDS = [fail_unary, fail_server_stream, fail_bidi]


@pytest.mark.parametrize("fail", KINDS)
async def test_an_rpc_error_arrives_with_all_its_details(fail: Any) -> None:
    error = RpcError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "the queue is full – später",
        reason="QUEUE_FULL",
        metadata={"queue": "7"},
        violations=[FieldViolation("max_tokens", "is 9; at most 8")],
        retry_after_s=1.5,
    )
    async with serving(Failing(error)) as served:
        arrived = await fail(served)
    assert (arrived.code, arrived.message, arrived.reason) == (error.code, error.message, error.reason)
    assert (arrived.metadata, arrived.violations) == (error.metadata, error.violations)
    assert arrived.retry_after_s == 1.5


@pytest.mark.parametrize("fail", KINDS)
async def test_a_domain_exception_goes_through_the_tables(fail: Any) -> None:
    async with serving(Failing(DomainError("gone")), error_tables=[lambda error: None, table]) as served:
        arrived = await fail(served)
    assert (arrived.code, arrived.message, arrived.reason) == (grpc.StatusCode.NOT_FOUND, "gone", "DOMAIN")


@pytest.mark.parametrize("fail", KINDS)
async def test_an_unknown_exception_is_internal_and_logged(fail: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Failing(KeyError("secret")), error_tables=[table]) as served:
        arrived = await fail(served)
        assert await fail(served), "the server goes on"
    assert arrived.code is grpc.StatusCode.INTERNAL
    assert arrived.reason == "INTERNAL"
    assert "KeyError" in arrived.message
    assert "secret" not in arrived.message
    assert any(record.exc_info and "/muster.v1.RendezvousService/" in record.message for record in caplog.records)


async def test_a_method_that_is_not_written_is_unimplemented() -> None:
    async with serving(unwritten_servicer()) as served:
        arrived = await fail_unary(served)
        assert arrived.code is grpc.StatusCode.UNIMPLEMENTED
        assert "GetDeployment" in arrived.message
        call: Any = served.channel.unary_unary("/muster.v1.RendezvousService/NoSuch")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("method", ["GetDeployment", "WatchRoster"])
async def test_bytes_that_are_no_message_are_the_callers_fault(method: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Failing(DomainError())) as served:
        method_of_bytes: Any = served.channel.unary_stream(f"/muster.v1.RendezvousService/{method}")
        call = method_of_bytes(b"\xff\xfe stray")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    error = describe(caught.value)
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_MESSAGE")
    assert "got 8 bytes" in error.message
    ours = [record for record in caplog.records if record.name.startswith("services")]
    assert ours == [], "bytes of a stranger are no news"


class Holding(Placeholder):
    """Tells when a call's resources have been given back."""

    def __init__(self) -> None:
        self.released = asyncio.Event()

    async def WatchRoster(self, request: Any, context: Any) -> AsyncIterator[wire.WatchRosterResponse]:
        try:
            while True:
                yield wire.WatchRosterResponse(roster=wire.Roster(deployment_id="x" * 100_000))
        finally:
            self.released.set()


async def test_a_cancelled_stream_runs_its_finally_although_it_waits_in_a_write() -> None:
    servicer = Holding()
    async with serving(servicer) as served:
        call = served.stub.WatchRoster(wire.WatchRosterRequest())
        await call.read()
        call.cancel()
        async with asyncio.timeout(5):
            await servicer.released.wait()


async def test_many_violations_are_cut_to_what_every_client_accepts() -> None:
    violations = [FieldViolation(f"configuration[key{n}]", "y" * 400) for n in range(100)]
    error = RpcError(grpc.StatusCode.FAILED_PRECONDITION, "z" * 5000, reason="R", violations=violations)
    async with serving(Failing(error), make_channel=grpc.aio.insecure_channel) as served:
        arrived = await fail_unary(served)
    assert arrived.code is grpc.StatusCode.FAILED_PRECONDITION
    assert arrived.violations[0] == violations[0]
    assert 2 < len(arrived.violations) < 100
    assert arrived.violations[-1].description == f"and {101 - len(arrived.violations)} more fields"
