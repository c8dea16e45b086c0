"""One Attach stream over a played engine: frames in, messages out, no gRPC."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from muster import v1 as wire

from engine.errors import QueueFullError
from engine.request import FinishReason, TokenLogprobs, TokenOutput, Usage
from services.engine.attachment import Attachment, check_open
from services.engine.outbox import Outbox
from services.rpc.errors import RpcError
from tests.services.engine.recording_loop import PlayedEngine

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]
INTERNAL = grpc.StatusCode.INTERNAL.value[0]


def submit(handle: int, request_id: str = "", timeout_s: float | None = None, **fields: object) -> wire.AttachRequest:
    request = wire.GenerateRequest(**{"request_id": request_id, "prompt_token_ids": [1], **fields})  # type: ignore[arg-type]
    timeout = None
    if timeout_s is not None:
        timeout = Duration()
        timeout.FromNanoseconds(round(timeout_s * 1e9))
    return wire.AttachRequest(submit=wire.Submit(handle=handle, request=request, timeout=timeout))


def abort(*handles: int) -> wire.AttachRequest:
    return wire.AttachRequest(abort=wire.AbortRequests(handles=handles))


async def frames_of(*frames: wire.AttachRequest) -> AsyncIterator[wire.AttachRequest]:
    for frame in frames:
        yield frame


class Stream:
    """An attachment whose gateway has sent `frames` and half-closed; its stream carries one message for each `take`."""

    def __init__(self, engine: PlayedEngine) -> None:
        self.attachment = Attachment(engine.intake)
        self._written: asyncio.Queue[wire.AttachResponse] = asyncio.Queue()
        self._taken = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None

    async def send(self, *frames: wire.AttachRequest) -> None:
        await self.attachment.read(frames_of(*frames))

    async def take(self) -> wire.StepOutputs:
        response = await self._next()
        assert response is not None, "the stream ended"
        return response.outputs

    async def take_end(self) -> None:
        assert await self._next() is None

    async def _write(self, response: wire.AttachResponse) -> None:
        self._taken.clear()
        self._written.put_nowait(response)
        await self._taken.wait()

    async def _next(self) -> wire.AttachResponse | None:
        if self._sending is None:
            self._sending = asyncio.create_task(self.attachment.send(self._write))
        self._taken.set()
        taking = asyncio.create_task(self._written.get())
        async with asyncio.timeout(5):
            await asyncio.wait([self._sending, taking], return_when=asyncio.FIRST_COMPLETED)
        if taking.done():
            return taking.result()
        taking.cancel()
        await self._sending
        return None


@pytest.fixture
async def engine() -> PlayedEngine:
    return PlayedEngine()


@pytest.fixture
async def stream(engine: PlayedEngine) -> Stream:
    return Stream(engine)


async def test_a_step_becomes_one_message(engine: PlayedEngine, stream: Stream) -> None:
    await stream.send(submit(7), submit(8))
    engine.step(engine.tokens(0, 10), engine.tokens(1, 20))
    outputs = await stream.take()
    assert (list(outputs.handles), list(outputs.token_ids), list(outputs.token_counts)) == ([7, 8], [10, 20], [])
    assert outputs.step == 1


async def test_steps_merge_while_the_gateway_is_slow(engine: PlayedEngine, stream: Stream) -> None:
    await stream.send(submit(7), submit(8))
    engine.step(engine.tokens(0, 10), engine.tokens(1, 20))
    engine.step(engine.tokens(0, 11))
    outputs = await stream.take()
    assert (list(outputs.handles), list(outputs.token_ids)) == ([7, 8], [10, 11, 20])
    assert list(outputs.token_counts) == [2, 1]
    assert outputs.step == 2


async def test_logprobs_travel_by_handle(engine: PlayedEngine, stream: Stream) -> None:
    await stream.send(submit(7), submit(8))
    engine.step(TokenOutput(engine.key(0), (10,), (TokenLogprobs(10, -1.0, 1),)), engine.tokens(1, 20))
    (entry,) = (await stream.take()).logprobs
    assert (entry.handle, [position.token_id for position in entry.logprobs]) == (7, [10])


async def test_a_half_closed_stream_ends_with_its_last_request(engine: PlayedEngine, stream: Stream) -> None:
    await stream.send(submit(7))
    engine.step(engine.end(0))
    (finished,) = (await stream.take()).finished
    assert (finished.handle, finished.finish_reason, finished.usage.completion_tokens) == (
        7,
        wire.FINISH_REASON_LENGTH,
        2,
    )
    await stream.take_end()


async def test_a_handle_is_free_after_its_finish_was_sent(engine: PlayedEngine, stream: Stream) -> None:
    await stream.send(submit(7))
    engine.step(engine.end(0))
    await stream.take()
    await stream.send(submit(7))
    assert len(engine.loop.submitted) == 2


@pytest.mark.parametrize("ended", [False, True])
async def test_a_handle_in_use_ends_the_stream(engine: PlayedEngine, stream: Stream, ended: bool) -> None:
    await stream.send(submit(7))
    if ended:
        engine.step(engine.end(0))  # the gateway cannot know yet
    await stream.send(submit(7))
    if ended:
        await stream.take()
    with pytest.raises(RpcError, match=r"submit\.handle: 7 is in use") as caught:
        await stream.take()
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_invalid_request_fails_alone(engine: PlayedEngine, stream: Stream) -> None:
    await stream.send(submit(7, prompt_token_ids=[1000]), submit(8))
    (failed,) = (await stream.take()).failed
    assert (failed.handle, failed.field, failed.reason) == (7, "prompt_token_ids[0]", "INVALID_REQUEST")
    assert failed.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    engine.step(engine.end(0))
    assert [finished.handle for finished in (await stream.take()).finished] == [8]


async def test_a_duplicate_request_id_fails_alone(stream: Stream) -> None:
    await stream.send(submit(7, "same"), submit(8, "same"))
    (failed,) = (await stream.take()).failed
    assert (failed.handle, failed.code) == (8, grpc.StatusCode.ALREADY_EXISTS.value[0])


async def test_a_draining_engine_says_when_to_come_back(engine: PlayedEngine, stream: Stream) -> None:
    engine.state.drain(True)
    await stream.send(submit(7))
    (failed,) = (await stream.take()).failed
    assert (failed.code, failed.reason) == (UNAVAILABLE, "ENGINE_DRAINING")
    assert failed.retry_after.ToNanoseconds() > 0


async def test_a_request_the_engine_refuses_later_fails_with_the_reason(engine: PlayedEngine, stream: Stream) -> None:
    await stream.send(submit(7))
    engine.intake._mailboxes.fail(engine.key(0), QueueFullError("the queue is full", retry_after_s=2.5))
    (failed,) = (await stream.take()).failed
    assert (failed.reason, failed.retry_after.ToNanoseconds()) == ("QUEUE_FULL", 2_500_000_000)
    await stream.take_end()


async def test_a_failed_step_fails_its_request(engine: PlayedEngine, stream: Stream) -> None:
    await stream.send(submit(7))
    engine.step(engine.end(0, FinishReason.ERROR))
    outputs = await stream.take()
    assert [(failed.handle, failed.code, failed.message) for failed in outputs.failed] == [(7, INTERNAL, "broken step")]
    assert not outputs.finished


async def test_a_request_that_ends_by_its_own_fault_names_the_field(engine: PlayedEngine, stream: Stream) -> None:
    await stream.send(submit(7))
    engine.step(engine.end(0, FinishReason.ERROR)._replace(error="leads nowhere", error_field="constraint.regex"))
    (failed,) = (await stream.take()).failed
    assert (failed.code, failed.field) == (grpc.StatusCode.INVALID_ARGUMENT.value[0], "constraint.regex")
    assert failed.message == "constraint.regex: leads nowhere"


async def test_abort_frames_reach_the_engine_and_unknown_handles_do_not(engine: PlayedEngine, stream: Stream) -> None:
    await stream.send(submit(7), abort(7, 99))
    assert engine.loop.aborted == [engine.key(0)]
    engine.step(engine.end(0, FinishReason.ABORT))
    assert [finished.finish_reason for finished in (await stream.take()).finished] == [wire.FINISH_REASON_ABORT]


async def test_a_timeout_aborts_and_fails_its_request(engine: PlayedEngine, stream: Stream) -> None:
    await stream.send(submit(7, timeout_s=0.001), submit(8))
    (failed,) = (await stream.take()).failed
    assert (failed.handle, failed.code) == (7, grpc.StatusCode.DEADLINE_EXCEEDED.value[0])
    assert engine.loop.aborted == [engine.key(0)]
    engine.step(engine.end(0, FinishReason.ABORT))  # comes too late and is dropped
    engine.step(engine.end(1))
    assert [finished.handle for finished in (await stream.take()).finished] == [8]


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
async def test_a_timeout_must_be_positive(stream: Stream, timeout_s: float) -> None:
    await stream.send(submit(7, timeout_s=timeout_s))
    (failed,) = (await stream.take()).failed
    assert failed.field == "timeout"


async def test_a_century_is_for_ever(engine: PlayedEngine, stream: Stream) -> None:
    frame = wire.AttachRequest(
        submit=wire.Submit(
            handle=7, request=wire.GenerateRequest(prompt_token_ids=[1]), timeout=Duration(seconds=2**62)
        )
    )
    await stream.send(frame)
    assert len(engine.loop.submitted) == 1


async def test_leaving_aborts_what_is_live_only(engine: PlayedEngine, stream: Stream) -> None:
    await stream.send(submit(7, timeout_s=60), submit(8))
    engine.step(engine.end(1))
    stream.attachment.leave()
    assert engine.loop.aborted == [engine.key(0)]
    assert engine.intake.num_live == 0


async def test_a_stopping_engine_sends_what_waits_and_ends(engine: PlayedEngine, stream: Stream) -> None:
    await stream.send(submit(7))
    engine.step(engine.end(0))
    stream.attachment.end()
    assert (await stream.take()).finished
    await stream.take_end()


@pytest.mark.parametrize(
    ("frame", "field"),
    [(wire.AttachRequest(), "frame"), (wire.AttachRequest(open=wire.OpenAttachment()), "open")],
)
async def test_frames_out_of_order_end_the_stream(stream: Stream, frame: wire.AttachRequest, field: str) -> None:
    await stream.send(frame)
    with pytest.raises(RpcError) as caught:
        await stream.take()
    assert caught.value.violations[0].field == field


@pytest.mark.parametrize("frame", [None, wire.AttachRequest(), submit(1), abort(1)])
def test_the_first_frame_must_open(frame: wire.AttachRequest | None) -> None:
    with pytest.raises(RpcError, match="open: must be the first frame"):
        check_open(frame)


async def test_the_outbox_has_room_again_after_a_take() -> None:
    outbox = Outbox(max_ended=2)
    error = RpcError(grpc.StatusCode.INTERNAL, "x", reason="X")
    outbox.fail(1, error)
    await outbox.wait_room()
    outbox.fail(2, error)
    waiting = asyncio.create_task(outbox.wait_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert len(outbox.take().failed) == 2
    await waiting


async def test_random_walk_every_request_ends_once_and_no_token_is_lost() -> None:
    """Submits, steps, aborts, failures and slow reads in any order, against an oracle of what the engine produced."""
    dice = random.Random(7)
    engine = PlayedEngine()
    stream = Stream(engine)
    live: dict[int, int] = {}  # index of the submitted request -> handle
    produced: dict[int, list[int]] = {}  # by handle, since its last start
    received: dict[int, list[int]] = {}
    used: set[int] = set()
    for _ in range(3000):
        match dice.choice(["submit", "step", "step", "take", "abort"]):
            case "submit":
                handle = min(set(range(len(used) + 1)) - used)
                used.add(handle)
                produced[handle], received[handle] = [], []
                live[len(engine.loop.submitted)] = handle
                await stream.send(submit(handle))
            case "abort" if live:
                await stream.send(abort(dice.choice(list(live.values()))))
            case "step" if live:
                outputs = []
                for index in dice.sample(sorted(live), dice.randint(1, len(live))):
                    token_ids = tuple(dice.randrange(1000) for _ in range(dice.randint(0, 2)))
                    produced[live[index]] += token_ids
                    reason = dice.choice([None, None, None, FinishReason.STOP, FinishReason.ERROR])
                    outputs.append(
                        TokenOutput(engine.key(index), token_ids, finish_reason=reason, usage=Usage(1, 1, 0))
                    )
                    if reason is not None:
                        del live[index]
                engine.step(*outputs)
            case "take" if not stream.attachment._outbox.empty:
                outputs_frame = await stream.take()
                counts = list(outputs_frame.token_counts) or [1] * len(outputs_frame.handles)
                ids = iter(outputs_frame.token_ids)
                for handle, count in zip(outputs_frame.handles, counts, strict=True):
                    received[handle] += [next(ids) for _ in range(count)]
                ended = [end.handle for end in outputs_frame.finished] + [end.handle for end in outputs_frame.failed]
                assert len(ended) == len(set(ended))
                assert not set(ended) & set(live.values())
                for handle in ended:
                    assert received[handle] == produced[handle]
                    used.remove(handle)
    stream.attachment.leave()
    assert engine.intake.num_live == 0


def test_what_waits_is_put_together_before_it_is_too_much() -> None:
    outbox = Outbox(most_pairs=10)
    for step in range(1, 101):
        for handle in (3, 1, 2):
            outbox.tokens.append((handle, (step, handle)))
        outbox.end_step(step)
        assert len(outbox.tokens) <= 12
    outputs = outbox.take()
    assert (outputs.step, list(outputs.handles), list(outputs.token_counts)) == (100, [3, 1, 2], [200] * 3)
    expected = [token_id for handle in (3, 1, 2) for step in range(1, 101) for token_id in (step, handle)]
    assert list(outputs.token_ids) == expected
    assert outbox.empty


async def test_a_stream_that_keeps_up_gets_a_step_before_its_delivery_returns(engine: PlayedEngine) -> None:
    attachment, written = Attachment(engine.intake), list[wire.AttachResponse]()

    async def write(response: wire.AttachResponse) -> None:
        written.append(response)

    sending = asyncio.create_task(attachment.send(write))
    await attachment.read(frames_of(submit(7)))
    await asyncio.sleep(0)
    engine.step(engine.tokens(0, 10))
    assert [list(response.outputs.token_ids) for response in written] == [[10]]
    engine.step(engine.end(0))
    assert len(written) == 2
    await asyncio.wait_for(sending, 5)


async def test_a_stream_that_cannot_be_written_to_ends(engine: PlayedEngine) -> None:
    attachment = Attachment(engine.intake)

    async def write(response: wire.AttachResponse) -> None:
        raise ConnectionError("gone")

    sending = asyncio.create_task(attachment.send(write))
    await attachment.read(frames_of(submit(7)))
    engine.step(engine.tokens(0, 10))
    with pytest.raises(ConnectionError, match="gone"):
        await asyncio.wait_for(sending, 5)
