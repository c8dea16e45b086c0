"""What is no request: an error object, in words of HTTP's own status, on a connection that then ends."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import pytest

from gateway.http_protocol import MAX_HEAD_BYTES
from gateway.http_server import HttpServer
from tests.support.rest_api import Json, RestApi

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"


@pytest.fixture
async def port(api: RestApi) -> AsyncIterator[int]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    server = HttpServer(api.app(), [listener], shutdown_timeout_s=5)
    await server.start()
    yield listener.getsockname()[1]
    await server.stop()


async def answers(port: int, *pieces: bytes) -> list[tuple[int, Json]]:
    """Sends the pieces and reads until the server ends the connection: its answers, each with a body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        received = b""
        async with asyncio.timeout(20):
            while data := await reader.read(1 << 16):
                received += data
    finally:
        writer.transport.abort()
    found = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length = int(fields[b"content-length"])
        assert fields[b"content-type"] == b"application/json"
        found.append((int(head.split()[1]), json.loads(rest[:length])))
        received = rest[length:]
    return found


@pytest.mark.parametrize(
    "pieces",
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",),
        (b"hello\r\n\r\n",),
        (b"GET /v1/models HTTP/9.9\r\nhost: x\r\n\r\n",),
        (b"GET /v1/\xff HTTP/1.1\r\nhost: x\r\n\r\n",),
        (b"GET /v1/mod els HTTP/1.1\r\nhost: x\r\n\r\n",),
        (HEAD + b"no colon\r\n\r\n",),
        (HEAD + b"content-length: many\r\n\r\n",),
        (HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n", b"zz\r\n"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n", b"3\r\nabcX\r\n"),
        (HEAD + b"expect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",),
        (HEAD + b"content-type: text/csv\r\nx-api-key: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",),
    ],
    ids=[
        "TLS",
        "HTTP/2",
        "words",
        "version",
        "bytes",
        "blank",
        "header",
        "length",
        "both",
        "size",
        "end",
        "expect",
        "at once",
    ],
)
async def test_what_cannot_be_read_gets_an_error_object(port: int, pieces: tuple[bytes, ...]) -> None:
    ((status, body),) = await answers(port, *pieces)
    assert status == 400
    error = body["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_http", None)


@pytest.mark.parametrize(
    "pieces",
    [
        (HEAD + b"x-a: " + b"y" * (1 << 20) + b"\r\n\r\n",),
        (HEAD + b"".join(b"x-%d: %b\r\n" % (number, b"y" * 100) for number in range(1000)) + b"\r\n",),
        (b"GET /" + b"z" * (1 << 20) + b" HTTP/1.1\r\nhost: x\r\n\r\n",),
        (HEAD + b"x-a: ", *[b"y" * 8192] * 20),
    ],
    ids=["one header", "many headers", "path", "a header without an end"],
)
async def test_a_large_head_is_refused(port: int, pieces: tuple[bytes, ...]) -> None:
    """And its sender, who is still sending, gets to read why."""
    ((status, body),) = await answers(port, *pieces)
    assert status == 431
    assert body["error"]["code"] == "headers_too_large"
    assert str(MAX_HEAD_BYTES) in body["error"]["message"]


async def test_headers_that_are_only_many_are_fine(port: int) -> None:
    more = b"".join(b"x-%d: %b\r\n" % (number, b"y" * 100) for number in range(400))
    head = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    ((status, body),) = await answers(port, head + more + b"\r\n")
    assert (status, body["object"]) == (200, "list")


async def test_a_good_request_before_what_is_broken_is_answered(port: int, api: RestApi) -> None:
    """With an answer of its own, and nobody else's."""
    body = b'{"prompt": "hi"}'
    good = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
    ((status, answer),) = await answers(port, good + b"\x00\x00 garbage\r\n\r\n")
    assert status == 200
    assert answer["object"] == "text_completion"
    assert len(api.generator.requests) == 1


_JAVA = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAA\r\n"
_BODY = b'{"prompt": "hi"}'
_SIZED = HEAD + _JAVA + b"content-length: %d\r\n\r\n" % len(_BODY)
_CHUNKED = HEAD + _JAVA + b"transfer-encoding: chunked\r\n\r\n"
_LAST = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        (_SIZED + _BODY + _LAST,),
        (_SIZED + _BODY, _LAST),
        (_SIZED, _BODY[:5], _BODY[5:] + _LAST),
        (_CHUNKED + b"5\r\n" + _BODY[:5] + b"\r\n", b"b\r\n" + _BODY[5:] + b"\r\n0\r\n\r\n" + _LAST),
        (HEAD[:-1], b"\n" + _JAVA[:20], _SIZED[len(HEAD) + 20 :] + _BODY, _LAST),
    ],
    ids=["at once", "two requests", "body apart", "chunks", "head in pieces"],
)
async def test_who_asks_for_http_2_is_answered_in_this_one(port: int, pieces: tuple[bytes, ...]) -> None:
    """As Java's own client asks with each request; its body must not be lost, nor the connection's next request."""
    (first, completion), (second, models) = await answers(port, *pieces)
    assert (first, completion["object"]) == (200, "text_completion")
    assert (second, models["object"]) == (200, "list")


async def test_who_asks_for_a_web_socket_is_answered_in_this_one(port: int) -> None:
    head = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    for status, body in await answers(port, head, head, _LAST):
        assert (status, body["object"]) == (200, "list")
