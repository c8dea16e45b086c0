"""The rules of EngineService outside Attach. Each check is named after the sentence it tries."""

from __future__ import annotations

import asyncio
import hashlib
import io
import zipfile
from contextlib import suppress

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from muster import v1 as wire

from services.conformance.engine_server import CALL_TIMEOUT_S, EngineServer
from services.conformance.rules import Broken, NotOffered, Rule, expect, expect_status, expect_violation

_INVALID = (grpc.StatusCode.INVALID_ARGUMENT,)
_MAX_CHUNK_BYTES = 64 * 1024


async def _status(server: EngineServer) -> None:
    status = await server.stub.GetStatus(wire.GetStatusRequest(), timeout=CALL_TIMEOUT_S)
    expect(status.incarnation, "incarnation is 0; it is microseconds since the epoch at process start")
    known = (wire.RANK_STATE_JOINING, wire.RANK_STATE_READY, wire.RANK_STATE_DRAINING)
    expect(status.state in known, f"state is {status.state}; an engine sees itself JOINING, READY or DRAINING")
    expect(status.HasField("load"), "load is absent")


async def _model(server: EngineServer) -> None:
    model = server.model
    expect(model.served_model_names, "served_model_names is empty")
    expect(model.vocab_size, "vocab_size is 0")
    expect(model.max_model_len, "max_model_len is 0")
    expect(model.fingerprint, "fingerprint is empty")
    expect(model.block_size, "block_size is 0")
    bad = [id for id in model.eos_token_ids if id >= model.vocab_size]
    expect(not bad, f"eos_token_ids {bad} are not below vocab_size {model.vocab_size}")


async def _length(server: EngineServer) -> None:
    answer = await server.generate(server.request(6))
    expect(len(answer.token_ids) == 6, f"{len(answer.token_ids)} tokens came for max_tokens 6 with ignore_eos")
    expect(answer.finish_reason == wire.FINISH_REASON_LENGTH, f"finish_reason is {answer.finish_reason}, not LENGTH")


async def _usage(server: EngineServer) -> None:
    answer = await server.generate(server.request(3, prompt=server.prompt(9)))
    assert answer.usage is not None
    assert answer.prompt is not None
    seen = (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.prompt.num_tokens)
    expect(
        seen == (9, 3, 9), f"9 prompt and 3 generated tokens count as {seen[0]} and {seen[1]} (prompt info {seen[2]})"
    )


async def _greedy(server: EngineServer) -> None:
    first = await server.generate(server.request(8))
    second = await server.generate(server.request(8))
    expect(first.token_ids == second.token_ids, f"temperature 0 gave {first.token_ids}, then {second.token_ids}")


async def _seed(server: EngineServer) -> None:
    request = server.request(8)
    request.sampling.CopyFrom(wire.SamplingParams(temperature=1.0, seed=7))
    first, second = await server.generate(request), await server.generate(request)
    expect(first.token_ids == second.token_ids, f"seed 7 gave {first.token_ids}, then {second.token_ids}")


async def _continuation(server: EngineServer) -> None:
    whole = await server.generate(server.request(8))
    rest = await server.generate(server.request(8, generated_token_ids=whole.token_ids[:3]))
    expect(
        rest.token_ids == whole.token_ids[3:],
        f"after the generated tokens {whole.token_ids[:3]} came {rest.token_ids} instead of {whole.token_ids[3:]}",
    )
    assert rest.usage is not None
    expect(
        rest.usage.completion_tokens == 8,
        f"3 earlier and 5 new tokens count as {rest.usage.completion_tokens} completion_tokens instead of 8",
    )


async def _stop_token(server: EngineServer) -> None:
    whole = await server.generate(server.request(8))
    token_id = whole.token_ids[4]
    request = server.request(8)
    request.stop.stop_token_ids.append(token_id)
    answer = await server.generate(request)
    first = whole.token_ids.index(token_id)
    expect(answer.token_ids == whole.token_ids[: first + 1], f"stop token {token_id} gave {answer.token_ids}")
    expect(answer.finish_reason == wire.FINISH_REASON_STOP, f"finish_reason is {answer.finish_reason}, not STOP")
    expect(answer.stop_token_id == token_id, f"stop_token_id is {answer.stop_token_id}, not {token_id}")


