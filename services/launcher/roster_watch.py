"""Following the head's roster from the launcher, across restarts of the head."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc
from muster import v1 as wire

_RETRY_S = 0.25


async def watch_roster(target: str, dial: Callable[[str], grpc.aio.Channel]) -> AsyncIterator[wire.Roster]:
    """Yields every roster the head publishes; while the head is away, nothing. Never ends by itself."""
    while True:
        async with dial(target) as channel:
            call = wire.RendezvousServiceStub(channel).WatchRoster(wire.WatchRosterRequest())
            try:
                async for response in call:
                    yield response.roster
            except grpc.aio.AioRpcError:
                pass
            finally:
                call.cancel()
        await asyncio.sleep(_RETRY_S)


async def answers_ready(host: str, port: int) -> bool:
    """Whether a gateway's /readyz says 200. `host` is one the launcher listens on itself."""
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    try:
        writer.write(f"GET /readyz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        status = await reader.readline()
        return b" 200 " in status
    except OSError:
        return False
    finally:
        writer.close()
