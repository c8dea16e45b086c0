"""A request's life: choices, stop strings, usage, errors, and readers that leave."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import cast

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from muster import v1 as wire

from gateway.errors import (
    ContextLengthExceeded,
    EngineFailed,
    InvalidRequest,
    Overloaded,
    RequestTimeout,
)
from gateway.generation import GenerationLimits
from gateway.generation_request import (
    ChoiceDelta,
    Constraint,
    ConstraintKind,
    FinishReason,
    GenerationEvent,
    PromptReport,
)
from tests.gateway.cluster.started import HANGS, start
from tests.support.fake_cluster import ask, fake_cluster
from tests.support.fake_engine import EngineScript, echo, says
from tests.support.own_records import own_records
from tests.support.waiting import eventually


async def test_text_usage_and_reason_of_one_choice() -> None:
    async with fake_cluster(EngineScript(token=says("Paris."), cached_tokens=4)) as cluster:
        answer = await cluster.answer(ask("The capital?"))
        assert answer.text() == "Paris."
        assert answer.token_ids() == [*b"Paris.", 256]
        assert answer.last().finish_reason is FinishReason.STOP
        assert answer.last().stop_reason is None
        assert answer.report == PromptReport(num_tokens=12, cached_tokens=4)
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.cached_tokens) == (12, 7, 4)
        await cluster.settled()


async def test_choices_have_their_own_seeds_on_one_rank() -> None:
    async with fake_cluster(EngineScript(), EngineScript()) as cluster:
        answer = await cluster.answer(ask(request_id="four", seed=5, n=4, max_tokens=8))
        assert [request.sampling.seed for request in cluster.engine_of("four").submitted] == [5, 6, 7, 8]
        alone = [await cluster.answer(ask(seed=5 + index, max_tokens=8, rank=0)) for index in range(4)]
        assert [answer.text(index) for index in range(4)] == [single.text() for single in alone]
        assert len({answer.text(index) for index in range(4)}) == 4
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 32)


@pytest.mark.parametrize("tokens_per_step", [1, 3, 64])
async def test_stop_string_across_tokens_ends_at_the_same_place(tokens_per_step: int) -> None:
    """Breakage 30."""
    script = EngineScript(token=says("one two STOP three four five six"), tokens_per_step=tokens_per_step)
    async with fake_cluster(script) as cluster:
        answer = await cluster.answer(ask(stop_strings=("two STO", "nothing")))
        assert answer.text() == "one "
        assert answer.last().finish_reason is FinishReason.STOP
        assert answer.last().stop_reason == "two STO"
        assert answer.usage.completion_tokens == len("one two STO")
        await cluster.settled()


async def test_a_matched_stop_string_aborts_in_the_engine() -> None:
    async with fake_cluster(EngineScript(token=says("abc"), steps_left=3)) as cluster:
        answer = await cluster.answer(ask(stop_strings=("bc",), include_stop_string=True))
        assert answer.text() == "abc"
        await eventually(lambda: len(cluster.engines[0].aborted) == 1, "the engine was told")
        await cluster.settled()


async def test_min_tokens_lets_early_stop_strings_pass() -> None:
    async with fake_cluster(EngineScript(token=says("ab ab ab"))) as cluster:
        answer = await cluster.answer(ask(stop_strings=("ab",), min_tokens=4))
        assert answer.text() == "ab "


async def test_half_a_character_waits_for_its_rest() -> None:
    async with fake_cluster(EngineScript(token=says("é漢🎉"))) as cluster:
        answer = await cluster.answer(ask(max_tokens=8))
        # One delta or three, as they are read: each holds whole characters, and the tokens of these.
        for delta in answer.deltas:
            assert bytes(delta.token_ids).decode(errors="replace") == delta.text
        assert answer.text() == "é漢\ufffd"
        assert [token for delta in answer.deltas for token in delta.token_ids] == [*"é漢🎉".encode()[:8]]
        assert answer.last().finish_reason is FinishReason.LENGTH


async def test_stop_token_of_the_request_is_named_and_hidden() -> None:
    async with fake_cluster(EngineScript(token=says("abc"))) as cluster:
        answer = await cluster.answer(ask(stop_token_ids=(ord("c"),)))
        assert (answer.text(), answer.last().stop_reason) == ("ab", ord("c"))
        assert answer.usage.completion_tokens == 3


async def test_logprobs_stay_with_their_tokens() -> None:
    async with fake_cluster(EngineScript(token=says("é!"))) as cluster:
        answer = await cluster.answer(ask(logprobs=0, prompt_logprobs=0))
        for delta in answer.deltas:
            assert [entry.token_id for entry in delta.logprobs] == list(delta.token_ids)
        assert [entry.token_id for entry in answer.report.logprobs] == [*b"hello"]


async def test_scoring_generates_nothing() -> None:
    async with fake_cluster() as cluster:
        answer = await cluster.answer(ask(max_tokens=0, prompt_logprobs=0))
        assert answer.text() == ""
        assert answer.last().finish_reason is FinishReason.LENGTH
        assert answer.usage.completion_tokens == 0


async def test_max_tokens_is_lowered_to_the_context() -> None:
    async with fake_cluster(EngineScript(token=echo)) as cluster:
        cluster.engines[0].max_model_len = 4096
        await cluster.answer(ask("x" * 4090, max_tokens=10_000))
        assert cluster.engines[0].submitted[0].stop.max_tokens == 6


async def test_requests_the_model_cannot_take_are_refused_here() -> None:
    async with fake_cluster(EngineScript(), EngineScript()) as cluster:
        with pytest.raises(ContextLengthExceeded):
            await cluster.answer(ask("x" * 4096))
        with pytest.raises(InvalidRequest, match="valid ranks are 0, 1"):
            await cluster.answer(ask(rank=2))
        with pytest.raises(InvalidRequest, match="valid ids are 0 to 258"):
            await cluster.answer(ask(stop_token_ids=(259,)))
        assert not any(engine.submitted for engine in cluster.engines)
        await cluster.settled()


async def test_explicit_rank_is_the_global_one() -> None:
    async with fake_cluster(EngineScript(), EngineScript(), EngineScript(), scope=(1, 2)) as cluster:
        await cluster.answer(ask(rank=2, max_tokens=1))
        assert [len(engine.submitted) for engine in cluster.engines] == [0, 0, 1]
        with pytest.raises(InvalidRequest, match="valid ranks are 1, 2"):
            await cluster.answer(ask(rank=0))


async def test_every_request_has_its_line_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster(EngineScript(token=says("abc"), cached_tokens=2)) as cluster:
        await cluster.answer(ask("hello", request_id="quiet"))
        with caplog.at_level(logging.DEBUG, "gateway.generation"):
            await cluster.answer(ask("hello", request_id="loud"))
            cluster.engines[0].allow(HANGS)
            with pytest.raises(RequestTimeout):
                await cluster.answer(ask(request_id="late", timeout_s=0.05))
        told = [record.getMessage() for record in own_records(caplog) if record.name == "gateway.generation"]
        assert [line.split(" ")[1] for line in told] == ["loud", "late"]
        assert told[0].startswith(
            "request loud on rank 0: 5 prompt tokens (2 cached), 4 generated, first token after 0."
        )
        assert told[0].endswith("0 losses, stop")
        assert "first token after -" in told[1]
        assert "failed: The request did not finish within its time." in told[1]


async def test_a_bounded_queue_says_so() -> None:
    limits = GenerationLimits(max_queued=2)
    async with fake_cluster(EngineScript(steps_left=HANGS), limits=limits) as cluster:
        tasks = [await start(cluster, max_tokens=2), await start(cluster, max_tokens=2)]
        with pytest.raises(Overloaded) as caught:
            await cluster.answer(ask())
        assert caught.value.retry_after_s == 1.0
        cluster.engines[0].allow(None)
        await asyncio.gather(*tasks)
        await cluster.settled()


async def test_a_request_gets_its_turn_in_time_or_is_told_to_come_again() -> None:
    limits = GenerationLimits(queue_timeout_s=0.2)
    async with fake_cluster(EngineScript(steps_left=HANGS), limits=limits) as cluster:
        with pytest.raises(Overloaded, match=r"waited 0\.2 s") as refused:
            await cluster.answer(ask())
        assert refused.value.retry_after_s
        await eventually(lambda: len(cluster.engines[0].aborted) == 1, "the engine was told")
        await cluster.settled()


async def test_the_time_for_a_turn_does_not_end_an_answer_that_has_begun() -> None:
    limits = GenerationLimits(queue_timeout_s=0.2)
    async with fake_cluster(EngineScript(steps_left=1), limits=limits) as cluster:
        answering = asyncio.create_task(cluster.answer(ask(max_tokens=3)))
        await eventually(lambda: cluster.backend.generator.num_open > cluster.backend.generator.num_queued, "begun")
        await asyncio.wait({answering}, timeout=0.4)
        assert not answering.done()
        cluster.engines[0].allow(None)
        assert len((await answering).token_ids()) == 3


async def test_a_request_has_its_time() -> None:
    async with fake_cluster(EngineScript(steps_left=HANGS)) as cluster:
        with pytest.raises(RequestTimeout):
            await cluster.answer(ask(timeout_s=0.05))
        await eventually(lambda: len(cluster.engines[0].aborted) == 1, "the engine was told")
        await cluster.settled()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequest),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Overloaded),
        (grpc.StatusCode.DEADLINE_EXCEEDED, RequestTimeout),
        (grpc.StatusCode.INTERNAL, EngineFailed),
    ],
)
async def test_what_an_engine_refuses_with(code: grpc.StatusCode, error: type[Exception]) -> None:
    failed = wire.Failed(code=code.value[0], message="said so", field="top_k", retry_after=Duration(seconds=7))
    async with fake_cluster(EngineScript(fail=failed)) as cluster:
        with pytest.raises(error) as caught:
            await cluster.answer(ask())
        if isinstance(caught.value, Overloaded):
            assert caught.value.retry_after_s == 7.0
        if isinstance(caught.value, InvalidRequest):
            assert caught.value.param == "top_k"
        await cluster.settled()


async def test_a_constraint_that_does_not_compile_names_the_clients_field() -> None:
    code = grpc.StatusCode.INVALID_ARGUMENT.value[0]
    failed = wire.Failed(code=code, message="constraint.regex: cannot be compiled: unclosed", field="constraint.regex")
    async with fake_cluster(EngineScript(fail=failed)) as cluster:
        constraint = Constraint(ConstraintKind.REGEX, "(", param="structured_outputs.regex")
        with pytest.raises(InvalidRequest) as caught:
            await cluster.answer(ask(constraint=constraint))
        assert caught.value.param == "structured_outputs.regex"
        assert caught.value.message == "Invalid 'structured_outputs.regex': cannot be compiled: unclosed."
        assert cluster.engines[0].submitted[0].constraint == wire.Constraint(regex="(")
        await cluster.settled()


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED])
async def test_a_rank_that_takes_no_more_is_passed_over(code: grpc.StatusCode) -> None:
    refusing = EngineScript(fail=wire.Failed(code=code.value[0], message="not here"))
    async with fake_cluster(refusing, EngineScript()) as cluster:
        for _ in range(2):
            assert len((await cluster.answer(ask(max_tokens=3))).token_ids()) == 3
        await cluster.settled()


async def test_a_vanished_reader_aborts_in_the_engine() -> None:
    async with fake_cluster(EngineScript(steps_left=2)) as cluster:
        events = cast("AsyncGenerator[GenerationEvent, None]", cluster.stream(ask(n=2)))
        async with contextlib.aclosing(events):
            async for event in events:
                if isinstance(event, ChoiceDelta):
                    break
        await eventually(lambda: len(cluster.engines[0].aborted) == 2, "both choices were aborted")
        await cluster.settled()


async def test_a_cancelled_reader_aborts_in_the_engine() -> None:
    """Breakages 59, 62."""
    async with fake_cluster(EngineScript(steps_left=HANGS)) as cluster:
        task = await start(cluster)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await eventually(lambda: len(cluster.engines[0].aborted) == 1, "the engine was told")
        await cluster.settled()
        assert b'muster:request_cancelled_total{phase="queued"} 1.0' in cluster.backend.metrics.render()


async def test_a_slow_reader_gets_merged_deltas() -> None:
    async with fake_cluster(EngineScript(token=says("x" * 400), steps_left=1)) as cluster:
        texts = []
        async for event in cluster.stream(ask()):
            if isinstance(event, ChoiceDelta):
                texts.append(event.text)
                if len(texts) == 1:
                    cluster.engines[0].allow(None)
                    await eventually(lambda: cluster.backend.pool.num_handles == 0, "the last frame is here")
        assert texts == ["x", "x" * 399]


@pytest.mark.parametrize(
    ("options", "is_woken"), [({"streamed": True}, True), ({"stop_strings": ("zz",)}, True), ({}, False)]
)
async def test_who_wants_the_whole_answer_is_not_woken_for_each_token(
    options: dict[str, object], is_woken: bool
) -> None:
    """A stop string has to be seen at once all the same: the engine does not know of it."""
    options = {"streamed": False, **options}
    async with fake_cluster(EngineScript(token=says("a" * 60), interval_s=0.001)) as cluster:
        events = [event async for event in cluster.stream(ask(**options))]  # type: ignore[arg-type]
        deltas = [event for event in events if isinstance(event, ChoiceDelta)]
        assert "".join(delta.text for delta in deltas) == "a" * 60
        assert (len(deltas) > 10) is is_woken
        await cluster.settled()


async def test_tokens_that_waited_come_with_their_pieces() -> None:
    async with fake_cluster(EngineScript(token=says("a\u00e9b"), tokens_per_step=8)) as cluster:
        answer = await cluster.answer(ask())
        (delta,) = answer.deltas
        assert delta.text == "a\u00e9b"
        assert delta.pieces == ("a", "", "\u00e9", "b")
