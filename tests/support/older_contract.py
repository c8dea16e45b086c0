"""A server with the stubs of an earlier contract: what it does not know is lost on the way in and out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

LANDED = Path(__file__).resolve().parents[1] / "contract" / "landed.binpb"

Handlers = Mapping[str, Any]  # grpc.RpcMethodHandler


class OlderContract:
    """The messages of a saved descriptor set (`buf build -o FILE`)."""

    def __init__(self, descriptor_set: Path = LANDED) -> None:
        self._pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set.read_bytes()).file:
            self._pool.Add(file)  # in the order of their imports

    def methods(self, service: str) -> list[str]:
        return [method.name for method in self._pool.FindServiceByName(service).methods]

    def add(self, register: Callable[[Any, Any], None], servicer: object, server: grpc.aio.Server) -> None:
        """As `wire.add_…Servicer_to_server(servicer, server)` by a program that was built from this contract."""
        recorder = _Recorder()
        register(servicer, recorder)
        (service, handlers) = recorder.registered
        known = {name: self._older(service, name, handlers[name]) for name in self.methods(service)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, known),))
        server.add_registered_method_handlers(service, known)

    def _older(self, service: str, name: str, handler: Any) -> Any:
        method = self._pool.FindServiceByName(service).FindMethodByName(name)
        takes = message_factory.GetMessageClass(method.input_type)
        gives = message_factory.GetMessageClass(method.output_type)
        today = handler.request_deserializer, handler.response_serializer
        return handler._replace(
            request_deserializer=lambda content: today[0](_known_part(takes, content)),
            response_serializer=lambda message: _known_part(gives, today[1](message)),
        )


def _known_part(message_class: Any, content: bytes) -> bytes:
    message = message_class.FromString(content)
    message.DiscardUnknownFields()
    return cast("bytes", message.SerializeToString())


class _Recorder:
    """Takes what generated code registers."""

    def __init__(self) -> None:
        self.registered: tuple[str, Handlers] = ("", {})

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """The registered ones say the same with names."""

    def add_registered_method_handlers(self, service: str, handlers: Handlers) -> None:
        self.registered = (service, handlers)
