from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.http_server import HttpServer
from gateway.patience import Limits


def listening_socket() -> socket.socket:
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    bound.listen(8)
    return bound


class App:
    """Answers when it is let go."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        self.entered.set()
        await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


async def test_stopping_lets_running_answers_finish_and_takes_no_more() -> None:
    app, bound = App(), listening_socket()
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    server = HttpServer(app, [bound], shutdown_timeout_s=20)
    await server.start()
    async with httpx.AsyncClient() as client:
        answer = asyncio.create_task(client.get(url))
        await app.entered.wait()
        stopping = asyncio.create_task(server.stop())
        async with asyncio.timeout(10):
            while await _accepts(url):  # noqa: ASYNC110  (the kernel has no event for it)
                await asyncio.sleep(0.01)
        assert not answer.done()
        app.go.set()
        assert (await answer).text == "ok"
        await stopping


async def _accepts(url: str) -> bool:
    async with httpx.AsyncClient(timeout=0.2) as client:
        try:
            await client.get(url)
        except httpx.ConnectError:
            return False
        except httpx.HTTPError:
            pass
        return True


async def test_answers_that_take_too_long_are_cut_off() -> None:
    app, bound = App(), listening_socket()
    server = HttpServer(app, [bound], shutdown_timeout_s=0)
    await server.start()
    async with httpx.AsyncClient() as client:
        answer = asyncio.create_task(client.get(f"http://127.0.0.1:{bound.getsockname()[1]}"))
        await app.entered.wait()
        await asyncio.wait_for(server.stop(), 10)
        with pytest.raises(httpx.HTTPError):
            (await answer).raise_for_status()


async def test_a_socket_survives_for_the_next_server() -> None:
    """A restarted gateway finds the launcher's socket again; connections made meanwhile wait in it."""
    bound = listening_socket()
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    first = HttpServer(App(), [bound.dup()], shutdown_timeout_s=1)
    await first.start()
    await first.stop()
    async with httpx.AsyncClient() as client:
        answer = asyncio.create_task(client.get(url))
        app = App()
        app.go.set()
        second = HttpServer(app, [bound], shutdown_timeout_s=1)
        await second.start()
        assert (await answer).text == "ok"
    await second.stop()


@contextlib.asynccontextmanager
async def serving(app: App, limits: Limits) -> AsyncIterator[int]:
    bound = listening_socket()
    server = HttpServer(app, [bound], shutdown_timeout_s=0, limits=limits)
    await server.start()
    try:
        yield bound.getsockname()[1]
    finally:
        await asyncio.wait_for(server.stop(), 10)


@pytest.mark.parametrize(
    ("said", "answered"),
    [
        (b"", b""),
        (b"POST /v1/completions HTTP/1.1\r\nHo", b"HTTP/1.1 408"),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", b""),
    ],
    ids=["nothing", "half a head", "half a body"],
)
async def test_a_connection_that_never_says_enough_is_closed(said: bytes, answered: bytes) -> None:
    async with serving(App(), Limits(request_s=0.1, head_s=0.1, body_s=0.1)) as port, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        heard = b""
        with contextlib.suppress(ConnectionResetError):
            while data := await reader.read(1000):
                heard += data
        writer.close()
    assert heard[: len(answered)] == answered
    assert bool(heard) == bool(answered)


async def test_a_connection_that_was_answered_before_its_body_is_closed_too() -> None:
    class Hasty(App):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "lifespan":
                await super().__call__(scope, receive, send)
                return
            headers = [(b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 404, "headers": headers})
            await send({"type": "http.response.body", "body": b""})

    async with serving(Hasty(), Limits(request_s=0.1)) as port, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404")
        writer.write(b"{}")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read(1) == b""
        writer.close()


async def test_a_client_that_never_reads_is_let_go() -> None:
    class Talker(App):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "lifespan":
                await super().__call__(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await receive()  # the request
            gone = asyncio.ensure_future(receive())
            while not gone.done():
                await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
            self.go.set()

    app = Talker()
    async with serving(app, Limits(reader_s=0.1)) as port, asyncio.timeout(10):
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await app.go.wait()
        writer.transport.abort()


async def test_silent_connections_make_room_for_one_that_asks() -> None:
    app = App()
    app.go.set()
    async with serving(app, Limits(num_connections=3)) as port, asyncio.timeout(10):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        async with httpx.AsyncClient() as client:
            for _ in range(2):
                assert (await client.get(f"http://127.0.0.1:{port}")).text == "ok"
        for reader, _ in silent[:3]:
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read(1) == b""
        for _, writer in silent:
            writer.transport.abort()
