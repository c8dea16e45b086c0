"""Requests as bytes: headers that are damaged too, and bodies in chunks of all kinds."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.fuzz.bodies import large, mutated
from benchmarks.fuzz.endpoints import ENDPOINTS, Endpoint, Family
from benchmarks.fuzz.headers import HEADERS, METHODS, PATHS, QUERIES

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Shot:
    """One request. `pieces` go out one after the other. `is_clean`: framed so that the connection can be used again.

    `needs_answer` false: the request is torn, so that the server may also just close."""

    label: str
    pieces: tuple[bytes, ...]
    family: Family
    is_clean: bool = True
    needs_answer: bool = True
    has_body: bool = True  # of the answer; HEAD has none


class Shots:
    """An endless row of requests, the same for a seed."""

    def __init__(self, seed: int, *, api_key: str, response_id: str, model_id: str) -> None:
        self._chance = random.Random(seed)
        self._key = api_key.encode()
        self._names = {"{response_id}": response_id, "{model_id}": model_id}
        posts = [endpoint for endpoint in ENDPOINTS if endpoint.bodies]
        # Most of what can go wrong is in bodies.
        self._endpoints = [*posts * 5, *ENDPOINTS]

    def next(self) -> Shot:
        chance = self._chance
        endpoint = chance.choice(self._endpoints)
        body = mutated(chance.choice(endpoint.bodies), chance) if endpoint.bodies else b""
        for name, value in self._names.items():
            body = body.replace(name.encode(), value.encode())
        shot = self._framed(endpoint, self._target(endpoint), body)
        if chance.random() < 0.03:
            return chance.choice(_WIRE_DAMAGES)(shot, chance)
        return shot

    def large(self) -> Shot:
        """One of 10 MB."""
        endpoint = self._chance.choice([endpoint for endpoint in ENDPOINTS if endpoint.bodies])
        body = large(self._chance.choice(endpoint.bodies), self._chance)
        return self._framed(endpoint, endpoint.path.encode(), body)

    def _target(self, endpoint: Endpoint) -> bytes:
        path = endpoint.path
        for name, value in self._names.items():
            known = self._chance.random() < 0.7
            path = path.replace(
                name, value if known else self._chance.choice(("x", "%00", "resp_" + "f" * 32, "a/b", ""))
            )
        query = self._chance.choice(endpoint.queries).encode()
        if self._chance.random() < 0.05:
            query = self._chance.choice(QUERIES)
        return path.encode() + query

    def _framed(self, endpoint: Endpoint, target: bytes, body: bytes) -> Shot:
        chance = self._chance
        method, family = endpoint.method.encode(), endpoint.family
        headers: Headers = [
            (b"host", b"x"),
            (b"authorization", b"Bearer " + self._key),
            (b"content-type", b"application/json"),
        ]
        if chance.random() < 0.2:
            for name in chance.sample(sorted(HEADERS), chance.randint(1, 4)):
                headers = [pair for pair in headers if pair[0] != name or chance.random() < 0.3]
                headers.append((name, chance.choice(HEADERS[name])))
        if chance.random() < 0.01:
            headers += [(b"x-%d" % number, b"y" * 20) for number in range(chance.choice((50, 500)))]
        if chance.random() < 0.02:
            method = chance.choice(METHODS)
        if chance.random() < 0.02:
            target = chance.choice(PATHS)
            family = "anthropic" if target.partition(b"?")[0].startswith(b"/v1/messages/") else "openai"
        label = f"{method.decode()} {endpoint.path}"
        is_clean = method not in (b"HEAD", b"CONNECT") and not any(
            name in (b"upgrade", b"connection") for name, _ in headers
        )
        framing, data = (
            _chunked(body, chance) if chance.random() < 0.1 else ([(b"content-length", b"%d" % len(body))], body)
        )
        head = b"%b %b HTTP/1.1\r\n" % (method, target)
        head += b"".join(b"%b: %b\r\n" % pair for pair in [*headers, *framing]) + b"\r\n"
        return Shot(label, (head, data), family, is_clean, has_body=method != b"HEAD")


def _chunked(body: bytes, chance: random.Random) -> tuple[Headers, bytes]:
    parts, position = list[bytes](), 0
    while position < len(body):
        size = min(len(body) - position, chance.choice((1, 3, 100, 70_000, len(body))) if len(body) < 2000 else 70_000)
        extension = chance.choice((b"", b"", b";a=b", b";x", b' ; q="z"'))
        parts.append(b"%x%b\r\n%b\r\n" % (size, extension, body[position : position + size]))
        position += size
    parts.append(chance.choice((b"0\r\n\r\n", b"0\r\n\r\n", b"000\r\n\r\n", b"0\r\nx-trailer: y\r\n\r\n")))
    return [(b"transfer-encoding", b"chunked")], b"".join(parts)


def _with_head(shot: Shot, change: Callable[[bytes], bytes], *, needs_answer: bool = True) -> Shot:
    head, body = shot.pieces
    return replace(shot, pieces=(change(head), body), is_clean=False, needs_answer=needs_answer)


def _torn(shot: Shot, chance: random.Random) -> Shot:
    data = b"".join(shot.pieces)
    return replace(shot, pieces=(data[: chance.randrange(1, len(data))],), is_clean=False, needs_answer=False)


def _sized(shot: Shot, chance: random.Random) -> Shot:
    """A wrong length: the rest is taken for the next request, or never comes."""
    length = chance.choice(
        (b"0", b"1", b"5", b"99999", b"-5", b"\xb2", b"1e3", b"99999999999999999999999", b"", b"5, 5", b"+5")
    )
    head, body = shot.pieces
    head = head.replace(b"transfer-encoding: chunked\r\n", b"").replace(b"content-length", b"x-length")
    return replace(
        shot, pieces=(head[:-2] + b"content-length: " + length + b"\r\n\r\n", body), is_clean=False, needs_answer=False
    )


def _bad_chunks(shot: Shot, chance: random.Random) -> Shot:
    head, body = shot.pieces
    head = head.replace(b"content-length", b"x-length")
    if b"transfer-encoding" not in head:
        head = head[:-2] + b"transfer-encoding: chunked\r\n\r\n"
    chunks = chance.choice(
        (
            b"zz\r\n",
            b"-1\r\nx\r\n",
            b"5\r\nab\r\n0\r\n\r\n",
            b"ffffffffffffffffff\r\nx",
            b"5\nhello\n",
            b"\r\n\r\n",
            b"3\r\nabcX\r\n",
            body,
        )
    )
    return replace(shot, pieces=(head, chunks), is_clean=False, needs_answer=False)


def _other_version(shot: Shot, chance: random.Random) -> Shot:
    version = chance.choice((b" HTTP/1.0", b" HTTP/9.9", b"", b" x"))
    return _with_head(shot, lambda head: head.replace(b" HTTP/1.1", version), needs_answer=False)


def _extra_line(shot: Shot, chance: random.Random) -> Shot:
    line = chance.choice(
        (b"no colon here", b"bad name: x", b"x: \x00", b"x: " + b"y" * (1 << 20), b": x", b" folded: x")
    )
    return _with_head(shot, lambda head: head[:-2] + line + b"\r\n\r\n")


def _long_target(shot: Shot, chance: random.Random) -> Shot:
    return _with_head(shot, lambda head: head.replace(b" /", b" /" + b"z" * (1 << 18), 1))


def _bare_newlines(shot: Shot, chance: random.Random) -> Shot:
    return _with_head(shot, lambda head: head.replace(b"\r\n", b"\n"), needs_answer=False)


def _other_coding(shot: Shot, chance: random.Random) -> Shot:
    coding = chance.choice((b"gzip", b"chunked, chunked", b"x"))
    line = b"transfer-encoding: " + coding + b"\r\n\r\n"
    return _with_head(shot, lambda head: head[:-2] + line, needs_answer=False)


def _other_protocol(shot: Shot, chance: random.Random) -> Shot:
    hello = chance.choice((b"\x16\x03\x01\x02\x00\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x00" * 50))
    return _with_head(shot, lambda head: hello + head)


_WIRE_DAMAGES: tuple[Callable[[Shot, random.Random], Shot], ...] = (
    *(_torn, _sized, _bad_chunks, _other_version, _extra_line, _extra_line, _long_target, _bare_newlines),
    *(_other_coding, _other_protocol),
)