async def _empty_prompt(server: EngineServer) -> None:
    request = server.request(1)
    del request.prompt_token_ids[:]
    error = await expect_status(server.generate(request), _INVALID, "a request without prompt_token_ids")
    expect_violation(error, "prompt_token_ids", "a request without prompt_token_ids")


async def _strange_token(server: EngineServer) -> None:
    request = server.request(1, prompt=[server.model.vocab_size])
    error = await expect_status(server.generate(request), _INVALID, f"token id {server.model.vocab_size}")
    expect_violation(error, "prompt_token_ids", f"token id {server.model.vocab_size}")


async def _long_prompt(server: EngineServer) -> None:
    request = server.request(1, prompt=server.prompt(server.model.max_model_len + 1))
    await expect_status(server.generate(request), _INVALID, "a prompt longer than max_model_len")


async def _bad_temperature(server: EngineServer) -> None:
    request = server.request(1)
    request.sampling.temperature = -1.0
    error = await expect_status(server.generate(request), _INVALID, "temperature -1")
    expect_violation(error, "temperature", "temperature -1")


async def _unknown_field(server: EngineServer) -> None:
    raw = server.request(2).SerializeToString() + bytes([0xC2, 0x3E, 0x03]) + b"new"  # field 1000, length-delimited
    call = server.channel.unary_stream(
        "/muster.v1.EngineService/Generate",
        request_serializer=lambda request: request,
        response_deserializer=wire.GenerateResponse.FromString,
    )
    messages = [message async for message in call(raw, timeout=CALL_TIMEOUT_S)]
    expect(messages and messages[-1].finish_reason, "a request with a field of a later contract was not answered")


async def _live_id(server: EngineServer) -> None:
    call = server.stub.Generate(server.request(server.long, request_id="twice"), timeout=CALL_TIMEOUT_S)
    try:
        await call.read()
        codes = (grpc.StatusCode.ALREADY_EXISTS,)
        await expect_status(server.generate(server.request(1, request_id="twice")), codes, "a live request_id")
    finally:
        call.cancel()


async def _cancel(server: EngineServer) -> None:
    before = await server.num_live()
    call = server.stub.Generate(server.request(server.long), timeout=CALL_TIMEOUT_S)
    await call.read()
    call.cancel()
    await server.expect_idle(before, "after a cancelled call")


async def _deadline(server: EngineServer) -> None:
    before = await server.num_live()
    with suppress(grpc.aio.AioRpcError):
        await server.generate(server.request(server.long), timeout_s=0.3)
    await server.expect_idle(before, "after a call's deadline")


async def _abort(server: EngineServer) -> None:
    unknown = await server.stub.Abort(wire.AbortRequest(request_ids=["nobody"]), timeout=CALL_TIMEOUT_S)
    expect(unknown.aborted == 0, f"an unknown id counted as {unknown.aborted}")
    running = asyncio.create_task(server.generate(server.request(server.long, request_id="ends")))
    try:
        aborted = 0  # the request may not have arrived when the first Abort does
        while not aborted and not running.done():
            answer = await server.stub.Abort(wire.AbortRequest(request_ids=["ends"]), timeout=CALL_TIMEOUT_S)
            aborted = answer.aborted
            await asyncio.sleep(0.01)
        result = await running
    finally:
        running.cancel()
    expect(aborted == 1, "a live id was not counted as aborted")
    expect(result.finish_reason == wire.FINISH_REASON_ABORT, f"finish_reason is {result.finish_reason}, not ABORT")


async def _logprobs(server: EngineServer) -> None:
    try:
        answer = await server.generate(server.request(4, logprobs=2))
    except grpc.aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED):
            raise NotOffered(f"logprobs: {error.details()}") from error
        raise
    ids = [each.token_id for each in answer.logprobs]
    expect(ids == answer.token_ids, f"logprobs tell of tokens {ids}, generated were {answer.token_ids}")
    for each in answer.logprobs:
        expect(len(each.top_token_ids) == len(each.top_logprobs) == 2, "there are not 2 rivals, as asked")
        ordered = list(each.top_logprobs) == sorted(each.top_logprobs, reverse=True)
        expect(ordered, f"top_logprobs {list(each.top_logprobs)} are not in order, best first")
        expect(each.logprob <= 1e-6, f"logprob {each.logprob} is above 0")


