"""Asks the other gateways of the deployment for what only they know, and answers them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import grpc
from muster import v1 as wire

from gateway.engine_link import Dial
from gateway.errors import ResponseNotFound, Unavailable
from gateway.ranks import GatewayPeer
from gateway.responses.archive import owner_tag
from gateway.responses.store import KeptResponse, ResponseStore
from gateway.targets import choose_target

T = TypeVar("T")

_TIMEOUT_S = 5.0


class GatewayPeers:
    """Finds a gateway by the tag in its response ids. `peers` gives the roster's; `api_key` opens their doors."""

    def __init__(
        self, *, host_id: str, dial: Dial, peers: Callable[[], Sequence[GatewayPeer]], api_key: str | None = None
    ) -> None:
        self._host_id = host_id
        self._dial = dial
        self._peers = peers
        self._metadata = () if api_key is None else (("authorization", f"Bearer {api_key}"),)

    async def fetch(self, owner: str, response_id: str, *, forwarded: bool = False) -> KeptResponse | None:
        request = wire.FetchResponseRequest(response_id=response_id, forwarded=forwarded)
        answer = await self._ask(owner, lambda stub, **options: stub.FetchResponse(request, **options))
        return None if answer is None else KeptResponse(answer.body, answer.items)

    async def drop(self, owner: str, response_id: str, *, forwarded: bool = False) -> bool:
        request = wire.DropResponseRequest(response_id=response_id, forwarded=forwarded)
        return await self._ask(owner, lambda stub, **options: stub.DropResponse(request, **options)) is not None

    def sibling(self, owner: str) -> bool:
        """The owner runs on this host, and so can be asked without passing through a port that others share."""
        peer = self._find(owner)
        return peer is not None and peer.host_id == self._host_id and any(t.startswith("unix:") for t in peer.targets)

    def _find(self, owner: str) -> GatewayPeer | None:
        return next((peer for peer in self._peers() if owner_tag(peer.name) == owner), None)

    async def _ask(self, owner: str, call: Callable[..., Any]) -> Any:
        """The answer; None for NOT_FOUND and for an owner that is not in the roster."""
        peer = self._find(owner)
        if peer is None:
            return None
        target = choose_target(peer.targets, same_host=peer.host_id == self._host_id)
        if target is None:
            raise Unavailable(f"The gateway '{peer.name}', which keeps this response, cannot be reached from here.")
        channel = self._dial(target)
        try:
            stub: Any = wire.PeerServiceStub(channel)
            return await call(stub, timeout=_TIMEOUT_S, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise Unavailable(
                f"The gateway '{peer.name}', which keeps this response, did not answer: {error.code().name}. Try again."
            ) from error
        finally:
            await channel.close()


class PeerServicer(wire.PeerServiceServicer):
    """PeerService of one gateway: what is in its store, or in that of a sibling behind the same port."""

    def __init__(self, store: ResponseStore, gateway: str, peers: GatewayPeers) -> None:
        self._store = store
        self._owner = owner_tag(gateway)
        self._peers = peers

    async def FetchResponse(self, request: wire.FetchResponseRequest, context: Any) -> wire.FetchResponseResponse:
        kept = self._store.get(request.response_id)
        owner = self._elsewhere(request.response_id, request.forwarded)
        if kept is None and owner is not None:
            kept = await self._peers.fetch(owner, request.response_id, forwarded=True)
        if kept is None:
            raise ResponseNotFound(request.response_id)
        return wire.FetchResponseResponse(body=kept.body, items=kept.items)

    async def DropResponse(self, request: wire.DropResponseRequest, context: Any) -> wire.DropResponseResponse:
        dropped = self._store.drop(request.response_id)
        owner = self._elsewhere(request.response_id, request.forwarded)
        if not dropped and owner is not None:
            dropped = await self._peers.drop(owner, request.response_id, forwarded=True)
        if not dropped:
            raise ResponseNotFound(request.response_id)
        return wire.DropResponseResponse()

    def _elsewhere(self, response_id: str, forwarded: bool) -> str | None:
        """The owner, when it is a sibling that has not been asked."""
        owner = response_id.removeprefix("resp_")[:8]
        return owner if not forwarded and owner != self._owner and self._peers.sibling(owner) else None
