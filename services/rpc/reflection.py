"""Server reflection in both revisions: grpcurl asks for v1alpha, newer tools for v1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

V1ALPHA_SERVICE_NAME: str = reflection.SERVICE_NAME
V1_SERVICE_NAME = "grpc.reflection.v1.ServerReflection"


def add_to_server(service_names: Iterable[str], server: grpc.aio.Server) -> None:
    """Registers both revisions; the two have the same messages on the wire."""
    names = {*service_names, V1ALPHA_SERVICE_NAME, V1_SERVICE_NAME}
    servicer = reflection.aio.ReflectionServicer(sorted(names), pool=_Pools())
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    handler = grpc.method_handlers_generic_handler(V1_SERVICE_NAME, {"ServerReflectionInfo": method})
    server.add_generic_rpc_handlers((handler,))


class _Pools:
    """The default pool plus the descriptor of reflection v1, which has no Python package.

    Its own pool, so that a package that brings the file one day does not clash with ours.
    """

    def __init__(self) -> None:
        self._default = descriptor_pool.Default()
        self._v1 = descriptor_pool.DescriptorPool()
        self._v1.Add(_v1_file())

    def __getattr__(self, name: str) -> Any:
        def find(*arguments: Any) -> Any:
            try:
                return getattr(self._default, name)(*arguments)
            except KeyError:
                return getattr(self._v1, name)(*arguments)

        return find


def _v1_file() -> descriptor_pb2.FileDescriptorProto:
    """The v1alpha file under v1's names."""
    file = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    old, new = f".{file.package}.", ".grpc.reflection.v1."
    file.name, file.package = "grpc/reflection/v1/reflection.proto", "grpc.reflection.v1"
    for message in file.message_type:
        for field in message.field:
            if not field.type_name:
                continue  # a scalar: touching the name would set it
            field.type_name = field.type_name.replace(old, new)
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(old, new)
            method.output_type = method.output_type.replace(old, new)
    return file
