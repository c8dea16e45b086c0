"""Rules, the checks that try them, and what came out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

import grpc

from services.rpc.errors import describe

Server = TypeVar("Server")

# A rule that needs longer is broken: nothing a check does takes an engine that works more than a moment.
CHECK_TIMEOUT_S = 60.0


class Broken(Exception):
    """The rule is broken; the message says what was seen instead."""


class NotOffered(Exception):
    """The server does not offer an optional part, so that its rules cannot be tried; the message says which."""


class Verdict(Enum):
    """What came out of one rule."""

    KEPT = "kept"
    BROKEN = "broken"
    NOT_OFFERED = "not offered"


@dataclass(frozen=True, slots=True)
class Rule(Generic[Server]):
    """One sentence of the contract and the check that tries it.

    `name` is stable and short, for scripts ("generate-usage"). `optional` rules may be answered UNIMPLEMENTED.
    """

    name: str
    sentence: str
    check: Callable[[Server], Awaitable[None]]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule's name and sentence, what came out, and what was seen when it was not kept."""

    name: str
    sentence: str
    verdict: Verdict
    seen: str = ""


async def try_rules(
    rules: Iterable[Rule[Server]], server: Server, *, timeout_s: float = CHECK_TIMEOUT_S
) -> AsyncIterator[Finding]:
    """One finding per rule, in order, as each is known."""
    for rule in rules:
        verdict, seen = await _try(rule, server, timeout_s)
        yield Finding(rule.name, rule.sentence, verdict, seen)


async def _try(rule: Rule[Server], server: Server, timeout_s: float) -> tuple[Verdict, str]:
    try:
        async with asyncio.timeout(timeout_s):
            await rule.check(server)
    except Broken as broken:
        return Verdict.BROKEN, str(broken)
    except NotOffered as missing:
        return Verdict.NOT_OFFERED, str(missing)
    except TimeoutError:
        return Verdict.BROKEN, f"nothing came within {timeout_s:g} s"
    except grpc.aio.AioRpcError as error:
        code, message = error.code(), describe(error).message
        if rule.optional and code is grpc.StatusCode.UNIMPLEMENTED:
            return Verdict.NOT_OFFERED, message
        return Verdict.BROKEN, f"the call ended with {code.name}: {message}"
    return Verdict.KEPT, ""


def expect(condition: object, seen: str) -> None:
    """Raises Broken with what was seen unless the condition holds."""
    if not condition:
        raise Broken(seen)


async def expect_status(call: Awaitable[object], codes: Sequence[grpc.StatusCode], what: str) -> grpc.aio.AioRpcError:
    """Awaits a call that must fail with one of `codes`; raises Broken otherwise."""
    wanted = " or ".join(code.name for code in codes)
    try:
        await call
    except grpc.aio.AioRpcError as error:
        if error.code() not in codes:
            raise Broken(f"{what} ended with {error.code().name} ({error.details()}) instead of {wanted}") from error
        return error
    raise Broken(f"{what} was taken; it must end with {wanted}")


def expect_violation(error: grpc.aio.AioRpcError, field: str, what: str) -> None:
    """The status's details name the field that is at fault (google.rpc.BadRequest)."""
    fields = [violation.field for violation in describe(error).violations]
    expect(
        any(field in each for each in fields),
        f"{what}: no google.rpc.BadRequest field violation names {field}; it names {', '.join(fields) or 'none'}",
    )
