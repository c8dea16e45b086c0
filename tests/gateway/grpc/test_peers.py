"""Responses kept by another gateway are found through it: real servers, one shared port, Unix sockets beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from muster import v1 as wire

from gateway.errors import ResponseNotFound, Unavailable
from gateway.peers import GatewayPeers, PeerServicer
from gateway.ranks import GatewayPeer
from gateway.responses.archive import ResponseArchive
from gateway.responses.store import KeptResponse, ResponseStore
from services.gateway.errors import gateway_error_table
from services.gateway.guarded_peers import GuardedPeers
from services.gateway.server import PEER_SERVICE
from services.rpc.channels import dial
from services.rpc.server import RpcServer

NETWORK = "10.9.9.9"  # stands for an address that other hosts reach; a loopback address of theirs is not dialled


def dial_network(target: str) -> grpc.aio.Channel:
    return dial(target.replace(NETWORK, "127.0.0.1"))


KEPT = KeptResponse(b'{"id":"x"}', b"[]")


@dataclass
class Gateways:
    """What the roster would say, and each gateway's archive."""

    peers: list[GatewayPeer] = field(default_factory=list)
    archives: dict[str, ResponseArchive] = field(default_factory=dict)
    servers: dict[str, RpcServer] = field(default_factory=dict)
    grpc_ports: dict[str, int] = field(default_factory=dict)

    async def add(
        self, name: str, *, host: str = "h1", unix_path: Path | None = None, port: int = 0, key: str | None = None
    ) -> ResponseArchive:
        store = ResponseStore(10_000, 100.0)
        others = GatewayPeers(host_id=host, dial=dial_network, peers=lambda: self.peers, api_key=key)
        server = RpcServer(error_tables=[gateway_error_table], reuse_port=True)
        servicer: wire.PeerServiceServicer = PeerServicer(store, name, others)
        if key is not None:
            servicer = GuardedPeers(servicer, [key])
        server.add(PEER_SERVICE, wire.add_PeerServiceServicer_to_server, servicer)
        self.grpc_ports[name] = port = server.listen_tcp("127.0.0.1", port, flags="test")
        targets = [] if unix_path is None else [server.listen_unix(unix_path)]
        await server.start()
        self.servers[name] = server
        self.peers.append(GatewayPeer(name, host, (*targets, f"{NETWORK}:{port}")))
        archive = self.archives[name] = ResponseArchive(store, gateway=name, peers=others)
        return archive


@asynccontextmanager
async def gateways() -> AsyncIterator[Gateways]:
    found = Gateways()
    try:
        yield found
    finally:
        for server in found.servers.values():
            await server.stop(0)


async def test_another_gateway_is_asked() -> None:
    async with gateways() as group:
        first, second = await group.add("a"), await group.add("b")
        response_id = first.new_id()
        first.keep(response_id, KEPT)
        assert await second.fetch(response_id) == KEPT
        await second.drop(response_id)
        for archive in (first, second):
            with pytest.raises(ResponseNotFound):
                await archive.fetch(response_id)
        with pytest.raises(ResponseNotFound):
            await second.drop(response_id)


async def test_siblings_behind_one_port_are_told_apart(tmp_path: Path) -> None:
    """From their own host over their sockets, and from another host through whoever answers on the port."""
    async with gateways() as group:
        first = await group.add("a", unix_path=tmp_path / "a")
        second = await group.add("b", unix_path=tmp_path / "b", port=group.grpc_ports["a"])
        far = await group.add("c", host="h2")
        ids = []
        for archive in (first, second):
            for _ in range(4):
                ids.append(archive.new_id())
                archive.keep(ids[-1], KEPT)
        for archive in (first, second, far):
            for response_id in ids:
                assert await archive.fetch(response_id) == KEPT
        for response_id in ids:
            await far.drop(response_id)
        for archive in (first, second, far):
            for response_id in ids:
                with pytest.raises(ResponseNotFound):
                    await archive.fetch(response_id)


async def test_a_gateway_that_left_took_its_responses_along() -> None:
    async with gateways() as group:
        first, second = await group.add("a"), await group.add("b")
        response_id = first.new_id()
        first.keep(response_id, KEPT)
        await group.servers["a"].stop(0)
        with pytest.raises(Unavailable, match="'a'"):
            await second.fetch(response_id)  # the roster has it still
        group.peers.pop(0)
        with pytest.raises(ResponseNotFound, match="went with the gateway"):
            await second.fetch(response_id)


async def test_an_older_gateway_without_targets_cannot_be_asked() -> None:
    async with gateways() as group:
        first, second = await group.add("a"), await group.add("b")
        group.peers[0] = GatewayPeer("a", "", ())
        with pytest.raises(Unavailable, match="cannot be reached"):
            await second.fetch(first.new_id())


async def test_conversations_are_behind_the_keys() -> None:
    async with gateways() as group:
        first, second = await group.add("a", key="secret"), await group.add("b", key="secret")
        response_id = first.new_id()
        first.keep(response_id, KEPT)
        assert await second.fetch(response_id) == KEPT
        async with dial(f"127.0.0.1:{group.grpc_ports['a']}") as channel:
            stub = wire.PeerServiceStub(channel)
            for call in (
                stub.FetchResponse(wire.FetchResponseRequest(response_id=response_id)),
                stub.DropResponse(wire.DropResponseRequest(response_id=response_id)),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
