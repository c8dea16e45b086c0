"""Demultiplexing one Attach stream, without a stream."""

from __future__ import annotations

import asyncio
import random

import pytest
from muster import v1 as wire

from gateway.attachment import Attachment, EngineLost, Failed, Finished, ProtocolViolation, Ticket
from gateway.change_signal import ChangeSignal
from gateway.generation_request import FinishReason


def finished(handle: int, reason: wire.FinishReason.ValueType = wire.FINISH_REASON_STOP) -> wire.StepOutputs:
    return wire.StepOutputs(finished=[wire.Finished(handle=handle, finish_reason=reason)])


def test_tokens_go_to_their_handles() -> None:
    attachment = Attachment(0)
    tickets = [Ticket(ChangeSignal()) for _ in range(3)]
    handles = [attachment.submit(ticket) for ticket in tickets]
    attachment.apply(wire.StepOutputs(handles=handles, token_ids=[10, 20, 30]))
    attachment.apply(wire.StepOutputs(handles=[handles[2], handles[0]], token_counts=[2, 1], token_ids=[31, 32, 11]))
    assert [ticket.token_ids for ticket in tickets] == [[10, 11], [20], [30, 31, 32]]
    assert tickets[0].take() == ([10, 11], [])
    assert tickets[0].take() == ([], [])


def test_everything_of_one_step_arrives_together() -> None:
    attachment = Attachment(0)
    ticket = Ticket(ChangeSignal())
    handle = attachment.submit(ticket)
    attachment.apply(
        wire.StepOutputs(
            started=[wire.Started(handle=handle, prompt=wire.PromptInfo(num_tokens=4, cached_tokens=2))],
            handles=[handle],
            token_ids=[5],
            logprobs=[wire.HandleLogprobs(handle=handle, logprobs=[wire.TokenLogprobs(token_id=5, logprob=-1)])],
            finished=[wire.Finished(handle=handle, finish_reason=wire.FINISH_REASON_STOP, stop_token_id=5)],
        )
    )
    assert ticket.prompt is not None
    assert ticket.prompt.cached_tokens == 2
    assert ticket.token_ids == [5]
    assert [entry.logprob for entry in ticket.logprobs] == [-1]
    assert ticket.end == Finished(FinishReason.STOP, 5, 0)
    assert len(attachment) == 0


def test_handles_are_reused_and_never_shared() -> None:
    """Breakage 60."""
    attachment = Attachment(0)
    chance = random.Random(5)
    live: dict[int, Ticket] = {}
    abandoned: set[int] = set()
    for _ in range(5000):
        match chance.choice(["submit", "finish", "abandon", "confirm"]):
            case "submit":
                ticket = Ticket(ChangeSignal())
                handle = attachment.submit(ticket)
                assert handle not in live
                assert handle not in abandoned
                live[handle] = ticket
            case "finish" if live:
                handle, ticket = live.popitem()
                attachment.apply(finished(handle))
                assert ticket.end is not None
            case "abandon" if live:
                handle, ticket = live.popitem()
                assert attachment.abandon(handle, ticket)
                assert not attachment.abandon(handle, ticket)
                abandoned.add(handle)
            case "confirm" if abandoned:
                attachment.apply(finished(abandoned.pop(), wire.FINISH_REASON_ABORT))
        assert len(attachment) == len(live) + len(abandoned)
    assert max(live, default=0) < 500


def test_an_abandoned_handle_waits_for_the_engine() -> None:
    attachment = Attachment(0)
    old, new = Ticket(ChangeSignal()), Ticket(ChangeSignal())
    handle = attachment.submit(old)
    attachment.abandon(handle, old)
    other = attachment.submit(new)
    assert other != handle
    attachment.apply(wire.StepOutputs(handles=[handle], token_ids=[1]))
    assert old.token_ids == []
    attachment.apply(finished(handle))
    assert attachment.submit(Ticket(ChangeSignal())) == handle
    # The old request's reader knows nothing of the handle's new owner.
    assert not attachment.abandon(handle, old)


