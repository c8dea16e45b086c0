"""Messages of the contract that are almost right: random ones, truncated and mutated."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import message_factory
from google.protobuf.message import DecodeError, Message
from muster.v1 import (
    admin_pb2,
    coordinator_pb2,
    engine_pb2,
    inference_pb2,
    peer_pb2,
    rendezvous_pb2,
)

_FILES = (admin_pb2, coordinator_pb2, engine_pb2, inference_pb2, peer_pb2, rendezvous_pb2)
_MAX_DEPTH = 4
_INTEGERS = (0, 1, 2, 7, 100, 49151, 49152, 2**31 - 1, 2**32 - 1, 2**63 - 1)
_NUMBERS = (0.0, 1.0, -1.0, 0.5, 1e30, float("nan"), float("inf"), float("-inf"), 1e-45)
_TEXTS = ("", "a", "Once upon a time", "\0", "ü" * 300, "x" * 70_000, "../../etc/passwd", "{" * 5000)


@dataclass(frozen=True, slots=True)
class Method:
    """One method of the contract: "/package.Service/Method" and what it takes."""

    path: str
    descriptor: Any
    takes_many: bool
    harmless: bool  # a message that happens to be right changes nothing for others


def methods(services: Sequence[str]) -> list[Method]:
    """Of the services named, all versions of a deployment's ports."""
    found = []
    for file in _FILES:
        for service in file.DESCRIPTOR.services_by_name.values():
            if service.full_name in services:
                harmless = service.name != "AdminService"
                found += [
                    Method(f"/{service.full_name}/{method.name}", method.input_type, method.client_streaming, harmless)
                    for method in service.methods
                ]
    return found


def hostile_message(method: Method, chance: random.Random) -> bytes:
    """Bytes for `method`; what could change the deployment if it were right is certain to be no message."""
    while True:
        data = _mutated(_random_message(method.descriptor, chance).SerializeToString(), chance)
        if method.harmless or not _parses(method.descriptor, data):
            return data


def _parses(descriptor: Any, data: bytes) -> bool:
    try:
        message_factory.GetMessageClass(descriptor).FromString(data)
    except DecodeError:
        return False
    return True


def _random_message(descriptor: Any, chance: random.Random, depth: int = 0) -> Message:
    message = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if chance.random() < 0.4 or depth > _MAX_DEPTH:
            continue
        repeats = chance.choice((0, 1, 3, 50)) if field.is_repeated else 1
        for _ in range(repeats):
            _add(message, field, chance, depth)
    return message


def _add(message: Message, field: Any, chance: random.Random, depth: int) -> None:
    target = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return
    if field.message_type is not None:
        value = _random_message(field.message_type, chance, depth + 1)
        target.append(value) if field.is_repeated else target.CopyFrom(value)
        return
    value = _scalar(field, chance)
    try:
        target.append(value) if field.is_repeated else setattr(message, field.name, value)
    except ValueError:  # an integer that does not fit
        return


def _scalar(field: Any, chance: random.Random) -> Any:
    match field.cpp_type:
        case field.CPPTYPE_STRING:
            text = chance.choice(_TEXTS)
            return text.encode() if field.type == field.TYPE_BYTES else text
        case field.CPPTYPE_DOUBLE | field.CPPTYPE_FLOAT:
            return chance.choice(_NUMBERS)
        case field.CPPTYPE_BOOL:
            return chance.random() < 0.5
        case field.CPPTYPE_ENUM:
            return chance.choice((0, 1, 2, 99))
    return chance.choice(_INTEGERS)


def _mutated(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data or b"\x08\x01")
    match chance.randrange(7):
        case 0:
            return bytes(changed[: chance.randrange(len(changed))])
        case 1:
            for _ in range(chance.randrange(1, 10)):
                changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        case 2:
            at = chance.randrange(len(changed))
            changed[at:at] = chance.randbytes(chance.randrange(1, 20))
        case 3:  # a length that reaches beyond the end
            changed += b"\x0a\xff\xff\xff\xff\x0f"
        case 4:  # groups within groups
            changed += b"\x0b" * 10_000
        case 5:  # messages within messages
            nested = b""
            for _ in range(200):
                nested = b"\x0a" + _varint(len(nested)) + nested
            changed += nested
        case _:
            return chance.randbytes(chance.randrange(1, 5000))
    return bytes(changed)


def _varint(number: int) -> bytes:
    data = b""
    while number >= 128:
        data += bytes((number % 128 + 128,))
        number //= 128
    return data + bytes((number,))
