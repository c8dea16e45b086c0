"""The asynchronous client: the methods of `muster.client.blocking`, to be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar, Unpack

import grpc

from muster import v1 as wire
from muster.client.answers import Answer, Generated, TextReader, to_answer, to_generated
from muster.client.connection import INFERENCE, NO_FACTS, CallFacts, Connection, Metadata, Tls, engine_target
from muster.client.errors import CallCancelledError, to_error
from muster.client.options import (
    Message,
    Options,
    TokenOptions,
    to_duration,
    to_generate_request,
    to_generation_options,
    to_messages,
    to_prompt,
)

T = TypeVar("T")


class AsyncStream(Generic[T]):
    """What a server streams, message by message. Leaving its block, or `cancel`, ends the call."""

    def __init__(self, call: Any, pick: Callable[[Any], T]) -> None:
        self._call = call
        self._pick = pick

    async def __aiter__(self) -> AsyncIterator[T]:
        try:
            async for message in self._call:
                yield self._pick(message)
        except grpc.aio.AioRpcError as error:
            raise to_error(error) from error
        except asyncio.CancelledError:
            _tell_apart(self._call)
            raise

    async def __aenter__(self) -> AsyncStream[T]:
        return self

    async def __aexit__(self, *ended: object) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Ends the call; a request it stands for is aborted. Nothing happens once it ended."""
        self._call.cancel()


