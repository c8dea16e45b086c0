"""Engines that get so far with their registration and no further: a process that does only what the contract asks.

    python -m tests.support.registering HEAD_TARGET PHASE RANK…

One Register stream, on a connection of its own, per rank. PHASE says where each stops: "connected" (a connection and
nothing on it), "hello", "loading" (Progress), "ready" (its Accepted is not read), "accepted", or "serving", which goes
on with heartbeats. "slow" heartbeats and never gets ready. Says "there" once everything was sent, then lives on.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from typing import Any

import grpc
from muster import v1 as wire

from services.rpc.channels import dial
from services.rpc.identity import host_id, host_name

_HEARTBEAT_S = 0.2


async def register(target: str, phase: str, rank: int) -> None:
    """Until it is killed, or until the head ends the stream, whose status is printed."""
    async with dial(target) as channel:
        call: Any = wire.RendezvousServiceStub(channel).Register()
        try:
            await _speak(call, phase, rank)
            print("there", rank, flush=True)
            if phase in ("slow", "serving"):
                while True:
                    await call.write(wire.RegisterRequest(heartbeat=wire.Heartbeat()))
                    await asyncio.sleep(_HEARTBEAT_S)
            while await call.read() is not grpc.aio.EOF:
                pass
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        print("ended", rank, await call.code(), await call.details(), flush=True)


async def _speak(call: Any, phase: str, rank: int) -> None:
    await call.write(wire.RegisterRequest(hello=_hello(rank)))
    await call.read()
    if phase == "hello":
        return
    loading = wire.Progress(phase=wire.ENGINE_PHASE_LOADING_WEIGHTS, done=10, total=272)
    await call.write(wire.RegisterRequest(progress=loading))
    if phase in ("loading", "slow"):
        return
    model = wire.ModelInfo(fingerprint="f", max_model_len=10, block_size=16)
    await call.write(wire.RegisterRequest(ready=wire.Ready(targets=["192.0.2.1:1"], model=model)))
    if phase != "ready":
        await call.read()


def _hello(rank: int) -> wire.Hello:
    return wire.Hello(
        protocol=wire.ProtocolRange(min=1, max=1),
        rank=rank,
        host=host_name(),
        host_id=host_id(),
        pid=os.getpid(),
        incarnation=time.time_ns() // 1000,
    )


async def _main(target: str, phase: str, ranks: list[int]) -> None:
    if phase == "connected":
        host, _, port = target.rpartition(":")
        connections = [socket.create_connection((host, int(port))) for _ in ranks]
        for rank in ranks:
            print("there", rank, flush=True)
        await asyncio.Event().wait()
        del connections
    await asyncio.gather(*(register(target, phase, rank) for rank in ranks))
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], [int(rank) for rank in sys.argv[3:]]))
