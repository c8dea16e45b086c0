"""The one place where exceptions of handlers become statuses; nothing else aborts a call."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from services.rpc.errors import ErrorTable, RpcError, to_status

_log = logging.getLogger(__name__)

# A message of 64 MiB needs 9 Mbit/s for that.
_MESSAGE_TIMEOUT_S = 60.0

_Handler = Any  # grpc.RpcMethodHandler: the four kinds differ by attributes, and its stub names none of them


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler so that RpcError and the exceptions of the tables end the call with rich details.

    Anything else ends it with INTERNAL and is logged with its traceback.
    """

    def __init__(self, tables: Sequence[ErrorTable]) -> None:
        self._tables = tuple(tables)
        self._wrapped: dict[str, _Handler] = {}  # by method; bounded by the methods that are registered

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        method = handler_call_details.method
        wrapped = self._wrapped.get(method)
        if wrapped is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None  # unknown method: the server answers UNIMPLEMENTED
            wrapped = self._wrapped[method] = self._wrap(handler, method)
        return wrapped

    def _wrap(self, handler: _Handler, method: str) -> _Handler:
        behavior = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        # Also for methods that take one message: left to itself, grpc lets a call wait for ever whose message never
        # comes, and answers UNKNOWN to bytes that it cannot parse, before any handler sees them.
        kind = grpc.stream_stream_rpc_method_handler
        if not handler.response_streaming:
            kind = grpc.stream_unary_rpc_method_handler
        if inspect.isasyncgenfunction(behavior):
            guarded: Callable[..., Any] = self._guard_generator(behavior, method)
        elif inspect.iscoroutinefunction(behavior):
            guarded = self._guard_coroutine(behavior, method)
        else:
            # All handlers of ours are async: a plain function is the generated placeholder.
            guarded = self._guard_coroutine(_unimplemented(method), method)
        read = _strict(handler.request_deserializer, method)
        if handler.request_streaming:
            return kind(guarded, read, handler.response_serializer)

        async def parsed(messages: AsyncIterator[bytes], context: Any) -> Any:
            try:
                request = read(await _only_message(messages, method))
            except RpcError as error:
                await self._abort(error, method, context)
            return await guarded(request, context)

        return kind(parsed, None, handler.response_serializer)

    def _guard_coroutine(self, behavior: Callable[..., Awaitable[Any]], method: str) -> Callable[..., Any]:
        async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            try:
                return await behavior(request, context)
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await self._abort(error, method, context)

        return guarded

    def _guard_generator(self, behavior: Callable[..., Any], method: str) -> Callable[..., Any]:
        # Writes by itself: grpc would leave a generator of a cancelled call to the garbage collector, and leases
        # must end at once.
        async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            try:
                async with contextlib.aclosing(behavior(request, context)) as responses:
                    async for response in responses:
                        await context.write(response)
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await self._abort(error, method, context)

        return guarded

    async def _abort(self, error: Exception, method: str, context: Any) -> None:
        await context.abort_with_status(to_status(self._translate(error, method)))

    def _translate(self, error: Exception, method: str) -> RpcError:
        if isinstance(error, RpcError):
            return error
        for table in self._tables:
            known = table(error)
            if known is not None:
                return known
        _log.error("handler of %s failed", method, exc_info=error)
        return RpcError(
            grpc.StatusCode.INTERNAL,
            f"{method} failed with {type(error).__name__}; the log of this process has the details",
            reason="INTERNAL",
        )


async def _only_message(messages: AsyncIterator[bytes], method: str) -> bytes:
    try:
        async with asyncio.timeout(_MESSAGE_TIMEOUT_S):
            content = await anext(aiter(messages), None)
    except TimeoutError:
        raise RpcError(
            grpc.StatusCode.DEADLINE_EXCEEDED,
            f"{method} got no message within {_MESSAGE_TIMEOUT_S:g} s of the call's beginning; send it with the call",
            reason="MESSAGE_TIMEOUT",
        ) from None
    if content is None:
        message = f"{method} takes one message, and the call ended without any; send one, if an empty one"
        raise RpcError(grpc.StatusCode.INVALID_ARGUMENT, message, reason="MESSAGE_MISSING")
    return content


def _strict(deserializer: Callable[[bytes], Any], method: str) -> Callable[[bytes], Any]:
    """Bytes that are no message are the caller's fault."""

    def read(content: bytes) -> Any:
        try:
            return deserializer(content)
        except DecodeError as error:
            message = f"{method} got {len(content)} bytes that are not the message it takes; send what the .proto says"
            raise RpcError(grpc.StatusCode.INVALID_ARGUMENT, message, reason="MALFORMED_MESSAGE") from error

    return read


def _unimplemented(method: str) -> Callable[..., Awaitable[Any]]:
    async def behavior(request: Any, context: Any) -> Any:
        raise RpcError(
            grpc.StatusCode.UNIMPLEMENTED,
            f"{method} is part of the contract but not served by this process",
            reason="UNIMPLEMENTED",
        )

    return behavior
