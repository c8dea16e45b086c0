"""Merging, ends and keys of mailboxes."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import DuplicateRequestError
from engine.request import FinishReason, PromptInfo, TokenOutput, Usage
from services.engine.mailboxes import Mailbox, Mailboxes


def token(key: str, *token_ids: int) -> TokenOutput:
    return TokenOutput(key, token_ids)


def last(key: str, *token_ids: int) -> TokenOutput:
    return TokenOutput(key, token_ids, finish_reason=FinishReason.LENGTH, usage=Usage(1, 2, 0))


async def test_a_slow_reader_finds_one_merged_delta() -> None:
    mailboxes, mailbox = Mailboxes(), Mailbox()
    key = mailboxes.open("a", mailbox)
    mailboxes.deliver([TokenOutput(key, (1,), prompt=PromptInfo(3, 0))])
    mailboxes.deliver([token(key, 2)])
    mailboxes.deliver([last(key, 3)])
    delta = await mailbox.take()
    assert delta.token_ids == [1, 2, 3]
    assert delta.prompt == PromptInfo(3, 0)
    assert delta.end == last(key, 3)


async def test_a_reader_that_keeps_up_gets_each_step() -> None:
    mailboxes, mailbox = Mailboxes(), Mailbox()
    key = mailboxes.open("a", mailbox)
    for step in range(3):
        taking = asyncio.create_task(mailbox.take())
        await asyncio.sleep(0)
        assert not taking.done()
        mailboxes.deliver([token(key, step)])
        assert (await taking).token_ids == [step]


async def test_an_error_comes_after_the_tokens_before_it() -> None:
    mailboxes, mailbox = Mailboxes(), Mailbox()
    key = mailboxes.open("a", mailbox)
    mailboxes.deliver([token(key, 1)])
    mailboxes.fail(key, ValueError("broken"))
    assert (await mailbox.take()).token_ids == [1]
    with pytest.raises(ValueError, match="broken"):
        await mailbox.take()


async def test_a_live_id_is_refused_and_a_finished_one_is_free() -> None:
    mailboxes = Mailboxes()
    key = mailboxes.open("a", Mailbox())
    with pytest.raises(DuplicateRequestError):
        mailboxes.open("a", Mailbox())
    mailboxes.deliver([last(key)])
    assert mailboxes.open("a", Mailbox()) != key


async def test_requests_without_an_id_never_collide() -> None:
    mailboxes = Mailboxes()
    assert mailboxes.open("", Mailbox()) != mailboxes.open("", Mailbox())


async def test_the_last_output_of_an_aborted_request_does_not_reach_the_next_with_its_id() -> None:
    mailboxes, second = Mailboxes(), Mailbox()
    old = mailboxes.open("a", Mailbox())
    mailboxes.close(old)
    new = mailboxes.open("a", second)
    mailboxes.deliver([TokenOutput(old, finish_reason=FinishReason.ABORT), token(new, 5)])
    delta = await second.take()
    assert delta.token_ids == [5]
    assert delta.end is None


async def test_closing_twice_is_harmless() -> None:
    mailboxes = Mailboxes()
    key = mailboxes.open("a", Mailbox())
    assert mailboxes.close(key)
    assert not mailboxes.close(key)
    assert mailboxes.key_of("a") is None


async def test_fail_all_ends_everything() -> None:
    mailboxes = Mailboxes()
    boxes = [Mailbox() for _ in range(3)]
    for index, box in enumerate(boxes):
        mailboxes.open(str(index), box)
    mailboxes.fail_all(ValueError("dead"))
    for box in boxes:
        with pytest.raises(ValueError, match="dead"):
            await box.take()
    assert len(mailboxes) == 0


async def test_wait_empty_returns_with_the_last_request() -> None:
    mailboxes = Mailboxes()
    await mailboxes.wait_empty()
    key = mailboxes.open("a", Mailbox())
    waiting = asyncio.create_task(mailboxes.wait_empty())
    await asyncio.sleep(0)
    assert not waiting.done()
    mailboxes.deliver([last(key)])
    await waiting
