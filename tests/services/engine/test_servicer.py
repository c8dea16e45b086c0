"""EngineService over a real gRPC server and a real engine thread; the forward pass is scripted."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from muster import v1 as wire

from services.rpc.errors import RpcError, describe
from tests.services.engine.conftest import TIMEOUT_S, EngineUnderTest
from tests.services.engine.scripted_runner import BREAKING_TOKEN_ID, FACTS, expected_tokens
from tests.support.waiting import eventually

ENDLESS = 4000  # tokens; far more than any test waits for


def request_of(prompt: list[int], max_tokens: int = 4, request_id: str = "", **fields: object) -> wire.GenerateRequest:
    stop = wire.StopConditions(max_tokens=max_tokens)
    return wire.GenerateRequest(request_id=request_id, prompt_token_ids=prompt, stop=stop, **fields)  # type: ignore[arg-type]


async def failure_of(call: grpc.aio.UnaryStreamCall[wire.GenerateRequest, wire.GenerateResponse]) -> RpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    return describe(caught.value)


async def test_generate_streams_deltas_and_ends_with_usage(engine: EngineUnderTest) -> None:
    responses = [response async for response in engine.stub.Generate(request_of([3, 4], max_tokens=5))]
    tokens = [token_id for response in responses for token_id in response.token_ids]
    assert tokens == expected_tokens([3, 4], 5)
    assert responses[0].prompt.num_tokens == 2
    assert [response.HasField("prompt") for response in responses[1:]] == [False] * (len(responses) - 1)
    assert {response.finish_reason for response in responses[:-1]} <= {wire.FINISH_REASON_UNSPECIFIED}
    assert responses[-1].finish_reason == wire.FINISH_REASON_LENGTH
    assert responses[-1].usage == wire.Usage(prompt_tokens=2, completion_tokens=5)


async def test_logprobs_come_one_per_token(engine: EngineUnderTest) -> None:
    responses = [response async for response in engine.stub.Generate(request_of([3], logprobs=0))]
    for response in responses:
        assert [entry.token_id for entry in response.logprobs] == list(response.token_ids)


async def test_continuation_sends_only_new_tokens(engine: EngineUnderTest) -> None:
    first = expected_tokens([3, 4], 3)
    request = request_of([3, 4], max_tokens=5, generated_token_ids=first)
    responses = [response async for response in engine.stub.Generate(request)]
    tokens = [token_id for response in responses for token_id in response.token_ids]
    assert first + tokens == expected_tokens([3, 4], 5)
    assert responses[-1].usage.completion_tokens == 5


@pytest.mark.parametrize(
    ("request_message", "field"),
    [
        (wire.GenerateRequest(), "prompt_token_ids"),
        (request_of([FACTS.vocab_size]), "prompt_token_ids[0]"),
        (request_of([1] * (FACTS.max_model_len + 1)), "prompt_token_ids"),
        (request_of([1], sampling=wire.SamplingParams(temperature=float("nan"))), "sampling.temperature"),
    ],
)
async def test_bad_requests_name_the_field(
    engine: EngineUnderTest, request_message: wire.GenerateRequest, field: str
) -> None:
    error = await failure_of(engine.stub.Generate(request_message))
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    assert [violation.field for violation in error.violations] == [field]


async def test_a_live_request_id_is_refused(engine: EngineUnderTest) -> None:
    first = engine.stub.Generate(request_of([1], ENDLESS, "same"))
    await anext(aiter(first))
    error = await failure_of(engine.stub.Generate(request_of([1], 1, "same")))
    assert (error.code, error.reason) == (grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_REQUEST_ID")
    first.cancel()


async def test_an_id_can_be_used_again_right_after_a_cancel(engine: EngineUnderTest) -> None:
    for _ in range(20):
        call = engine.stub.Generate(request_of([1], ENDLESS, "same"))
        await anext(aiter(call))
        call.cancel()
        await engine.idle()
    responses = [response async for response in engine.stub.Generate(request_of([1], 2, "same"))]
    assert responses[-1].finish_reason == wire.FINISH_REASON_LENGTH


async def test_a_cancelled_call_frees_its_blocks(engine: EngineUnderTest) -> None:
    call = engine.stub.Generate(request_of([1] * 100, ENDLESS))
    await anext(aiter(call))
    assert (await engine.status()).free_blocks < (await engine.status()).total_blocks
    call.cancel()
    await engine.idle()


async def test_a_deadline_frees_its_blocks(engine: EngineUnderTest) -> None:
    call = engine.stub.Generate(request_of([1] * 100, ENDLESS), timeout=0.05)
    error = await failure_of(call)
    assert error.code is grpc.StatusCode.DEADLINE_EXCEEDED
    await engine.idle()


async def test_the_metadata_may_say_which_rank_is_meant(engine: EngineUnderTest) -> None:
    key = "x-data-parallel-rank"
    calls: Any
    for calls in (
        lambda **more: engine.stub.Generate(request_of([3]), **more),
        lambda **more: engine.stub.Attach(iter(()), **more),
    ):
        error = await failure_of(calls(metadata=((key, "7"),)))
        assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_RANK")
        assert error.metadata == {"rank": str(engine.state.now.rank)}
        error = await failure_of(calls(metadata=((key, "one"),)))
        assert error.violations[0].field == key
        error = await failure_of(calls(metadata=((key, "0"), (key, "0"))))
        assert "comes 2 times" in error.message
    own = ((key, str(engine.state.now.rank)),)
    assert [r async for r in engine.stub.Generate(request_of([3]), metadata=own)][-1].HasField("usage")


async def test_a_trace_of_the_metadata_is_told(engine: EngineUnderTest, caplog: pytest.LogCaptureFixture) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with caplog.at_level("DEBUG", logger="services.engine.servicer"):
        request = request_of([3], request_id="traced")
        async for _ in engine.stub.Generate(request, metadata=(("traceparent", trace),)):
            pass
    assert f"request 'traced' continues trace {trace!r}" in caplog.messages


async def test_a_slow_reader_finds_merged_deltas(engine: EngineUnderTest) -> None:
    """The reader stops reading; flow control fills up; the engine goes on; nothing is lost or doubled."""
    call = engine.stub.Generate(request_of([1], ENDLESS, logprobs=20))
    stream = aiter(call)
    first = await anext(stream)
    await engine.idle()
    responses = [first, *[response async for response in stream]]
    tokens = [token_id for response in responses for token_id in response.token_ids]
    assert tokens == expected_tokens([1], ENDLESS)
    assert max(len(response.token_ids) for response in responses) > 1
    assert all(len(response.logprobs) == len(response.token_ids) for response in responses)


@pytest.mark.parametrize("attached", [False, True])
async def test_leaving_while_the_transport_is_full_aborts(engine: EngineUnderTest, attached: bool) -> None:
    """The handler is suspended in a write then, and must notice all the same."""
    request = request_of([1], ENDLESS, logprobs=20)
    call: Any
    if attached:
        call = engine.stub.Attach(frames(submit(1, request), then=asyncio.Event()))
    else:
        call = engine.stub.Generate(request)
    await anext(aiter(call))
    await engine.status_when(lambda status: status.load.generated_tokens_total > ENDLESS // 2)
    engine.runner.gate.clear()
    call.cancel()
    await eventually(lambda: engine.intake.num_live == 0, "the handler noticed")
    engine.runner.gate.set()
    await engine.idle()
    assert (await engine.status()).load.generated_tokens_total < ENDLESS


async def test_abort_ends_by_id_and_counts_live_ones_once(engine: EngineUnderTest) -> None:
    call = engine.stub.Generate(request_of([1], ENDLESS, "mine"))
    stream = aiter(call)
    await anext(stream)
    answer = await engine.stub.Abort(wire.AbortRequest(request_ids=["mine", "mine", "unknown", ""]))
    assert answer.aborted == 1
    responses = [response async for response in stream]
    assert responses[-1].finish_reason == wire.FINISH_REASON_ABORT
    answer = await engine.stub.Abort(wire.AbortRequest(request_ids=["mine"]))
    assert answer.aborted == 0


async def test_a_failing_step_ends_its_requests_and_not_the_engine(engine: EngineUnderTest) -> None:
    error = await failure_of(engine.stub.Generate(request_of([BREAKING_TOKEN_ID])))
    assert (error.code, error.reason) == (grpc.StatusCode.INTERNAL, "ENGINE_STEP_FAILED")
    responses = [response async for response in engine.stub.Generate(request_of([1]))]
    assert responses[-1].finish_reason == wire.FINISH_REASON_LENGTH
    await engine.idle()


async def test_status_answers_while_a_step_hangs(engine: EngineUnderTest) -> None:
    call = engine.stub.Generate(request_of([1], ENDLESS))
    await anext(aiter(call))
    engine.runner.gate.clear()
    try:
        status = await engine.status()
        assert status.state == wire.RANK_STATE_READY
        assert status.load.running == 1
    finally:
        engine.runner.gate.set()
    call.cancel()


async def test_model_facts(engine: EngineUnderTest) -> None:
    model = (await engine.stub.GetModel(wire.GetModelRequest())).model
    assert (model.vocab_size, model.fingerprint, list(model.eos_token_ids)) == (FACTS.vocab_size, "scripted", [0])
    assert not model.HasField("bos_token_id")
    assert model.default_sampling == wire.DefaultSampling(temperature=0.5)
    assert list(model.served_model_names) == ["test-model"]


async def test_the_tokenizer_comes_in_chunks_with_its_hash(engine: EngineUnderTest) -> None:
    chunks = [chunk async for chunk in engine.stub.GetTokenizer(wire.GetTokenizerRequest())]
    assert len(chunks) == 4
    assert all(len(chunk.data) <= 64 * 1024 for chunk in chunks)
    assert [chunk.sha256 for chunk in chunks[:-1]] == [""] * 3
    data = b"".join(chunk.data for chunk in chunks)
    assert data == engine.tokenizer
    assert chunks[-1].sha256 == hashlib.sha256(data).hexdigest()


async def test_stats_of_steps_are_watched(engine: EngineUnderTest) -> None:
    watch = engine.stub.WatchStats(wire.WatchStatsRequest())
    stream = aiter(watch)
    # A step before the watch was registered is not seen, so there is one at any time until the first arrives.
    call = engine.stub.Generate(request_of([1], ENDLESS))
    first = await anext(stream)
    second = await anext(stream)
    assert second.step > first.step
    assert second.num_sequences == 1
    assert second.load.running == 1
    watch.cancel()
    call.cancel()


async def test_a_watcher_with_an_interval_skips_steps(engine: EngineUnderTest) -> None:
    watch = engine.stub.WatchStats(wire.WatchStatsRequest(min_interval=Duration(nanos=50_000_000)))
    stream = aiter(watch)
    call = engine.stub.Generate(request_of([1], ENDLESS))
    first, second = await anext(stream), await anext(stream)
    assert second.step > first.step + 1
    watch.cancel()
    call.cancel()


async def test_a_negative_interval_of_stats_is_refused(engine: EngineUnderTest) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(aiter(engine.stub.WatchStats(wire.WatchStatsRequest(min_interval=Duration(seconds=-1)))))
    assert describe(caught.value).violations[0].field == "min_interval"


async def frames(*wanted: wire.AttachRequest, then: asyncio.Event) -> AsyncIterator[wire.AttachRequest]:
    yield wire.AttachRequest(open=wire.OpenAttachment(gateway="test"))
    for frame in wanted:
        yield frame
    await then.wait()


def submit(handle: int, request: wire.GenerateRequest, timeout: Duration | None = None) -> wire.AttachRequest:
    return wire.AttachRequest(submit=wire.Submit(handle=handle, request=request, timeout=timeout))


async def test_attach_multiplexes_many_requests(engine: EngineUnderTest) -> None:
    num_requests, num_tokens = 100, 20
    prompts = [[handle % 50 + 1] * (1 + handle % 7) for handle in range(num_requests)]
    submits = [submit(handle, request_of(prompt, num_tokens)) for handle, prompt in enumerate(prompts)]
    done = asyncio.Event()
    call = engine.stub.Attach(frames(*submits, then=done))
    tokens: dict[int, list[int]] = {handle: [] for handle in range(num_requests)}
    finished: dict[int, wire.Finished] = {}
    async for response in call:
        if response.WhichOneof("frame") == "attached":
            assert (response.attached.rank, response.attached.model.fingerprint) == (0, "scripted")
            continue
        outputs = response.outputs
        counts = list(outputs.token_counts) or [1] * len(outputs.handles)
        ids = iter(outputs.token_ids)
        for handle, count in zip(outputs.handles, counts, strict=True):
            tokens[handle] += [next(ids) for _ in range(count)]
        finished |= {end.handle: end for end in outputs.finished}
        if len(finished) == num_requests:
            done.set()
    assert tokens == {handle: expected_tokens(prompt, num_tokens) for handle, prompt in enumerate(prompts)}
    assert all(end.finish_reason == wire.FINISH_REASON_LENGTH for end in finished.values())
    await engine.idle()


async def test_a_broken_attach_stream_frees_all_blocks(engine: EngineUnderTest) -> None:
    submits = [submit(handle, request_of([1] * 50, ENDLESS)) for handle in range(20)]
    call = engine.stub.Attach(frames(*submits, then=asyncio.Event()))
    async for response in call:
        if response.WhichOneof("frame") == "outputs":
            break
    call.cancel()
    await engine.idle()


async def test_attach_reports_errors_in_band(engine: EngineUnderTest) -> None:
    done = asyncio.Event()
    call = engine.stub.Attach(
        frames(
            submit(1, request_of([5000])),
            submit(2, request_of([1], ENDLESS), Duration(nanos=20_000_000)),
            submit(3, request_of([1], 2)),
            then=done,
        )
    )
    failed: dict[int, wire.Failed] = {}
    finished: set[int] = set()
    async for response in call:
        failed |= {end.handle: end for end in response.outputs.failed}
        finished |= {end.handle for end in response.outputs.finished}
        if len(failed) + len(finished) == 3:
            done.set()
    assert failed[1].field == "prompt_token_ids[0]"
    assert failed[2].code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
    assert finished == {3}
    await engine.idle()


async def test_attach_must_be_opened(engine: EngineUnderTest) -> None:
    async def wrong() -> AsyncIterator[wire.AttachRequest]:
        yield submit(1, request_of([1]))

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in engine.stub.Attach(wrong()):
            pass
    error = describe(caught.value)
    assert (error.code, error.violations[0].field) == (grpc.StatusCode.INVALID_ARGUMENT, "open")


async def test_a_loading_engine_says_how_far_it_is(loading_engine: EngineUnderTest) -> None:
    loading_engine.state.progress(wire.ENGINE_PHASE_LOADING_WEIGHTS, 120, 272)
    stub = loading_engine.stub
    for error in (
        await failure_of(stub.Generate(request_of([1]))),
        await failure_of(stub.Attach(frames(then=asyncio.Event()))),  # type: ignore[arg-type]
    ):
        assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "ENGINE_LOADING")
        assert "loading weights, 120 of 272" in error.message
        assert error.retry_after_s is not None
    status = await loading_engine.status()
    assert (status.state, status.phase) == (wire.RANK_STATE_JOINING, wire.ENGINE_PHASE_LOADING_WEIGHTS)
    assert not status.HasField("total_blocks")


async def test_a_draining_engine_finishes_and_refuses(engine: EngineUnderTest) -> None:
    running = engine.stub.Generate(request_of([1], ENDLESS))
    stream = aiter(running)
    await anext(stream)
    draining = asyncio.ensure_future(engine.admin.Drain(wire.DrainRequest(timeout=Duration(nanos=100_000_000))))
    await engine.status_when(lambda status: status.state == wire.RANK_STATE_DRAINING)
    error = await failure_of(engine.stub.Generate(request_of([1])))
    assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "ENGINE_DRAINING")
    responses = [response async for response in stream]
    assert responses[-1].finish_reason in {wire.FINISH_REASON_ABORT, wire.FINISH_REASON_LENGTH}
    async with asyncio.timeout(TIMEOUT_S):
        assert [result.code for result in (await draining).results] == [0]
    await engine.admin.Undrain(wire.UndrainRequest())
    responses = [response async for response in engine.stub.Generate(request_of([1]))]
    assert responses[-1].finish_reason == wire.FINISH_REASON_LENGTH


async def test_operations_name_foreign_ranks(engine: EngineUnderTest) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await engine.admin.Undrain(wire.UndrainRequest(selector=wire.RankSelector(ranks=[5])))
    assert describe(caught.value).violations[0].field == "selector.ranks"


async def test_the_prefix_cache_is_reset(engine: EngineUnderTest) -> None:
    async for _ in engine.stub.Generate(request_of([1] * 100)):
        pass
    (result,) = (await engine.admin.ResetPrefixCache(wire.ResetPrefixCacheRequest())).results
    assert (result.rank, result.code) == (0, 0)
    assert result.message.startswith("forgot ")


async def test_operations_of_later_versions_say_so(engine: EngineUnderTest) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await engine.admin.Sleep(wire.SleepRequest())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_five_hundred_streams_end_and_leave_nothing(engine: EngineUnderTest) -> None:
    tasks_before = len(asyncio.all_tasks())

    async def one(index: int) -> None:
        prompt = [index % 900 + 1]
        tokens: list[int] = []
        async for response in engine.stub.Generate(request_of(prompt, 10, f"r{index}")):
            tokens += response.token_ids
        assert tokens == expected_tokens(prompt, 10)

    await asyncio.gather(*(one(index) for index in range(500)))
    await engine.idle()
    assert engine.intake.num_live == 0
    # The server's own accept task may come and go.
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks_before + 1, "tasks of ended streams are gone")
