"""The smg router's service over a real port, with its own stubs as the client and fake engines behind."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import zipfile
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
from muster import v1 as wire
from smg_grpc_proto import vllm_engine_pb2 as smg
from smg_grpc_proto import vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from gateway.smg.servicer import SERVICE_NAME, SmgServicer, add_to_server
from services.gateway.errors import gateway_error_table
from services.rpc.channels import dial
from services.rpc.errors import RpcError, describe
from services.rpc.server import RpcServer
from tests.support.byte_tokenizer import END_OF_TEXT
from tests.support.fake_cluster import FakeCluster, fake_cluster
from tests.support.fake_engine import EngineScript, says
from tests.support.waiting import eventually


@contextlib.asynccontextmanager
async def client_of(
    *scripts: EngineScript, scope: Sequence[int] | None = None, trouble: str = ""
) -> AsyncIterator[tuple[FakeCluster, Any]]:
    async def flush_cache() -> str:
        return trouble

    async with fake_cluster(*scripts, scope=scope) as cluster:
        backend = cluster.backend
        server = RpcServer(error_tables=[gateway_error_table])
        servicer = SmgServicer(
            generator=backend.generator,
            embedder=backend.embedder,
            cluster=backend.cluster,
            flush_cache=flush_cache,
            product_version="1.2.3",
        )
        server.add(SERVICE_NAME, add_to_server, servicer)
        port = server.listen_tcp("127.0.0.1", 0, flags="--grpc-port")
        await server.start()
        channel = dial(f"127.0.0.1:{port}")
        try:
            yield cluster, vllm_engine_pb2_grpc.VllmEngineStub(channel)
            await cluster.settled()
        finally:
            await channel.close()
            await server.stop(1)


def ask(text: str = "hello", *, stream: bool = True, request_id: str = "r", **fields: Any) -> Any:
    top = {name: fields.pop(name) for name in ("data_parallel_rank", "media_refs") if name in fields}
    always = {"top_p": 1.0, "repetition_penalty": 1.0, "temperature": 0.0, "seed": 3, "skip_special_tokens": True}
    return smg.GenerateRequest(
        request_id=request_id,
        tokenized=smg.TokenizedInput(input_ids=text.encode()),
        sampling_params=smg.SamplingParams(**{**always, **fields}),
        stream=stream,
        **top,
    )


async def refused(call: Any) -> RpcError:
    async def finish() -> None:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await finish()
    return describe(caught.value)


async def test_a_stream_has_deltas_and_one_complete() -> None:
    async with client_of(EngineScript(token=says("Paris"), cached_tokens=2)) as (_, stub):
        responses = [response async for response in stub.Generate(ask(logprobs=1, prompt_logprobs=0))]
    *chunks, last = responses
    assert all(chunk.WhichOneof("response") == "chunk" for chunk in chunks)
    assert [i for chunk in chunks for i in chunk.chunk.token_ids] == [*b"Paris", END_OF_TEXT]
    assert [len(c.chunk.output_logprobs.token_logprobs) for c in chunks] == [len(c.chunk.token_ids) for c in chunks]
    assert chunks[0].chunk.input_logprobs.token_ids == list(b"hello")
    assert not any(chunk.chunk.HasField("input_logprobs") for chunk in chunks[1:])
    complete = last.complete
    assert (complete.finish_reason, complete.prompt_tokens, complete.cached_tokens) == ("stop", 5, 2)
    assert complete.output_ids == [*b"Paris", END_OF_TEXT]
    assert complete.completion_tokens == 6
    assert complete.WhichOneof("matched_stop") is None


async def test_without_stream_everything_comes_in_the_end_and_per_choice() -> None:
    async with client_of(EngineScript()) as (_, stub):
        request = ask(stream=False, n=2, max_tokens=4, logprobs=1)
        completes = [response.complete async for response in stub.Generate(request)]
    assert sorted(complete.index for complete in completes) == [0, 1]
    assert all(complete.finish_reason == "length" for complete in completes)
    assert all(len(complete.output_ids) == complete.completion_tokens == 4 for complete in completes)
    assert all(len(complete.output_logprobs.token_ids) == 4 for complete in completes)


async def test_a_stop_string_ends_the_answer_where_it_is_complete() -> None:
    async with client_of(EngineScript(token=says("one STOP two"))) as (cluster, stub):
        responses = [response async for response in stub.Generate(ask(stop=["STOP"]))]
        await eventually(lambda: cluster.engines[0].num_live == 0, "the engine was told")
    complete = responses[-1].complete
    assert (complete.finish_reason, complete.matched_stop_str) == ("stop", "STOP")
    assert complete.output_ids == list(b"one STOP")


async def test_a_stop_token_is_named() -> None:
    async with client_of(EngineScript(token=says("abc"))) as (_, stub):
        responses = [response async for response in stub.Generate(ask(stop_token_ids=[ord("b")]))]
    assert responses[-1].complete.matched_token_id == ord("b")


async def test_ranks_count_from_zero_within_the_scope() -> None:
    async with client_of(EngineScript(), EngineScript(), EngineScript(), scope=(1, 2)) as (cluster, stub):
        assert (await stub.GetServerInfo(smg.GetServerInfoRequest())).data_parallel_size == 2
        for _ in range(3):
            async for _ in stub.Generate(ask(max_tokens=2, data_parallel_rank=1)):
                pass
        assert [len(engine.submitted) for engine in cluster.engines] == [0, 0, 3]
        error = await refused(stub.Generate(ask(data_parallel_rank=2)))
        assert error.code is grpc.StatusCode.INVALID_ARGUMENT
        assert error.message == "data_parallel_rank is 2: expected 0 to 1"


async def test_the_rank_may_come_as_metadata_and_the_trace_does() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    metadata = (("x-data-parallel-rank", "1"), ("traceparent", trace))
    async with client_of(EngineScript(), EngineScript()) as (cluster, stub):
        for _ in range(2):
            async for _ in stub.Generate(ask(max_tokens=2), metadata=metadata):
                pass
        assert len(cluster.engines[1].submitted) == 2
        assert cluster.engines[1].traceparents == [trace] * 2


async def test_abort_by_id_ends_the_stream_and_the_engines_work() -> None:
    async with client_of(EngineScript(steps_left=3)) as (cluster, stub):
        call = stub.Generate(ask(request_id="mine"))
        chunk = await call.read()
        assert chunk.WhichOneof("response") == "chunk"
        await stub.Abort(smg.AbortRequest(request_ids=["mine", "unknown"]))
        async with asyncio.timeout(10):
            while (response := await call.read()).WhichOneof("response") == "chunk":
                pass
            assert await call.read() == grpc.aio.EOF
        assert response.complete.finish_reason == "abort"
        await eventually(lambda: cluster.engines[0].aborted, "the engine was told")
        await stub.Abort(smg.AbortRequest(request_ids=["mine"]))  # it ended: nothing to do


async def test_a_call_that_is_cancelled_is_aborted() -> None:
    async with client_of(EngineScript(steps_left=3)) as (cluster, stub):
        call = stub.Generate(ask(stream=False))
        await eventually(lambda: cluster.engines[0].num_live == 1, "the request runs")
        call.cancel()
        await eventually(lambda: cluster.engines[0].aborted, "the engine was told")


async def test_health_and_facts() -> None:
    async with client_of(EngineScript()) as (cluster, stub):
        assert (await stub.HealthCheck(smg.HealthCheckRequest())).healthy
        info = await stub.GetModelInfo(smg.GetModelInfoRequest())
        assert (info.served_model_name, info.max_context_length, info.is_generation) == ("tiny", 4096, True)
        assert json.loads(info.default_sampling_params_json) == {}
        cluster.head.set_ranks(cluster.engines[0].roster_entry(state=wire.RANK_STATE_LOST))
        await eventually(lambda: not cluster.backend.cluster.ready, "the rank is lost")
        health = await stub.HealthCheck(smg.HealthCheckRequest())
        assert not health.healthy
        assert health.message == "no rank serves"


async def test_tokenizer_files() -> None:
    async with client_of(EngineScript()) as (_, stub):
        chunks = [chunk async for chunk in stub.GetTokenizer(common_pb2.GetTokenizerRequest())]
    data = b"".join(chunk.data for chunk in chunks)
    assert [chunk.sha256 for chunk in chunks] == [""] * (len(chunks) - 1) + [hashlib.sha256(data).hexdigest()]
    with zipfile.ZipFile(io.BytesIO(data)) as files:
        assert {"tokenizer.json", "tokenizer_config.json", "config.json"} <= set(files.namelist())


async def test_loads_flush_and_embeddings() -> None:
    async with client_of(EngineScript(), EngineScript(), trouble="rank 1: busy") as (cluster, stub):
        for rank in (0, 1):
            cluster.head.set_load(rank, running=rank)
        await eventually(lambda: len(cluster.backend.cluster.rank_loads()) == 2, "both loads are known")
        loads = await stub.GetLoads(smg.GetLoadsRequest(include=["core"]))
        assert loads.version == "1.2.3"
        assert [(row.dp_rank, row.num_running_reqs) for row in loads.loads] == [(0, 0), (1, 1)]
        only = await stub.GetLoads(smg.GetLoadsRequest(dp_rank=1))
        assert [row.dp_rank for row in only.loads] == [1]
        flushed = await stub.FlushCache(common_pb2.FlushCacheRequest())
        assert (flushed.success, flushed.message) == (False, "rank 1: busy")
        tokenized = smg.TokenizedInput(input_ids=[1, 2, 3])
        embedded = await stub.Embed(smg.EmbedRequest(request_id="e", tokenized=tokenized))
        assert embedded.embedding[:2] == [3.0, 6.0]
        assert (embedded.prompt_tokens, embedded.embedding_dim) == (3, 4)


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"logprobs": -1}, "INVALID_ARGUMENT", "sampling_params.logprobs is -1: expected 0 to 20"),
        ({"top_p": 3.0}, "INVALID_ARGUMENT", "top_p is 3.0: expected 0 to 1"),
        ({"structural_tag": "x"}, "UNIMPLEMENTED", "structural_tag is set"),
        ({"truncate_prompt_tokens": 0}, "INVALID_ARGUMENT", "truncate_prompt_tokens is 0"),
        ({"logit_bias": {-1: 1.0}}, "INVALID_ARGUMENT", "logit_bias is about token id -1"),
        ({"media_refs": smg.MediaRefs()}, "UNIMPLEMENTED", "media_refs is set"),
    ],
)
async def test_what_cannot_be_done_is_refused(fields: dict[str, Any], code: str, words: str) -> None:
    async with client_of(EngineScript()) as (_, stub):
        error = await refused(stub.Generate(ask(**fields)))
        assert (error.code.name, words in error.message) == (code, True), error.message


async def test_what_smg_can_do_without_is_unimplemented() -> None:
    async with client_of(EngineScript()) as (_, stub):
        for call in (
            stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest()),
            stub.StartProfile(common_pb2.StartProfileRequest()),
        ):
            assert (await refused(call)).code is grpc.StatusCode.UNIMPLEMENTED


async def test_text_is_tokenized_and_prompts_are_truncated() -> None:
    async with client_of(EngineScript()) as (cluster, stub):
        request = ask(max_tokens=1, truncate_prompt_tokens=3)
        request.text = "abcdef"
        async for _ in stub.Generate(request):
            pass
        assert cluster.engines[0].submitted[0].prompt_token_ids == list(b"def")
