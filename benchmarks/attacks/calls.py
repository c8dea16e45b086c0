"""Attacks by calls of a real gRPC client: messages that are none, and more streams than anybody needs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc

from benchmarks.attacks.messages import hostile_message, methods
from benchmarks.attacks.targets import Attack, Port

_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
_CALL_S = 1.0
_NUM_STREAMS = 10_000
_WATCHES = ("/muster.v1.CoordinatorService/WatchLoad", "/muster.v1.RendezvousService/WatchRoster",
            "/muster.v1.EngineService/WatchStats", "/grpc.health.v1.Health/Watch")  # fmt: skip


async def mutated_messages(attack: Attack) -> None:
    """Every method of every port, with messages that are almost right."""
    ports = [port for port in attack.ports if port.speaks_grpc]

    async def assail(port: Port) -> None:
        async with grpc.aio.insecure_channel(port.target, options=_OPTIONS) as channel:
            for method in itertools.cycle(methods(port.services)):
                if attack.over:
                    return
                number = attack.chance.randrange(1, 4) if method.takes_many else 1
                data = [hostile_message(method, attack.chance) for _ in range(number)]
                attack.count(await _call(channel, method.path, data))
                await asyncio.sleep(0.005)

    await asyncio.gather(*(assail(port) for port in ports))


async def _call(channel: grpc.aio.Channel, path: str, messages: list[bytes]) -> str:
    """The name of the status."""

    async def requests() -> AsyncIterator[bytes]:
        for data in messages:
            yield data

    method: Any = channel.stream_stream(path)
    call = method(requests(), timeout=_CALL_S)
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


async def watches(attack: Attack) -> None:
    """One client that opens 10,000 streams which never end, and takes what comes."""
    ports = [port for port in attack.ports if port.speaks_grpc]
    share_s = max(1.0, attack.seconds / len(ports))
    for port in ports:
        if attack.over:
            return
        paths = [path for path in _WATCHES if path in port.methods or "Health" in path]
        async with grpc.aio.insecure_channel(port.target, options=_OPTIONS) as channel:
            tasks = [
                asyncio.create_task(_watch(channel, paths[index % len(paths)], attack)) for index in range(_NUM_STREAMS)
            ]
            await asyncio.sleep(share_s)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(channel: grpc.aio.Channel, path: str, attack: Attack) -> None:
    method: Any = channel.unary_stream(path)
    call = method(b"")
    attack.count("streams")
    with suppress(grpc.aio.AioRpcError):
        async for _ in call:
            attack.count("messages")
