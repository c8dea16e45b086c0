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
