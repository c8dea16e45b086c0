"""PeerService behind API keys: what it gives out are conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from muster import v1 as wire

from services.gateway.guarded_inference import check_api_key


class GuardedPeers(wire.PeerServiceServicer):
    """Lets a call through when its metadata has one of the keys, as GuardedInference does."""

    def __init__(self, inner: wire.PeerServiceServicer, api_keys: Sequence[str]) -> None:
        self._inner: Any = inner
        self._keys = [key.encode() for key in api_keys]

    async def FetchResponse(self, request: wire.FetchResponseRequest, context: Any) -> wire.FetchResponseResponse:
        check_api_key(context, self._keys)
        response: wire.FetchResponseResponse = await self._inner.FetchResponse(request, context)
        return response

    async def DropResponse(self, request: wire.DropResponseRequest, context: Any) -> wire.DropResponseResponse:
        check_api_key(context, self._keys)
        response: wire.DropResponseResponse = await self._inner.DropResponse(request, context)
        return response
