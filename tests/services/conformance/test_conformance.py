"""The checker finds what is wrong: a real engine passes, the same engine with one thing spoiled does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from services.conformance.attach_rules import ATTACH_RULES
from services.conformance.engine_server import EngineServer
from services.conformance.generate_rules import ENGINE_RULES
from services.conformance.rendezvous_rules import HEAD_RULES, HeadServer
from services.conformance.rules import Broken, Finding, NotOffered, Rule, Verdict, try_rules
from tests.services.engine.conftest import EngineUnderTest, running_head

Spoil = Callable[[Any], Iterable[Any]]

# The engine under test has no health names set and an archive of arbitrary bytes; the cluster test has both.
_ELSEWHERE = {"health", "tokenizer"}
RULES = {rule.name: rule for rule in (*ENGINE_RULES, *ATTACH_RULES) if rule.name not in _ELSEWHERE}


@pytest.fixture
async def engine() -> AsyncIterator[EngineUnderTest]:
    async with EngineUnderTest() as under_test:
        under_test.load()
        yield under_test


async def findings(rules: Iterable[Rule[Any]], server: Any) -> dict[str, Finding]:
    return {finding.name: finding async for finding in try_rules(rules, server, timeout_s=20.0)}


async def server_of(engine: EngineUnderTest) -> EngineServer:
    return await EngineServer.of(engine._channel)


async def test_an_engine_of_ours_keeps_every_rule(engine: EngineUnderTest) -> None:
    found = await findings(RULES.values(), await server_of(engine))
    assert {name: finding.seen for name, finding in found.items() if finding.verdict is not Verdict.KEPT} == {}
    await engine.idle()


async def test_a_head_of_ours_keeps_every_rule() -> None:
    async with running_head() as target, grpc.aio.insecure_channel(target) as channel:
        found = await findings(HEAD_RULES, HeadServer(channel))
    assert {name: finding.seen for name, finding in found.items() if finding.verdict is not Verdict.KEPT} == {}


class SpoiledCall:
    """A call whose messages are changed on their way; everything else is the real call's."""

    def __init__(self, call: Any, spoil: Spoil) -> None:
        self._call = call
        self._spoil = spoil
        self._waiting: list[Any] = []

    async def read(self) -> Any:
        while not self._waiting:
            message = await self._call.read()
            if message is grpc.aio.EOF:
                return message
            self._waiting += self._spoil(message)
        return self._waiting.pop(0)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)


@contextmanager
def spoiled(server: EngineServer, method: str, spoil: Spoil) -> Iterator[None]:
    real = getattr(server.stub, method)
    setattr(server.stub, method, lambda *args, **kwargs: SpoiledCall(real(*args, **kwargs), spoil))
    try:
        yield
    finally:
        setattr(server.stub, method, real)


def without_usage(message: Any) -> Iterable[Any]:
    message.ClearField("usage")
    return [message]


def without_end(message: Any) -> Iterable[Any]:
    return [] if message.finish_reason else [message]


def prompt_each_time(message: Any) -> Iterable[Any]:
    message.prompt.num_tokens = 5
    return [message]


def beyond_vocabulary(message: Any) -> Iterable[Any]:
    message.token_ids[:] = [1000 for _ in message.token_ids]
    return [message]


def more_after_the_end(message: Any) -> Iterable[Any]:
    return [message, message] if message.finish_reason else [message]


def cumulative() -> Spoil:
    so_far: list[int] = []

    def spoil(message: Any) -> Iterable[Any]:
        so_far.extend(message.token_ids)
        message.token_ids[:] = so_far
        return [message]

    return spoil


def fewer_logprobs(message: Any) -> Iterable[Any]:
    del message.logprobs[:]
    return [message]


@pytest.mark.parametrize(
    ("rule", "spoil", "seen"),
    [
        ("usage", without_usage, "no usage"),
        ("length", without_end, "without finish_reason"),
        ("usage", prompt_each_time, "prompt came with message 2"),
        ("length", beyond_vocabulary, "not below vocab_size 1000"),
        ("length", more_after_the_end, "after the one with finish_reason"),
        ("length", cumulative(), "tokens came for max_tokens 6"),
        ("logprobs", fewer_logprobs, "logprobs tell of tokens []"),
    ],
)
async def test_a_spoiled_generate_is_found(engine: EngineUnderTest, rule: str, spoil: Spoil, seen: str) -> None:
    server = await server_of(engine)
    with spoiled(server, "Generate", spoil):
        finding = (await findings([RULES[rule]], server))[rule]
    assert finding.verdict is Verdict.BROKEN
    assert seen in finding.seen


def outputs_only(change: Callable[[Any], None]) -> Spoil:
    def spoil(frame: Any) -> Iterable[Any]:
        if frame.WhichOneof("frame") == "outputs":
            change(frame.outputs)
        return [frame]

    return spoil


def without_attached(frame: Any) -> Iterable[Any]:
    return [] if frame.WhichOneof("frame") == "attached" else [frame]


def unstarted(outputs: Any) -> None:
    del outputs.started[:]


def wrong_counts(outputs: Any) -> None:
    if outputs.handles:
        outputs.token_counts[:] = [9 for _ in outputs.handles]


def stranger(outputs: Any) -> None:
    for index, _ in enumerate(outputs.handles):
        outputs.handles[index] = 12345


def first_step_again(outputs: Any) -> None:
    outputs.step = max(0, 1_000_000 - outputs.step)


@pytest.mark.parametrize(
    ("spoil", "seen"),
    [
        (without_attached, "nothing came within"),
        (outputs_only(unstarted), "got tokens before it was started"),
        (outputs_only(wrong_counts), "token_counts add up to"),
        (outputs_only(stranger), "was never submitted"),
        (outputs_only(first_step_again), "came after step"),
    ],
)
async def test_a_spoiled_attach_is_found(engine: EngineUnderTest, spoil: Spoil, seen: str) -> None:
    server = await server_of(engine)
    with spoiled(server, "Attach", spoil):
        found = [finding async for finding in try_rules([RULES["attach-reuse"]], server, timeout_s=2.0)]
    assert found[0].verdict is Verdict.BROKEN
    assert seen in found[0].seen


async def test_verdicts_for_what_a_check_may_do() -> None:
    async def broken(_: object) -> None:
        raise Broken("a reason")

    async def missing(_: object) -> None:
        raise NotOffered("this part")

    async def silent(_: object) -> None:
        await asyncio.Event().wait()

    rules = [Rule("b", "", broken), Rule("m", "", missing), Rule("s", "", silent)]
    found = [finding async for finding in try_rules(rules, object(), timeout_s=0.05)]
    assert [(finding.verdict, finding.seen) for finding in found] == [
        (Verdict.BROKEN, "a reason"),
        (Verdict.NOT_OFFERED, "this part"),
        (Verdict.BROKEN, "nothing came within 0.05 s"),
    ]