def test_failed_says_what_a_status_says() -> None:
    attachment = Attachment(0)
    ticket = Ticket(ChangeSignal())
    failed = wire.Failed(handle=attachment.submit(ticket), code=8, message="full", reason="QUEUE_FULL")
    failed.retry_after.FromMilliseconds(1500)
    attachment.apply(wire.StepOutputs(failed=[failed]))
    assert ticket.end == Failed(8, "full", "QUEUE_FULL", "", 1.5)


def test_a_lost_stream_tells_who_could_have_broken_it() -> None:
    attachment = Attachment(3)
    first, second = ChangeSignal(), ChangeSignal()
    tickets = [Ticket(first, suspect=True), Ticket(first, suspect=True), Ticket(second, suspect=True)]
    innocent = Ticket(ChangeSignal())
    for ticket in (*tickets[:2], innocent):
        attachment.submit(ticket)
    started = wire.StepOutputs()
    for handle in (1, 2, 3):
        started.started.add(handle=handle, prompt=wire.PromptInfo(num_tokens=1))
    attachment.apply(started)
    attachment.submit(tickets[2])
    attachment.apply(wire.StepOutputs(handles=[1], token_ids=[7]))
    attachment.lose("it broke")
    ends = [ticket.end for ticket in (*tickets, innocent)]
    # Two requests, one of them with two choices; the engine did no step of the last one.
    assert ends == [EngineLost(3, "it broke", 2, heard) for heard in (True, True, False, True)]


def test_a_lost_stream_ends_all_that_lived_and_keeps_what_came() -> None:
    attachment = Attachment(3)
    done, live, gone = (Ticket(ChangeSignal()) for _ in range(3))
    handles = [attachment.submit(ticket) for ticket in (done, live, gone)]
    attachment.apply(wire.StepOutputs(handles=handles, token_ids=[1, 2, 3]))
    attachment.apply(finished(handles[0]))
    attachment.abandon(handles[2], gone)
    attachment.lose("it broke")
    assert isinstance(done.end, Finished)
    assert live.end == EngineLost(3, "it broke", num_suspects=0, heard=True)
    assert live.token_ids == [2]
    assert gone.end is None
    assert len(attachment) == 0


@pytest.mark.parametrize(
    "outputs",
    [
        wire.StepOutputs(handles=[1, 2], token_ids=[1]),
        wire.StepOutputs(handles=[1], token_counts=[2], token_ids=[1]),
        wire.StepOutputs(handles=[1], token_counts=[1, 1], token_ids=[1, 2]),
    ],
)
def test_frames_that_do_not_add_up_are_refused(outputs: wire.StepOutputs) -> None:
    attachment = Attachment(0)
    attachment.submit(Ticket(ChangeSignal()))
    with pytest.raises(ProtocolViolation):
        attachment.apply(outputs)


async def test_choices_of_one_request_wake_their_reader_once() -> None:
    attachment = Attachment(0)
    news = ChangeSignal()
    handles = [attachment.submit(Ticket(news)) for _ in range(8)]
    wakes = 0

    async def read() -> None:
        nonlocal wakes
        while wakes < 2:
            await news.wait()
            wakes += 1

    reader = asyncio.create_task(read())
    await asyncio.sleep(0)
    attachment.apply(wire.StepOutputs(handles=handles, token_ids=range(8)))
    attachment.apply(wire.StepOutputs(handles=handles, token_ids=range(8)))
    attachment.wake()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wakes == 1
    attachment.apply(wire.StepOutputs(handles=handles, token_ids=range(8)))
    attachment.wake()
    await reader


async def test_waiting_ends_by_news_time_or_cancellation() -> None:
    signal = ChangeSignal()
    assert not await signal.wait(0.001)
    waiter = asyncio.create_task(signal.wait(10))
    await asyncio.sleep(0)
    signal.notify()
    assert await waiter
    waiter = asyncio.create_task(signal.wait())
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert not signal._waiters
