"""Good bodies, damaged."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.fuzz.endpoints import ENDPOINTS
from benchmarks.fuzz.poison import Raw, big_text, poison

Place = tuple[Any, Any]  # a dict or list, and a key or an index of it

# Of anything that any endpoint reads, and of what it is known to refuse.
NAMES = tuple(
    sorted(
        {name for endpoint in ENDPOINTS for body in endpoint.bodies for name in body}
        | {
            "suffix",
            "use_beam_search",
            "guided_json",
            "chat_template",
            "prompt_embeds",
            "audio",
            "modalities",
            "functions",
        }
        | {
            "background",
            "conversation",
            "container",
            "mcp_servers",
            "grammar",
            "kv_transfer_params",
            "model",
            "content",
        }
    )
)
_RARE = 0.004  # of 10 MB each


def mutated(good: dict[str, Any], chance: random.Random) -> bytes:
    """The body with one to four things wrong, or none; then, now and then, damaged as text."""
    body = _copy(good)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 2, 3, 4))):
        chance.choice(_MUTATIONS)(body, chance)
    if chance.random() < _RARE:
        _replace(body, chance, big_text(chance, 17 if chance.random() < 0.1 else 10))
    data = encoded(body)
    if chance.random() < 0.12:
        data = chance.choice(_DAMAGES)(data, chance)
    return data


def large(good: dict[str, Any], chance: random.Random) -> bytes:
    """The body with a text of 10 MB somewhere."""
    body = _copy(good)
    _replace(body, chance, big_text(chance, 10))
    return encoded(body)


def encoded(value: Any) -> bytes:
    """As JSON, but for what is raw or stands twice."""
    if isinstance(value, Raw):
        return bytes(value)
    if isinstance(value, dict):
        pairs = (encoded(str(key)) + b":" + encoded(item) for key, item in value.items())
        return b"{" + b",".join(pairs) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(encoded, value)) + b"]"
    return json.dumps(value).encode()


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _places(value: Any) -> Iterator[Place]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield value, key
            yield from _places(item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield value, index
            yield from _places(item)


def _replace(body: dict[str, Any], chance: random.Random, value: Raw) -> None:
    places = list(_places(body))
    if places:
        container, key = chance.choice(places)
        container[key] = value


def _remove(body: dict[str, Any], chance: random.Random) -> None:
    places = list(_places(body))
    if places:
        container, key = chance.choice(places)
        del container[key]


def _wrap(body: dict[str, Any], chance: random.Random) -> None:
    places = list(_places(body))
    if places:
        container, key = chance.choice(places)
        container[key] = chance.choice(([container[key]], {"type": container[key]}, [container[key]] * 3))


def _twice(body: dict[str, Any], chance: random.Random) -> None:
    """A key that comes again: its name ends within the text of another."""
    places = [(container, key) for container, key in _places(body) if isinstance(container, dict)]
    if places:
        container, key = chance.choice(places)
        container[key] = Raw(encoded(container[key]) + b"," + encoded(str(key)) + b":" + poison(chance))


def _swap(body: dict[str, Any], chance: random.Random) -> None:
    places = list(_places(body))
    if len(places) > 1:
        (one, key), (other, other_key) = chance.sample(places, 2)
        one[key] = Raw(encoded(other[other_key]))


_MUTATIONS: tuple[Callable[[dict[str, Any], random.Random], None], ...] = (
    lambda body, chance: _replace(body, chance, poison(chance)),
    lambda body, chance: _replace(body, chance, poison(chance)),
    lambda body, chance: _replace(body, chance, poison(chance)),
    lambda body, chance: body.update({chance.choice(NAMES): poison(chance)}),
    lambda body, chance: body.update({chance.choice(NAMES): poison(chance)}),
    *(_remove, _wrap, _twice, _swap),
)


def _torn(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _flipped(data: bytes, chance: random.Random) -> bytes:
    flipped = bytearray(data)
    for _ in range(chance.randint(1, 5) if data else 0):
        flipped[chance.randrange(len(flipped))] = chance.randrange(256)
    return bytes(flipped)


_DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(_torn, _torn, _flipped, _flipped),
    lambda data, chance: b"",
    lambda data, chance: chance.choice(
        (b" ", b"\n", b"null", b"[]", b"{}", b'"x"', b"1", b"\x00", b"[{}]", b"{}{}", b"}")
    ),
    lambda data, chance: data + data,
    lambda data, chance: data.decode("utf-8", "replace").encode(
        chance.choice(("utf-16", "utf-32", "utf-8-sig", "utf-7"))
    ),
    lambda data, chance: gzip.compress(data, mtime=0),
    lambda data, chance: chance.randbytes(chance.randint(1, 3000)),
    lambda data, chance: b"prompt=x&max_tokens=1",
)
