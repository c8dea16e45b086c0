"""InferenceService end to end: a gRPC client, the gateway's server, fake engines behind it."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from muster import v1 as wire

from gateway.grpc_front import InferenceServicer
from services.gateway.errors import gateway_error_table
from services.rpc.channels import dial
from services.rpc.errors import RpcError, describe
from services.rpc.server import RpcServer
from tests.support.byte_tokenizer import END_OF_TEXT, TURN_END, TURN_START
from tests.support.fake_cluster import FakeCluster, fake_cluster
from tests.support.fake_engine import EngineScript, echo, says
from tests.support.waiting import eventually

SERVICE = "muster.v1.InferenceService"


@contextlib.asynccontextmanager
async def client_of(*scripts: EngineScript) -> AsyncIterator[tuple[FakeCluster, Any]]:
    async with fake_cluster(*scripts) as cluster:
        server = RpcServer(error_tables=[gateway_error_table])
        servicer = InferenceServicer(generator=cluster.backend.generator, cluster=cluster.backend.cluster)
        server.add(SERVICE, wire.add_InferenceServiceServicer_to_server, servicer)
        port = server.listen_tcp("127.0.0.1", 0, flags="--grpc-port")
        await server.start()
        channel = dial(f"127.0.0.1:{port}")
        try:
            yield cluster, wire.InferenceServiceStub(channel)
        finally:
            await channel.close()
            await server.stop(1)


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


async def test_complete_streams_text_and_ends_with_usage() -> None:
    async with client_of(EngineScript(token=says("é, oui"))) as (_, stub):
        options = wire.GenerationOptions(return_token_ids=True)
        request = wire.CompleteRequest(model="tiny", text="Oui?", options=options)
        responses = [response async for response in stub.Complete(request, metadata=(("x-request-id", "mine"),))]
        assert {response.request_id for response in responses} == {"mine"}
        assert "".join(response.delta.text for response in responses) == "é, oui"
        assert [i for response in responses for i in response.delta.token_ids] == [*"é, oui".encode(), END_OF_TEXT]
        assert responses[-2].delta.finish_reason == wire.FINISH_REASON_STOP
        assert not responses[-1].HasField("delta")
        assert (responses[-1].usage.prompt_tokens, responses[-1].usage.completion_tokens) == (4, 8)


async def test_a_completion_is_short_by_default_and_takes_ids() -> None:
    async with client_of(EngineScript()) as (cluster, stub):
        request = wire.CompleteRequest(token_ids=wire.TokenSequence(token_ids=[1, 2, 3]))
        responses = [response async for response in stub.Complete(request)]
        assert responses[-1].usage.completion_tokens == 16
        assert cluster.engines[0].submitted[0].prompt_token_ids == [1, 2, 3]


async def test_chat_goes_through_the_template() -> None:
    async with client_of(EngineScript(token=says("Hi!"))) as (cluster, stub):
        messages = [wire.ChatMessage(role="user", content="<|done|>")]
        responses = [response async for response in stub.Chat(wire.ChatRequest(messages=messages))]
        assert "".join(response.delta.text for response in responses) == "Hi!"
        submitted = cluster.engines[0].submitted[0]
        expected = [TURN_START, *b"user\n", *b"<|done|>", TURN_END, 10, TURN_START, *b"assistant\n"]
        assert submitted.prompt_token_ids == expected
        assert submitted.stop.max_tokens == 4096 - len(expected)


async def test_choices_interleave_under_their_index() -> None:
    async with client_of(EngineScript(token=echo)) as (_, stub):
        options = wire.GenerationOptions(n=3, stop_strings=["c"])
        texts = ["", "", ""]
        ends = []
        async for response in stub.Complete(wire.CompleteRequest(text="abcd", options=options)):
            texts[response.delta.index] += response.delta.text
            if response.delta.finish_reason:
                ends.append((response.delta.index, response.delta.stop_string))
        assert texts == ["ab", "ab", "ab"]
        assert sorted(ends) == [(0, "c"), (1, "c"), (2, "c")]


async def test_logprobs_come_as_text_and_bytes() -> None:
    async with client_of(EngineScript(token=says("é"), logprob=-0.25)) as (_, stub):
        options = wire.GenerationOptions(logprobs=0)
        responses = [response async for response in stub.Complete(wire.CompleteRequest(text="x", options=options))]
        entries = [entry for response in responses for entry in response.delta.logprobs]
        assert b"".join(entry.bytes for entry in entries[:2]) == "é".encode()
        assert {entry.logprob for entry in entries} == {-0.25}


async def test_the_rank_of_the_metadata_wins_over_the_field() -> None:
    async with client_of(EngineScript(), EngineScript()) as (cluster, stub):
        request = wire.CompleteRequest(text="x", options=wire.GenerationOptions(rank=0))
        async for _ in stub.Complete(request, metadata=(("x-data-parallel-rank", "1"),)):
            pass
        async for _ in stub.Complete(request):
            pass
        assert [len(engine.submitted) for engine in cluster.engines] == [1, 1]


@pytest.mark.parametrize(
    "metadata",
    [
        (("x-data-parallel-rank", "two"),),
        (("x-data-parallel-rank", "-1"),),
        (("x-data-parallel-rank", "1.0"),),
        (("x-data-parallel-rank", ""),),
        (("x-data-parallel-rank", "2"),),
        (("x-data-parallel-rank", "0"), ("x-data-parallel-rank", "1")),
    ],
)
async def test_a_bad_rank_is_refused(metadata: tuple[tuple[str, str], ...]) -> None:
    async with client_of(EngineScript(), EngineScript()) as (cluster, stub):
        error = await refused(stub.Complete(wire.CompleteRequest(text="x"), metadata=metadata))
        assert error.code is grpc.StatusCode.INVALID_ARGUMENT
        assert [violation.field for violation in error.violations] == ["x-data-parallel-rank"]
        assert not any(engine.submitted for engine in cluster.engines)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"sampling": {"temperature": 2.1}}, "options.sampling.temperature"),
        ({"sampling": {"temperature": math.nan}}, "options.sampling.temperature"),
        ({"sampling": {"top_p": -0.1}}, "options.sampling.top_p"),
        ({"sampling": {"repetition_penalty": 0.0}}, "options.sampling.repetition_penalty"),
        ({"sampling": {"repetition_penalty": 101.0}}, "options.sampling.repetition_penalty"),
        ({"sampling": {"logit_bias": {5: 101.0}}}, "options.sampling.logit_bias[5]"),
        ({"sampling": {"logit_bias": {5000: 1.0}}}, "logit_bias"),
        ({"sampling": {"allowed_token_ids": [5000]}}, "allowed_token_ids"),
        ({"conditions": {"min_tokens": 5, "max_tokens": 4}}, "options.conditions.min_tokens"),
        ({"conditions": {"stop_token_ids": [5000]}}, "stop_token_ids"),
        ({"conditions": {"stop_token_ids": [5] * 1025}}, "options.conditions.stop_token_ids"),
        ({"cache_salt": "x" * 257}, "options.cache_salt"),
        ({"n": 0}, "options.n"),
        ({"n": 129}, "options.n"),
        ({"logprobs": 21}, "options.logprobs"),
        ({"stop_strings": [""]}, "options.stop_strings"),
        ({"stop_strings": ["x"] * 17}, "options.stop_strings"),
        ({"stop_strings": ["x" * 1025]}, "options.stop_strings"),
        ({"constraint": wire.Constraint()}, "options.constraint"),
        ({"constraint": wire.Constraint(json_object=False)}, "options.constraint"),
        (
            {"constraint": wire.Constraint(regex="a"), "conditions": {"ignore_eos": True}},
            "options.conditions.ignore_eos",
        ),
        ({"constraint": wire.Constraint(regex="a"), "conditions": {"min_tokens": 1}}, "options.conditions.min_tokens"),
    ],
)
async def test_options_out_of_range_are_refused_by_name(options: dict[str, Any], field: str) -> None:
    async with client_of() as (cluster, stub):
        error = await refused(stub.Complete(wire.CompleteRequest(text="x", options=wire.GenerationOptions(**options))))
        assert error.code is grpc.StatusCode.INVALID_ARGUMENT
        assert [violation.field for violation in error.violations] == [field]
        assert not cluster.engines[0].submitted


@pytest.mark.parametrize(
    "constraint",
    [
        wire.Constraint(json_schema="{}"),
        wire.Constraint(json_object=True),
        wire.Constraint(regex="a+"),
        wire.Constraint(choice=wire.ChoiceConstraint(values=["a", "b"])),
        wire.Constraint(grammar='start: "a"'),
    ],
)
async def test_constraints_reach_the_engine(constraint: wire.Constraint) -> None:
    async with client_of() as (cluster, stub):
        options = wire.GenerationOptions(constraint=constraint)
        options.conditions.max_tokens = 2
        async for _ in stub.Complete(wire.CompleteRequest(text="x", options=options)):
            pass
        assert cluster.engines[0].submitted[0].constraint == constraint


async def test_other_refusals() -> None:
    async with client_of() as (_, stub):
        error = await refused(stub.Complete(wire.CompleteRequest(model="gpt-4", text="x")))
        assert (error.code, error.reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
        error = await refused(stub.Complete(wire.CompleteRequest(text="x" * 5000)))
        assert error.reason == "CONTEXT_LENGTH_EXCEEDED"
        assert error.metadata == {"n_prompt_tokens": "5000", "n_ctx": "4096"}
        for request in (wire.CompleteRequest(), wire.CompleteRequest(text="")):
            assert (await refused(stub.Complete(request))).code is grpc.StatusCode.INVALID_ARGUMENT
        assert (await refused(stub.Chat(wire.ChatRequest()))).code is grpc.StatusCode.INVALID_ARGUMENT
        bad = wire.DetokenizeRequest(token_ids=[9999])
        assert (await refused(stub.Detokenize(bad))).code is grpc.StatusCode.INVALID_ARGUMENT


async def test_tokenize_detokenize_and_models() -> None:
    async with client_of() as (_, stub):
        plain = await stub.Tokenize(wire.TokenizeRequest(text="a<|end|>"))
        assert (list(plain.token_ids), plain.max_model_len) == ([*b"a<|end|>"], 4096)
        parsed = await stub.Tokenize(wire.TokenizeRequest(text="a<|end|>", parse_special_tokens=True))
        assert list(parsed.token_ids) == [97, END_OF_TEXT]
        messages = [wire.ChatMessage(role="user", content="x")]
        chat = await stub.Tokenize(wire.TokenizeRequest(messages=messages))
        assert chat.token_ids[0] == TURN_START
        text = await stub.Detokenize(wire.DetokenizeRequest(token_ids=[97, END_OF_TEXT]))
        assert text.text == "a<|end|>"
        text = await stub.Detokenize(wire.DetokenizeRequest(token_ids=[97, END_OF_TEXT], skip_special_tokens=True))
        assert text.text == "a"
        models = await stub.ListModels(wire.ListModelsRequest())
        assert [list(model.served_model_names) for model in models.models] == [["tiny"]]


async def test_a_cancelled_call_aborts_in_the_engine() -> None:
    async with client_of(EngineScript(steps_left=0)) as (cluster, stub):
        engine = cluster.engines[0]
        call = stub.Complete(wire.CompleteRequest(text="x"))
        reading = asyncio.ensure_future(call.read())
        await eventually(lambda: engine.num_live == 1, "it runs")
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await eventually(lambda: engine.num_live == 0, "the engine was told")
        await cluster.settled()


async def test_a_deadline_ends_the_request_everywhere() -> None:
    async with client_of(EngineScript(steps_left=0)) as (cluster, stub):
        error = await refused(stub.Complete(wire.CompleteRequest(text="x"), timeout=0.2))
        assert error.code is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: cluster.engines[0].num_live == 0, "the engine was told")
        await cluster.settled()


async def test_traceparent_is_handed_on_when_it_is_one() -> None:
    good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with client_of() as (cluster, stub):
        for value in (good, "nonsense"):
            async for _ in stub.Complete(wire.CompleteRequest(text="x"), metadata=(("traceparent", value),)):
                pass
        assert cluster.engines[0].traceparents == [good, ""]


@pytest.mark.parametrize("is_chat", [False, True])
async def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(is_chat: bool) -> None:
    text = "x" * 100_000
    async with client_of(EngineScript()) as (_, stub):
        if is_chat:
            call = stub.Chat(wire.ChatRequest(messages=[wire.ChatMessage(role="user", content=text)]))
        else:
            call = stub.Complete(wire.CompleteRequest(text=text))
        error = await refused(call)
        assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "CONTEXT_LENGTH_EXCEEDED")
        assert "at least" in error.message