async def _tokenizer(server: EngineServer) -> None:
    data = bytearray()
    digests: list[str] = []
    async for chunk in server.stub.GetTokenizer(wire.GetTokenizerRequest(), timeout=CALL_TIMEOUT_S):
        expect(not digests, "a chunk came after the one with sha256")
        expect(len(chunk.data) <= _MAX_CHUNK_BYTES, f"a chunk has {len(chunk.data)} bytes; at most 64 KiB")
        data += chunk.data
        if chunk.sha256:
            digests.append(chunk.sha256)
    expect(digests, "the last chunk has no sha256")
    expect(digests[0] == hashlib.sha256(data).hexdigest(), "sha256 is not that of the data, in lower-case hex")
    try:
        names = zipfile.ZipFile(io.BytesIO(bytes(data))).namelist()
    except zipfile.BadZipFile as error:
        raise Broken(f"the data is no zip archive: {error}") from error
    wanted = {"tokenizer.json", "gguf_tokenizer.json"}
    expect(wanted & set(names), f"the archive has neither of {', '.join(sorted(wanted))}; it has {', '.join(names)}")


async def _stats(server: EngineServer) -> None:
    call = server.stub.WatchStats(wire.WatchStatsRequest(), timeout=CALL_TIMEOUT_S)
    running = asyncio.create_task(server.generate(server.request(min(64, server.long))))
    try:
        steps = [(await call.read()).step for _ in range(3)]
    finally:
        call.cancel()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    expect(steps == sorted(set(steps)), f"steps {steps} do not grow")


async def _health(server: EngineServer) -> None:
    stub = health_pb2_grpc.HealthStub(server.channel)
    for name in ("", "muster.v1.EngineService"):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=CALL_TIMEOUT_S)
        expect(answer.status == health_pb2.HealthCheckResponse.SERVING, f"the health of {name!r} is not SERVING")


ENGINE_RULES: tuple[Rule[EngineServer], ...] = (
    Rule("health", "grpc.health.v1 says SERVING for EngineService and for the process", _health),
    Rule("status", "GetStatus tells incarnation, state and load", _status),
    Rule("model", "GetModel tells what a gateway needs to know", _model),
    Rule("length", "max_tokens with ignore_eos makes exactly so many tokens and ends with LENGTH", _length),
    Rule("usage", "prompt comes once, first; usage comes last and counts every token", _usage),
    Rule("greedy", "temperature 0 gives the same tokens each time", _greedy),
    Rule("seed", "equal seeds give equal tokens", _seed),
    Rule(
        "continuation",
        "generation goes on after generated_token_ids, which count and are not sent again",
        _continuation,
    ),
    Rule("stop-token", "a stop token ends the answer, is its last token and is named", _stop_token),
    Rule("empty-prompt", "no prompt is INVALID_ARGUMENT and names prompt_token_ids", _empty_prompt),
    Rule("strange-token", "a token id beyond the vocabulary is INVALID_ARGUMENT and names its field", _strange_token),
    Rule("long-prompt", "a prompt beyond the context is INVALID_ARGUMENT", _long_prompt),
    Rule("bad-temperature", "a value out of range is INVALID_ARGUMENT and names its field", _bad_temperature),
    Rule("unknown-field", "fields of a later contract are ignored", _unknown_field),
    Rule("live-id", "a request_id that is live is ALREADY_EXISTS", _live_id),
    Rule("cancel", "cancelling the call aborts the request", _cancel),
    Rule("deadline", "the call's deadline aborts the request", _deadline),
    Rule("abort", "Abort ends live requests with ABORT and does not count unknown ones", _abort),
    Rule("logprobs", "logprobs come one per token, with as many rivals as asked, best first", _logprobs, optional=True),
    Rule("tokenizer", "GetTokenizer streams a zip archive in chunks of at most 64 KiB, its SHA-256 last", _tokenizer),
    Rule("stats", "WatchStats streams steps whose numbers grow", _stats, optional=True),
)
