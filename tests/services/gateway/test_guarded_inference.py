from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from muster import v1 as wire

from gateway.errors import Unauthenticated
from services.gateway.guarded_inference import GuardedInference


class Inner(wire.InferenceServiceServicer):
    async def Chat(self, request: wire.ChatRequest, context: Any) -> AsyncIterator[wire.ChatResponse]:
        for index in range(2):
            yield wire.ChatResponse(request_id=str(index))

    async def Complete(self, request: wire.CompleteRequest, context: Any) -> AsyncIterator[wire.CompleteResponse]:
        yield wire.CompleteResponse()

    async def Tokenize(self, request: wire.TokenizeRequest, context: Any) -> wire.TokenizeResponse:
        return wire.TokenizeResponse()

    async def Detokenize(self, request: wire.DetokenizeRequest, context: Any) -> wire.DetokenizeResponse:
        return wire.DetokenizeResponse()

    async def ListModels(self, request: wire.ListModelsRequest, context: Any) -> wire.ListModelsResponse:
        return wire.ListModelsResponse(models=[wire.ModelInfo(architecture="llama")])


class Context:
    def __init__(self, *metadata: tuple[str, str]) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata


GUARDED = GuardedInference(Inner(), ["first", "schlüssel"])


@pytest.mark.parametrize(
    "metadata", [("authorization", "Bearer first"), ("authorization", "bearer schlüssel"), ("x-api-key", "first")]
)
async def test_a_key_opens_the_door(metadata: tuple[str, str]) -> None:
    context = Context(("user-agent", "test"), metadata)
    assert len((await GUARDED.ListModels(wire.ListModelsRequest(), context)).models) == 1
    assert [response.request_id async for response in GUARDED.Chat(wire.ChatRequest(), context)] == ["0", "1"]


@pytest.mark.parametrize(
    "metadata",
    [(), (("authorization", "Bearer "),), (("authorization", "Basic first"),), (("x-api-key", "firs"),)],
)
async def test_no_key_or_a_wrong_one_does_not(metadata: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(Unauthenticated):
        await GUARDED.ListModels(wire.ListModelsRequest(), Context(*metadata))
    with pytest.raises(Unauthenticated):
        await anext(aiter(GUARDED.Chat(wire.ChatRequest(), Context(*metadata))))


def test_every_method_of_the_service_is_guarded() -> None:
    service = wire.inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
    assert {method.name for method in service.methods} <= set(vars(GuardedInference))
