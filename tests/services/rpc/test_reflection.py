"""Reflection in both revisions."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection_pb2

from services.rpc.reflection import V1_SERVICE_NAME, V1ALPHA_SERVICE_NAME
from tests.services.rpc.serving import SERVICE, Served, serving, unwritten_servicer


async def ask(served: Served, revision: str, **question: str) -> Any:
    method = served.channel.stream_stream(
        f"/{revision}/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    call = method()
    await call.write(reflection_pb2.ServerReflectionRequest(**question))
    response = await call.read()
    await call.done_writing()
    return response


@pytest.mark.parametrize("revision", [V1ALPHA_SERVICE_NAME, V1_SERVICE_NAME])
async def test_all_services_are_listed_and_described(revision: str) -> None:
    async with serving(unwritten_servicer()) as served:
        listed = await ask(served, revision, list_services="*")
        names = {service.name for service in listed.list_services_response.service}
        assert names == {
            SERVICE,
            "grpc.health.v1.Health",
            "grpc.channelz.v1.Channelz",
            V1_SERVICE_NAME,
            V1ALPHA_SERVICE_NAME,
        }
        for name in names:
            described = await ask(served, revision, file_containing_symbol=name)
            pool = descriptor_pool.DescriptorPool()
            for content in reversed(described.file_descriptor_response.file_descriptor_proto):
                pool.Add(descriptor_pb2.FileDescriptorProto.FromString(content))
            assert pool.FindServiceByName(name).methods, name


async def test_an_unknown_symbol_is_not_found() -> None:
    async with serving(unwritten_servicer()) as served:
        response = await ask(served, V1_SERVICE_NAME, file_containing_symbol="no.such.Thing")
        assert response.error_response.error_code == 5
