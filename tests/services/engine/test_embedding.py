"""Embed over a real gRPC server and a real engine thread; the forward pass is scripted."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from muster import v1 as wire

from services.rpc.errors import describe
from tests.services.engine.conftest import EngineUnderTest
from tests.services.engine.scripted_runner import BREAKING_TOKEN_ID, FACTS, expected_embedding
from tests.support.waiting import eventually


def request_of(*inputs: list[int], **fields: Any) -> wire.EmbedRequest:
    return wire.EmbedRequest(inputs=[wire.TokenSequence(token_ids=tokens) for tokens in inputs], **fields)


async def test_vectors_come_in_the_order_of_the_inputs(engine: EngineUnderTest) -> None:
    inputs = [[1, 2], [3], [4, 5, 6]]
    response = await engine.stub.Embed(request_of(*inputs))
    assert [tuple(embedding.values) for embedding in response.embeddings] == [expected_embedding(i) for i in inputs]
    await engine.idle()


async def test_the_model_tells_how_long_vectors_are(engine: EngineUnderTest) -> None:
    answer = await engine.stub.GetModel(wire.GetModelRequest())
    assert answer.model.embedding_size == FACTS.embedding_size


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (request_of(), "inputs"),
        (request_of(*[[1]] * 257), "inputs"),
        (request_of([1], []), "inputs[1].token_ids"),
        (request_of([1], [1000]), "inputs[1].token_ids[0]"),
        (request_of([1] * 4097), "inputs[0].token_ids"),
        (request_of([1], dimensions=5), "dimensions"),
        (request_of([1], dimensions=0), "dimensions"),
        (request_of([1], pooling=7), "pooling"),
        (request_of([1], cache_salt="x" * 513), "cache_salt"),
    ],
)
async def test_wrong_input_names_the_field(engine: EngineUnderTest, request_: wire.EmbedRequest, field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await engine.stub.Embed(request_)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert [violation.field for violation in describe(caught.value).violations] == [field]
    await engine.idle()


async def test_one_broken_input_fails_the_call_and_nothing_else(engine: EngineUnderTest) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await engine.stub.Embed(request_of([1], [BREAKING_TOKEN_ID]))
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert describe(caught.value).reason == "ENGINE_STEP_FAILED"
    await engine.idle()
    assert (await engine.stub.Embed(request_of([1]))).embeddings


async def test_a_cancelled_call_ends_its_inputs(engine: EngineUnderTest) -> None:
    engine.runner.gate.clear()
    call = engine.stub.Embed(request_of([1], [2], [3]))
    waiting = asyncio.ensure_future(call)
    await eventually(lambda: engine.intake.num_live == 3, "the inputs are live")
    call.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await eventually(lambda: engine.intake.num_live == 0, "they ended")
    engine.runner.gate.set()
    await engine.idle()


async def test_while_loading_it_is_unavailable(loading_engine: EngineUnderTest) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await loading_engine.stub.Embed(request_of([1]))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert describe(caught.value).retry_after_s
