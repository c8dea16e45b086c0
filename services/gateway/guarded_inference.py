"""InferenceService behind API keys, as the REST API is."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from muster import v1 as wire

from gateway.errors import Unauthenticated


class GuardedInference(wire.InferenceServiceServicer):
    """Lets a call through when its metadata has one of the keys: "authorization: Bearer KEY" or "x-api-key: KEY"."""

    def __init__(self, inner: wire.InferenceServiceServicer, api_keys: Sequence[str]) -> None:
        self._inner: Any = inner
        self._keys = [key.encode() for key in api_keys]

    async def Complete(self, request: wire.CompleteRequest, context: Any) -> AsyncIterator[wire.CompleteResponse]:
        self._check(context)
        async with aclosing(self._inner.Complete(request, context)) as responses:
            async for response in responses:
                yield response

    async def Chat(self, request: wire.ChatRequest, context: Any) -> AsyncIterator[wire.ChatResponse]:
        self._check(context)
        async with aclosing(self._inner.Chat(request, context)) as responses:
            async for response in responses:
                yield response

    async def Tokenize(self, request: wire.TokenizeRequest, context: Any) -> wire.TokenizeResponse:
        self._check(context)
        response: wire.TokenizeResponse = await self._inner.Tokenize(request, context)
        return response

    async def Detokenize(self, request: wire.DetokenizeRequest, context: Any) -> wire.DetokenizeResponse:
        self._check(context)
        response: wire.DetokenizeResponse = await self._inner.Detokenize(request, context)
        return response

    async def ListModels(self, request: wire.ListModelsRequest, context: Any) -> wire.ListModelsResponse:
        self._check(context)
        response: wire.ListModelsResponse = await self._inner.ListModels(request, context)
        return response

    def _check(self, context: Any) -> None:
        check_api_key(context, self._keys)


def check_api_key(context: Any, keys: Sequence[bytes]) -> None:
    """Raises Unauthenticated unless the call's metadata has one of the keys."""
    given = dict(context.invocation_metadata() or ())
    bearer = str(given.get("authorization", ""))
    offered = [str(given.get("x-api-key", ""))]
    if bearer[:7].lower() == "bearer ":
        offered.append(bearer[7:].strip())
    # Every key is compared, each in constant time: the answer's delay says nothing about them.
    matches = [hmac.compare_digest(key, each.encode()) for key in keys for each in offered]
    if not any(matches):
        raise Unauthenticated('No valid API key: send metadata "authorization: Bearer KEY" or "x-api-key: KEY".')
