"""A gRPC channel to servicers of the same process: what a stub sends is handed over as it is, nothing is serialised.

It has what generated stubs and our own callers use of `grpc.aio.Channel`. Metadata, deadlines and compression are the
business of networks and are ignored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import grpc
from grpc.aio import EOF, AioRpcError, Metadata

from services.rpc.errors import ErrorTable, RpcError


class LocalChannel:
    """Calls methods of `services`: servicers by the full name of their service."""

    def __init__(self, services: Mapping[str, Any], error_tables: tuple[ErrorTable, ...] = ()) -> None:
        self._services = services
        self._error_tables = error_tables
        self._calls: set[_Call] = set()

    def unary_unary(self, path: str, *_: Any, **__: Any) -> Callable[..., Any]:
        async def call(request: Any, **_: Any) -> Any:
            try:
                return await self._method(path)(request, _Context())
            except Exception as error:
                raise self._as_call_error(error) from error

        return call

    def unary_stream(self, path: str, *_: Any, **__: Any) -> Callable[..., _Call]:
        return lambda request, **_: self._open(lambda call: self._method(path)(request, call.context))

    def stream_stream(self, path: str, *_: Any, **__: Any) -> Callable[..., _Call]:
        return lambda *_, **__: self._open(lambda call: self._method(path)(call.requests(), call.context))

    def stream_unary(self, path: str, *_: Any, **__: Any) -> Callable[..., Any]:
        def refuse(*_: Any, **__: Any) -> Any:
            raise NotImplementedError(f"{path} is not called within a process")

        return refuse

    async def close(self) -> None:
        for call in list(self._calls):
            call.cancel()
            await call.ended()

    def _open(self, respond: Callable[[_Call], AsyncIterator[Any]]) -> _Call:
        call = _Call(respond, self._as_call_error, self._calls.discard)
        self._calls.add(call)
        return call

    def _method(self, path: str) -> Callable[..., Any]:
        _, service, method = path.split("/")
        if service not in self._services:
            raise RpcError(grpc.StatusCode.UNIMPLEMENTED, f"{service} is not served here", reason="UNIMPLEMENTED")
        found: Callable[..., Any] = getattr(self._services[service], method)
        return found

    def _as_call_error(self, error: Exception) -> Exception:
        """What a caller over a network would see."""
        for table in self._error_tables:
            error = table(error) or error
        if isinstance(error, RpcError):
            return AioRpcError(error.code, Metadata(), Metadata(), details=error.message)
        return error


class _Context:
    """What servicers ask of a call's context."""

    def __init__(self) -> None:
        self.written: deque[Any] = deque()
        self._callbacks: list[Callable[[Any], None]] = []
        self._news = asyncio.Event()
        self._over = False

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def write(self, response: Any) -> None:
        """Beside what the method yields; what it yielded before comes first."""
        self.written.append(response)
        self._news.set()

    async def next_written(self) -> Any:
        """Waits for one."""
        while not self.written:
            self._news.clear()
            await self._news.wait()
        return self.written.popleft()

    def over(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


class _Call:
    """One streaming call, from the caller's side."""

    def __init__(
        self,
        respond: Callable[[_Call], AsyncIterator[Any]],
        as_call_error: Callable[[Exception], Exception],
        on_over: Callable[[_Call], None],
    ) -> None:
        self.context = _Context()
        self._as_call_error = as_call_error
        self._on_over = on_over
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._responses: Any = respond(self)
        self._yielding: asyncio.Task[Any] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def requests(self) -> AsyncIterator[Any]:
        """What the caller writes, for the servicer."""
        while (request := await self._requests.get()) is not EOF:
            yield request

    async def write(self, request: Any) -> None:
        self._requests.put_nowait(request)

    async def done_writing(self) -> None:
        self._requests.put_nowait(EOF)

    async def read(self) -> Any:
        if self._yielding is None and not self.context.written:
            self._yielding = asyncio.create_task(self._next_yielded())
        writing = asyncio.create_task(self.context.next_written())
        try:
            waited = {writing} if self._yielding is None else {writing, self._yielding}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                return writing.result()
        finally:
            writing.cancel()
        assert self._yielding is not None, "one of both is done"
        yielding, self._yielding = self._yielding, None
        try:
            response = yielding.result()
        except Exception as error:
            self._end()
            raise self._as_call_error(error) from error
        if response is EOF:
            self._end()
        return response

    async def _next_yielded(self) -> Any:
        try:
            return await anext(self._responses)
        except StopAsyncIteration:
            return EOF

    def __aiter__(self) -> _Call:
        return self

    async def __anext__(self) -> Any:
        response = await self.read()
        if response is EOF:
            raise StopAsyncIteration
        return response

    def cancel(self) -> bool:
        if self._closing is None:
            self.context.over()
            self._closing = asyncio.create_task(self._close())
            return True
        return False

    async def ended(self) -> None:
        if self._closing is not None:
            await self._closing

    async def _close(self) -> None:
        if self._yielding is not None:
            self._yielding.cancel()
            await asyncio.wait({self._yielding})
        await self._responses.aclose()
        self._on_over(self)

    def _end(self) -> None:
        self._on_over(self)
        self.context.over()
