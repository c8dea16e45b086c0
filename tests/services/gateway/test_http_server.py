from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpx
import pytest

from gateway.http_server import HttpServer


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
