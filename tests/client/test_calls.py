"""Both clients against a gateway's gRPC port, fake engines behind it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import pytest
from muster import v1 as wire
from muster.client import (
    AsyncClient,
    CallCancelledError,
    Client,
    DeadlineExceededError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    UnimplementedError,
)

from gateway.grpc_front import InferenceServicer
from services.gateway.errors import gateway_error_table
from services.rpc.server import RpcServer
from tests.support.byte_tokenizer import END_OF_TEXT
from tests.support.fake_cluster import FakeCluster, fake_cluster
from tests.support.fake_engine import EngineScript, says
from tests.support.waiting import eventually

SERVICE = "muster.v1.InferenceService"


@contextlib.asynccontextmanager
async def gateway(*scripts: EngineScript) -> AsyncIterator[tuple[FakeCluster, str]]:
    async with fake_cluster(*scripts) as cluster:
        server = RpcServer(error_tables=[gateway_error_table])
        servicer = InferenceServicer(generator=cluster.backend.generator, cluster=cluster.backend.cluster)
        server.add(SERVICE, wire.add_InferenceServiceServicer_to_server, servicer)
        port = server.listen_tcp("127.0.0.1", 0, flags="--grpc-port")
        await server.start()
        server.set_serving(SERVICE, True)
        try:
            yield cluster, f"127.0.0.1:{port}"
        finally:
            await server.stop(0)


async def test_whole_answers() -> None:
    async with gateway(EngineScript(token=says("é, oui"), cached_tokens=2)) as (cluster, target):
        async with AsyncClient(target) as client:
            answer = await client.chat("Oui?", return_token_ids=True, logprobs=0, request_id="mine", temperature=0)
        assert (answer.text, answer.finish_reason, answer.request_id) == ("é, oui", "stop", "mine")
        assert answer.choices[0].token_ids == (*"é, oui".encode(), END_OF_TEXT)
        assert len(answer.choices[0].logprobs) == 8
        assert (answer.usage.completion_tokens, answer.usage.cached_tokens) == (8, 2)
        assert cluster.engines[0].submitted[0].sampling.temperature == 0


async def test_the_blocking_client_says_the_same() -> None:
    def talk(target: str) -> None:
        with Client(target) as client:
            assert client.chat([("user", "Oui?")]).text == "é, oui"
            two = client.complete("Oui?", n=2, seed=1)
            assert [choice.text for choice in two.choices] == ["é, oui"] * 2
            with client.complete_stream([1, 2, 3], stop="oui") as stream:
                assert "".join(delta.text for delta in stream) == "é, "
            assert stream.usage is not None
            assert client.detokenize(client.tokenize("ça")) == "ça"
            assert [model.served_model_names[0] for model in client.models()] == ["tiny"]
            with pytest.raises(InvalidRequestError) as caught:
                client.complete("x", top_p=3)
            (violation,) = caught.value.violations
            assert violation.field == "options.sampling.top_p"
            with pytest.raises(NotFoundError):
                client.chat("x", model="no-such-model")

    async with gateway(EngineScript(token=says("é, oui"))) as (_, target):
        await asyncio.to_thread(talk, target)


async def test_streams_and_what_ends_them() -> None:
    async with gateway(EngineScript(steps_left=3)) as (cluster, target), AsyncClient(target) as client:
        async with client.chat_stream("x", return_token_ids=True) as stream:
            async for delta in stream:
                assert delta.token_ids
                break
        await eventually(lambda: len(cluster.engines[0].aborted) == 1, "the request was aborted")
        with pytest.raises(DeadlineExceededError):
            await client.chat("x", timeout_s=0.2)
        await eventually(lambda: len(cluster.engines[0].aborted) == 2, "that one too")
        task = asyncio.create_task(client.chat("x"))
        await eventually(lambda: cluster.engines[0].num_live == 1, "the request runs")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: len(cluster.engines[0].aborted) == 3, "and the cancelled one")


async def test_a_cancelled_call_is_not_a_cancelled_task() -> None:
    """Whoever else cancels the call or closes the client: the reader's own task goes on, with an error of the call."""
    async with gateway(EngineScript(steps_left=3)) as (cluster, target), AsyncClient(target) as client:
        stream = client.chat_stream("x")
        reading = asyncio.create_task(stream.answer())
        await eventually(lambda: cluster.engines[0].num_live == 1, "the request runs")
        stream.cancel()
        with pytest.raises(CallCancelledError):
            await reading
        await eventually(lambda: len(cluster.engines[0].aborted) == 1, "the request was aborted")
        readers = [asyncio.create_task(client.chat("x")), asyncio.create_task(client.chat_stream("x").answer())]
        await eventually(lambda: cluster.engines[0].num_live == 2, "both run")
        await client.close()
        for reader in readers:
            with pytest.raises(CallCancelledError):
                await reader


async def test_no_time_at_all_is_a_deadline() -> None:
    async with gateway(EngineScript(token=says("x"))) as (_, target), AsyncClient(target, timeout_s=60) as client:
        with pytest.raises(DeadlineExceededError):
            await client.chat("x", timeout_s=0)


async def test_a_blocking_stream_that_is_left_is_aborted() -> None:
    def talk(target: str) -> None:
        with Client(target) as client, client.chat_stream("x") as stream:
            next(iter(stream))

    async with gateway(EngineScript(steps_left=3)) as (cluster, target):
        await asyncio.to_thread(talk, target)
        await eventually(lambda: cluster.engines[0].aborted, "the request was aborted")


async def test_rank_trace_and_hints() -> None:
    full = wire.Failed(code=grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], message="full", reason="QUEUE_FULL")
    full.retry_after.FromMilliseconds(1500)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with gateway(EngineScript(), EngineScript(fail=full)) as (cluster, target), AsyncClient(target) as client:
        await client.complete("x", rank=0, traceparent=trace, max_tokens=1)
        assert cluster.engines[0].traceparents == [trace]
        with pytest.raises(OverloadedError) as caught:
            await client.complete("x", rank=1)
        assert caught.value.retry_after_s is not None
        assert caught.value.retry_after_s > 0
        with pytest.raises(InvalidRequestError, match="valid ranks are 0, 1"):
            await client.complete("x", rank=7)


async def test_a_service_that_is_not_there() -> None:
    async with gateway() as (_, target), AsyncClient(head=target) as client:
        with pytest.raises(UnimplementedError):
            await client.roster()
        with pytest.raises(ValueError, match="knows no gateway"):
            await client.chat("x")
    async with AsyncClient(target) as client:
        with pytest.raises(ValueError, match="knows no head"):
            await client.load()
