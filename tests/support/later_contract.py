"""A server with the stubs of a later contract: whatever it says has fields that nobody knows yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

# Number 1000, three bytes: no message of this contract has such a field.
LATER_FIELD = bytes([0xC2, 0x3E, 0x03]) + b"new"


class LaterContract:
    """Takes the place of `OlderContract` where servers are made."""

    def add(self, register: Callable[[Any, Any], None], servicer: object, server: grpc.aio.Server) -> None:
        """As `wire.add_…Servicer_to_server(servicer, server)` by a program that was built from a later contract."""
        register(servicer, _Later(server))


class _Later:
    """A server that takes what generated code registers."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """The registered ones say the same with names."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        later = {
            name: handler._replace(response_serializer=lambda message: with_later_fields(message).SerializeToString())
            for name, handler in handlers.items()
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, later),))
        self._server.add_registered_method_handlers(service, later)


def with_later_fields(message: Any) -> Any:
    """A copy with an unknown field in it and in every message within it."""
    copy = type(message)()
    copy.CopyFrom(message)
    _add_later_fields(copy)
    return copy


def _add_later_fields(message: Any) -> None:
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for part in value if field.is_repeated else (value,):
            _add_later_fields(part)
    message.MergeFromString(LATER_FIELD)
