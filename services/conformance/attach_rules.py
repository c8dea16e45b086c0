"""The rules of EngineService.Attach."""

from __future__ import annotations

from typing import Any

import grpc
from muster import v1 as wire

from services.conformance.engine_server import CALL_TIMEOUT_S, AttachedStream, EngineServer
from services.conformance.rules import Broken, Rule, expect, expect_status

_INVALID = (grpc.StatusCode.INVALID_ARGUMENT,)


async def _attached(server: EngineServer) -> None:
    status = await server.stub.GetStatus(wire.GetStatusRequest(), timeout=CALL_TIMEOUT_S)
    async with server.attach() as stream:
        seen = (stream.attached.rank, stream.attached.incarnation)
        expect(seen == (status.rank, status.incarnation), f"attached says rank and incarnation {seen}, GetStatus "
               f"{(status.rank, status.incarnation)}")  # fmt: skip
        same = stream.attached.model.fingerprint == server.model.fingerprint
        expect(same, "attached names another model than GetModel")


async def _open_first(server: EngineServer) -> None:
    call: Any = server.stub.Attach(timeout=CALL_TIMEOUT_S)
    try:
        await call.write(wire.AttachRequest(submit=wire.Submit(handle=1, request=server.request(1))))
        await expect_status(_drained(call), _INVALID, "a stream that begins with submit")
    finally:
        call.cancel()


async def _drained(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass
    code = await call.code()
    if code is not grpc.StatusCode.OK:
        raise grpc.aio.AioRpcError(
            code, await call.initial_metadata(), await call.trailing_metadata(), details=await call.details()
        )


async def _together(server: EngineServer) -> None:
    alone = await server.generate(server.request(6))
    async with server.attach() as stream:
        for handle in (7, 3, 4_000_000_000):
            await stream.submit(handle, server.request(6))
        await stream.until_ended(7, 3, 4_000_000_000)
        for handle, answer in stream.answers.items():
            expect(handle not in stream.failed, f"handle {handle} failed: {stream.failed.get(handle)}")
            expect(
                answer.token_ids == alone.token_ids,
                f"handle {handle} got {answer.token_ids}, Generate {alone.token_ids}",
            )
            assert answer.usage is not None
            expect(answer.usage.completion_tokens == 6, f"usage counts {answer.usage.completion_tokens} instead of 6")


async def _reuse(server: EngineServer) -> None:
    async with server.attach() as stream:
        for _ in range(2):
            await stream.submit(1, server.request(2))
            await stream.until_ended(1)
            expect(1 not in stream.failed, f"handle 1 failed: {stream.failed.get(1)}")


async def _in_use(server: EngineServer) -> None:
    async with server.attach() as stream:
        await stream.submit(1, server.request(server.long))
        await stream.until_started(1)
        await stream.call.write(wire.AttachRequest(submit=wire.Submit(handle=1, request=server.request(1))))
        await expect_status(_drained(stream.call), _INVALID, "a submit on a handle in use")


async def _failed(server: EngineServer) -> None:
    async with server.attach() as stream:
        await stream.submit(1, server.request(1, prompt=[server.model.vocab_size]))
        await stream.submit(2, server.request(3))
        await stream.until_ended(1, 2)
        expect(1 in stream.failed, "a request with a strange token id did not end with failed")
        failed = stream.failed[1]
        invalid = grpc.StatusCode.INVALID_ARGUMENT.value[0]
        expect(failed.code == invalid, f"failed.code is {failed.code}, not {invalid} (INVALID_ARGUMENT)")
        expect("prompt_token_ids" in failed.field, f"failed.field is {failed.field!r}; prompt_token_ids is at fault")
        expect(failed.reason and failed.message, "failed has no reason or no message")
        expect(2 not in stream.failed, "the request beside it failed too")


async def _abort(server: EngineServer) -> None:
    async with server.attach() as stream:
        await stream.submit(1, server.request(server.long))
        await stream.until_started(1)
        await stream.abort(99, 1)
        await stream.until_ended(1)
        reason = stream.answers[1].finish_reason
        expect(reason == wire.FINISH_REASON_ABORT, f"an aborted handle finished with {reason}, not ABORT")


async def _half_close(server: EngineServer) -> None:
    async with server.attach() as stream:
        await stream.submit(1, server.request(8))
        await stream.call.done_writing()
        await stream.until_ended(1)
        expect(len(stream.answers[1].token_ids) == 8, "a request did not run on after the half-close")
        expect(await stream.call.read() is grpc.aio.EOF, "the stream does not end although its last request has")
        code = await stream.call.code()
        expect(code is grpc.StatusCode.OK, f"the stream ended with {code.name}")


async def _broken(server: EngineServer) -> None:
    before = await server.num_live()
    async with server.attach() as stream:
        for handle in (1, 2):
            await stream.submit(handle, server.request(server.long))
            await stream.until_started(handle)
    await server.expect_idle(before, "after a broken stream")


async def _two_gateways(server: EngineServer) -> None:
    async with server.attach("one") as one, server.attach("two") as two:
        await one.submit(1, server.request(4))
        await two.submit(1, server.request(4))
        for stream in (one, two):
            await _finish(stream)


async def _finish(stream: AttachedStream) -> None:
    await stream.until_ended(1)
    if 1 in stream.failed:
        raise Broken(f"equal handles of two gateways are in each other's way: {stream.failed[1].message}")


ATTACH_RULES: tuple[Rule[EngineServer], ...] = (
    Rule("attach-attached", "attached comes first and tells rank, incarnation and model", _attached),
    Rule("attach-open-first", "a stream that does not begin with open ends with INVALID_ARGUMENT", _open_first),
    Rule("attach-together", "requests of one stream run together and get what Generate gives", _together),
    Rule("attach-reuse", "a handle is free again after its end", _reuse),
    Rule("attach-in-use", "a submit on a handle in use ends the stream with INVALID_ARGUMENT", _in_use),
    Rule("attach-failed", "a bad request ends with failed, and nothing else does", _failed),
    Rule("attach-abort", "an aborted handle finishes with ABORT; unknown ones are ignored", _abort),
    Rule("attach-half-close", "after a half-close requests run on, and the stream ends with the last", _half_close),
    Rule("attach-broken", "a broken stream aborts its requests", _broken),
    Rule("attach-two-gateways", "handles of two streams have nothing to do with each other", _two_gateways),
)
