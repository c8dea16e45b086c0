"""What the head's AdminService does, and what it says about the rest."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from muster import v1 as wire

from services.rpc.errors import RpcError, describe
from services.rpc.server import RpcServer
from tests.services.head.factories import ready
from tests.services.head.harness import Head, running_head


@pytest.fixture(autouse=True)
def _same_level_afterwards() -> Iterator[None]:
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


@pytest.mark.parametrize(
    "operation",
    [
        "Pause",
        "Resume",
        "Sleep",
        "Wake",
        "StartProfile",
        "StopProfile",
    ],
)
async def test_operations_on_ranks_say_what_is_not_there_yet(operation: str) -> None:
    async with running_head() as head:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(head.admin, operation)(getattr(wire, f"{operation}Request")())
        error = describe(caught.value)
        assert (error.code, error.reason) == (grpc.StatusCode.UNIMPLEMENTED, "OPERATION_UNIMPLEMENTED")
        assert error.metadata == {"operation": operation}
        assert f"{operation} is not there yet" in error.message


class AskedEngine(wire.AdminServiceServicer):
    """An engine's AdminService that does what the test says."""

    def __init__(self, rank: int, *, error: RpcError | None = None, answers_for: int | None = None) -> None:
        self.asked: list[str] = []
        self._rank = rank if answers_for is None else answers_for
        self._error = error

    async def ResetPrefixCache(
        self, request: wire.ResetPrefixCacheRequest, context: Any
    ) -> wire.ResetPrefixCacheResponse:
        return wire.ResetPrefixCacheResponse(results=[self._answer("reset")])

    async def SetLogLevel(self, request: wire.SetLogLevelRequest, context: Any) -> wire.SetLogLevelResponse:
        return wire.SetLogLevelResponse(results=[self._answer(wire.LogLevel.Name(request.level))])

    def _answer(self, what: str) -> wire.RankResult:
        self.asked.append(what)
        if self._error is not None:
            raise self._error
        return wire.RankResult(rank=self._rank, message=f"did {what}")


def asked(rank: int, **options: Any) -> AskedEngine:
    """The operations it lacks are the generated placeholders."""
    return AskedEngine(rank, **options)  # type: ignore[abstract]


@contextlib.asynccontextmanager
async def engines_of(head: Head, *engines: AskedEngine) -> AsyncIterator[None]:
    """Registers the engines as ranks 0, 1, … of the head."""
    async with contextlib.AsyncExitStack() as running:
        for rank, engine in enumerate(engines):
            server = RpcServer()
            server.add("muster.v1.AdminService", wire.add_AdminServiceServicer_to_server, engine)
            port = server.listen_tcp("127.0.0.1", 0, flags="test")
            await server.start()
            running.push_async_callback(server.stop, 0)
            registered = head.engine()
            running.callback(registered.call.cancel)
            await registered.join(rank=rank, pid=100 + rank)
            await registered.send(ready=ready(targets=("unix:/nowhere/e.sock", f"127.0.0.1:{port}")))
            await registered.receive()
        yield


async def test_what_engines_do_for_themselves_is_passed_on_with_a_result_per_rank() -> None:
    error = RpcError(grpc.StatusCode.UNAVAILABLE, "still loading", reason="ENGINE_LOADING")
    async with running_head() as head:
        engines = [asked(0), asked(1, error=error)]
        async with engines_of(head, *engines):
            results = (await head.admin.ResetPrefixCache(wire.ResetPrefixCacheRequest())).results
            assert [(result.rank, result.code) for result in results] == [(0, 0), (1, 14), (2, 9)]
            assert results[0].message == "did reset"
            assert results[1].message.endswith(": still loading")
            assert results[2].message == "there is no engine to ask: missing: no engine has registered"
            one = wire.RankSelector(ranks=[0, 0])
            request = wire.SetLogLevelRequest(selector=one, level=wire.LOG_LEVEL_ERROR)
            (result,) = (await head.admin.SetLogLevel(request)).results
            assert (result.rank, result.message) == (0, "did LOG_LEVEL_ERROR")
            assert logging.getLogger().level == logging.ERROR  # the head's own
        assert [engine.asked for engine in engines] == [["reset", "LOG_LEVEL_ERROR"], ["reset"]]


async def test_an_engine_that_answers_for_another_rank_is_not_believed() -> None:
    async with running_head() as head, engines_of(head, asked(0, answers_for=1)):
        one = wire.RankSelector(ranks=[0])
        (result,) = (await head.admin.ResetPrefixCache(wire.ResetPrefixCacheRequest(selector=one))).results
        assert (result.rank, result.code) == (0, grpc.StatusCode.INTERNAL.value[0])


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (wire.SetLogLevelRequest(), "level"),
        (
            wire.SetLogLevelRequest(level=wire.LOG_LEVEL_INFO, selector=wire.RankSelector(ranks=[3])),
            "selector.ranks",
        ),
    ],
)
async def test_wrong_fields_are_named_and_change_nothing(request_: wire.SetLogLevelRequest, field: str) -> None:
    level = logging.getLogger().level
    async with running_head() as head:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await head.admin.SetLogLevel(request_)
    assert describe(caught.value).violations[0].field == field
    assert logging.getLogger().level == level