class AsyncTextStream:
    """An answer's deltas as they come. Raises TruncatedError when the stream ends before the answer does."""

    def __init__(self, call: Any) -> None:
        self._reader = TextReader()
        self._responses: AsyncStream[Any] = AsyncStream(call, lambda response: response)

    @property
    def request_id(self) -> str:
        """Known with the first delta."""
        return self._reader.request_id

    @property
    def usage(self) -> wire.Usage | None:
        """Known at the end."""
        return self._reader.usage

    async def __aiter__(self) -> AsyncIterator[wire.TextDelta]:
        async for response in self._responses:
            delta = self._reader.take(response)
            if delta is not None:
                yield delta
        self._reader.finish()

    async def __aenter__(self) -> AsyncTextStream:
        return self

    async def __aexit__(self, *ended: object) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Aborts the request."""
        self._responses.cancel()

    async def answer(self) -> Answer:
        """Everything that is still to come, put together."""
        return to_answer([delta async for delta in self], self._reader)


class AsyncEngine:
    """One rank: token ids in, token ids out."""

    def __init__(
        self, channel: grpc.aio.Channel, connection: Connection, rank: int | None, timeout_s: float | None
    ) -> None:
        self._stub = wire.EngineServiceStub(channel)
        self._connection = connection
        self._rank = rank
        self._timeout_s = timeout_s

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        request_id: str = "",
        traceparent: str | None = None,
        prompt_logprobs: int | None = None,
        timeout_s: float | None = None,
        **options: Unpack[TokenOptions],
    ) -> Generated:
        """Raises MusterError; TruncatedError when the rank was lost on the way."""
        stream = self.generate_stream(
            token_ids,
            request_id=request_id,
            traceparent=traceparent,
            prompt_logprobs=prompt_logprobs,
            timeout_s=timeout_s,
            **options,
        )
        return to_generated([response async for response in stream])

    def generate_stream(
        self,
        token_ids: Sequence[int],
        *,
        request_id: str = "",
        traceparent: str | None = None,
        prompt_logprobs: int | None = None,
        timeout_s: float | None = None,
        **options: Unpack[TokenOptions],
    ) -> AsyncStream[wire.GenerateResponse]:
        """Deltas, never cumulative; the last has finish_reason and usage."""
        request = to_generate_request(token_ids, options, request_id=request_id, prompt_logprobs=prompt_logprobs)
        facts = CallFacts(traceparent=traceparent, rank=self._rank)
        call = self._stub.Generate(
            request, timeout=self._timeout_s if timeout_s is None else timeout_s, metadata=self._metadata(facts)
        )
        return AsyncStream(call, _same)

    async def abort(self, request_ids: Sequence[str]) -> int:
        """Ends requests by their ids; returns how many were live."""
        return (await self._unary(self._stub.Abort, wire.AbortRequest(request_ids=request_ids))).aborted

    async def status(self) -> wire.GetStatusResponse:
        return await self._unary(self._stub.GetStatus, wire.GetStatusRequest())

    async def model(self) -> wire.ModelInfo:
        return (await self._unary(self._stub.GetModel, wire.GetModelRequest())).model

    async def _unary(self, method: Callable[..., Awaitable[T]], request: Any) -> T:
        return await _unary(method, request, self._timeout_s, self._metadata(NO_FACTS))

    def _metadata(self, facts: CallFacts) -> Metadata:
        return self._connection.metadata(facts)


class AsyncClient:
    """A deployment. Text needs a gateway, watching and operating the head; give either or both. It belongs to
    the event loop it was made on."""

    def __init__(
        self,
        gateway: str | None = None,
        *,
        head: str | None = None,
        token: str | Callable[[], str] | None = None,
        tls: Tls | None = None,
        timeout_s: float | None = None,
        retries: bool = True,
    ) -> None:
        """Targets are gRPC's: "host:port", "dns:///name:port", "ipv4:10.0.0.1:8001,10.0.0.2:8001", "unix:/path".

        `token` is a cluster token or an API key; a function is asked at every call. `timeout_s` is the deadline of
        every call that gives none of its own.
        """
        self._connection = Connection(token=token, tls=tls, retries=retries)
        self._timeout_s = timeout_s
        self._engines: dict[str, grpc.aio.Channel] = {}
        self._gateway = None if gateway is None else self._connection.dial_async(gateway, health_of=INFERENCE)
        self._head = None if head is None else self._connection.dial_async(head)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *ended: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends all calls that still run."""
        for channel in (self._gateway, self._head, *self._engines.values()):
            if channel is not None:
                await channel.close()

    async def chat(
        self,
        messages: str | Sequence[Message],
        *,
        model: str = "",
        request_id: str | None = None,
        traceparent: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Answer:
        """The whole answer. Raises MusterError."""
        return await self.chat_stream(
            messages, model=model, request_id=request_id, traceparent=traceparent, timeout_s=timeout_s, **options
        ).answer()

    def chat_stream(
        self,
        messages: str | Sequence[Message],
        *,
        model: str = "",
        request_id: str | None = None,
        traceparent: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> AsyncTextStream:
        """The answer as it is made."""
        request = wire.ChatRequest(model=model, messages=to_messages(messages), options=to_generation_options(options))
        facts = CallFacts(request_id, traceparent)
        return AsyncTextStream(self._stream(self._inference().Chat, request, timeout_s, facts))

    async def complete(
        self,
        prompt: str | Sequence[int],
        *,
        model: str = "",
        request_id: str | None = None,
        traceparent: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Answer:
        """The whole continuation of a text or of token ids; 16 tokens unless `max_tokens` says otherwise."""
        return await self.complete_stream(
            prompt, model=model, request_id=request_id, traceparent=traceparent, timeout_s=timeout_s, **options
        ).answer()

    def complete_stream(
        self,
        prompt: str | Sequence[int],
        *,
        model: str = "",
        request_id: str | None = None,
        traceparent: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> AsyncTextStream:
        """The continuation as it is made."""
        request = wire.CompleteRequest(model=model, options=to_generation_options(options), **to_prompt(prompt))
        facts = CallFacts(request_id, traceparent)
        return AsyncTextStream(self._stream(self._inference().Complete, request, timeout_s, facts))

    async def tokenize(self, text: str | Sequence[Message], *, model: str = "") -> list[int]:
        """Token ids of a text, or of messages through the chat template."""
        given: dict[str, Any] = {"text": text} if isinstance(text, str) else {"messages": to_messages(text)}
        response = await self._unary(self._inference().Tokenize, wire.TokenizeRequest(model=model, **given))
        return list(response.token_ids)

    async def detokenize(self, token_ids: Sequence[int], *, model: str = "", skip_special_tokens: bool = False) -> str:
        request = wire.DetokenizeRequest(model=model, token_ids=token_ids, skip_special_tokens=skip_special_tokens)
        return (await self._unary(self._inference().Detokenize, request)).text

    async def models(self) -> list[wire.ModelInfo]:
        return list((await self._unary(self._inference().ListModels, wire.ListModelsRequest())).models)

    async def engine(self, rank: int) -> AsyncEngine:
        """The rank's engine, where the head says that it is now. Raises LookupError for a rank that is nowhere."""
        target = engine_target(await self.roster(), rank)
        channel = self._engines.get(target)
        if channel is None:
            channel = self._engines.setdefault(target, self._connection.dial_async(target))
        return AsyncEngine(channel, self._connection, rank, self._timeout_s)

    def engine_at(self, target: str) -> AsyncEngine:
        """The engine at an address, without asking the head."""
        channel = self._engines.get(target)
        if channel is None:
            channel = self._engines.setdefault(target, self._connection.dial_async(target))
        return AsyncEngine(channel, self._connection, None, self._timeout_s)

    async def generate(self, token_ids: Sequence[int], *, rank: int, **options: Any) -> Generated:
        """On one rank; options are those of `AsyncEngine.generate`."""
        return await (await self.engine(rank)).generate(token_ids, **options)

    async def deployment(self) -> wire.GetDeploymentResponse:
        """Everything that `muster status` shows."""
        return await self._unary(self._rendezvous().GetDeployment, wire.GetDeploymentRequest())

    async def roster(self) -> wire.Roster:
        return (await self.deployment()).roster

    async def load(self) -> dict[int, wire.LoadStats]:
        """By rank, of those that have reported."""
        return {load.rank: load.stats for load in (await self.deployment()).loads}

    def watch_roster(self) -> AsyncStream[wire.Roster]:
        """The roster now, and after every change."""
        call = self._rendezvous().WatchRoster(wire.WatchRosterRequest(), metadata=self._metadata(NO_FACTS))
        return AsyncStream(call, lambda response: response.roster)

    def watch_load(
        self, *, min_interval_s: float | None = None, heartbeat_interval_s: float | None = None
    ) -> AsyncStream[wire.WatchLoadResponse]:
        """All loads now, and after every change; `heartbeat` is true when nothing has changed for so long."""
        request = wire.WatchLoadRequest(
            min_interval=to_duration(min_interval_s), heartbeat_interval=to_duration(heartbeat_interval_s)
        )
        call = wire.CoordinatorServiceStub(self._at_head()).WatchLoad(request, metadata=self._metadata(NO_FACTS))
        return AsyncStream(call, _same)

    async def drain(self, ranks: Sequence[int] = (), *, timeout_s: float | None = None) -> list[wire.RankResult]:
        """Lets ranks, or all, finish what runs and take no more; after `timeout_s` what still runs is aborted."""
        request = wire.DrainRequest(selector=wire.RankSelector(ranks=ranks), timeout=to_duration(timeout_s))
        return list((await self._operate(self._admin().Drain, request)).results)

    async def undrain(self, ranks: Sequence[int] = ()) -> list[wire.RankResult]:
        request = wire.UndrainRequest(selector=wire.RankSelector(ranks=ranks))
        return list((await self._unary(self._admin().Undrain, request)).results)

    async def restart(self, ranks: Sequence[int] = (), *, timeout_s: float | None = None) -> list[wire.RankResult]:
        """One after another, each drained first and waited for."""
        request = wire.RestartRequest(selector=wire.RankSelector(ranks=ranks), timeout=to_duration(timeout_s))
        return list((await self._operate(self._admin().Restart, request)).results)

    async def scale(self, data_parallel_size: int, *, timeout_s: float | None = None) -> list[wire.RankResult]:
        """Adds or takes away ranks, and answers for each; of a leaving one, what runs after `timeout_s` is aborted."""
        request = wire.ScaleRequest(data_parallel_size=data_parallel_size, timeout=to_duration(timeout_s))
        return list((await self._operate(self._admin().Scale, request)).results)

    async def reset_prefix_cache(self, ranks: Sequence[int] = ()) -> list[wire.RankResult]:
        request = wire.ResetPrefixCacheRequest(selector=wire.RankSelector(ranks=ranks))
        return list((await self._unary(self._admin().ResetPrefixCache, request)).results)

    def _inference(self) -> wire.InferenceServiceAsyncStub:
        if self._gateway is None:
            raise ValueError("this client knows no gateway: give its gRPC target, as in AsyncClient('127.0.0.1:8001')")
        return wire.InferenceServiceStub(self._gateway)

    def _at_head(self) -> grpc.aio.Channel:
        if self._head is None:
            raise ValueError("this client knows no head: give its target, as in AsyncClient(head='127.0.0.1:29550')")
        return self._head

    def _rendezvous(self) -> wire.RendezvousServiceAsyncStub:
        return wire.RendezvousServiceStub(self._at_head())

    def _admin(self) -> wire.AdminServiceAsyncStub:
        return wire.AdminServiceStub(self._at_head())

    def _stream(self, method: Callable[..., Any], request: Any, timeout_s: float | None, facts: CallFacts) -> Any:
        return method(
            request, timeout=self._timeout_s if timeout_s is None else timeout_s, metadata=self._metadata(facts)
        )

    async def _unary(self, method: Callable[..., Awaitable[T]], request: Any) -> T:
        return await _unary(method, request, self._timeout_s, self._metadata(NO_FACTS))

    async def _operate(self, method: Callable[..., Awaitable[T]], request: Any) -> T:
        """For what takes as long as requests run, or processes start: without this client's own deadline."""
        return await _unary(method, request, None, self._metadata(NO_FACTS))

    def _metadata(self, facts: CallFacts) -> Metadata:
        return self._connection.metadata(facts)


async def _unary(method: Callable[..., Awaitable[T]], request: Any, timeout_s: float | None, metadata: Metadata) -> T:
    call = method(request, timeout=timeout_s, metadata=metadata)
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise to_error(error) from error
    except asyncio.CancelledError:
        _tell_apart(call)
        raise


def _tell_apart(call: Any) -> None:
    """Raises CallCancelledError unless it is the reading task that was cancelled: grpc tells both alike."""
    task = asyncio.current_task()
    if call.cancelled() and (task is None or not task.cancelling()):
        raise CallCancelledError("this client has cancelled the call", code=grpc.StatusCode.CANCELLED) from None


def _same(message: T) -> T:
    return message
