"""What the head's AdminService does, and what it says about the rest."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import grpc
import pytest
from muster import v1 as wire

from services.rpc.errors import describe
from tests.services.head.harness import running_head


@pytest.fixture(autouse=True)
def _same_level_afterwards() -> Iterator[None]:
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


@pytest.mark.parametrize(
    "operation",
    [
        "ResetPrefixCache",
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


async def test_the_head_sets_its_own_log_level_and_says_that_ranks_were_not_asked() -> None:
    async with running_head() as head:
        answer = await head.admin.SetLogLevel(wire.SetLogLevelRequest(level=wire.LOG_LEVEL_ERROR))
        assert logging.getLogger().level == logging.ERROR
        assert [result.rank for result in answer.results] == [0, 1, 2]
        assert all(result.code == grpc.StatusCode.UNIMPLEMENTED.value[0] for result in answer.results)
        one = wire.RankSelector(ranks=[2, 2])
        answer = await head.admin.SetLogLevel(wire.SetLogLevelRequest(selector=one, level=wire.LOG_LEVEL_INFO))
        assert [result.rank for result in answer.results] == [2]
        assert logging.getLogger().level == logging.INFO


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
