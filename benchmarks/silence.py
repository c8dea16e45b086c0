"""An hour of silence: `python -m benchmarks.silence --minutes 60`.

Opens WatchRoster on the head and Attach on every engine of a deployment of its own, through channels that ping and,
for Attach, also by the client that gateways have for it; and says nothing for the given time. A relay between the two
counts the client's pings as they pass. At the end every stream has to carry something: a change of the roster, and
the tokens of a request. Exit code 1 when one does not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from muster import v1 as wire

from benchmarks.deployment import Deployment
from services.rpc.channels import MAX_RECEIVE_BYTES
from services.rpc.loop_channel import LoopChannel

_PREFACE_BYTES = 24
_FRAME_HEADER_BYTES = 9
_PING = 6
_ACK = 1
_ANSWER_S = 30.0


class FrameCounter:
    """Counts the pings in one direction of an HTTP/2 connection, however its bytes are cut. Pure."""

    def __init__(self, num_skipped: int) -> None:
        """`num_skipped` bytes come before the first frame: a client's preface."""
        self.num_pings = 0
        self._skip = num_skipped
        self._header = b""

    def feed(self, data: bytes) -> None:
        position = 0
        while position < len(data):
            if self._skip:
                step = min(self._skip, len(data) - position)
                self._skip -= step
                position += step
                continue
            step = _FRAME_HEADER_BYTES - len(self._header)
            self._header += data[position : position + step]
            position += step
            if len(self._header) == _FRAME_HEADER_BYTES:
                header, self._header = self._header, b""
                self._skip = int.from_bytes(header[:3], "big")
                self.num_pings += header[3] == _PING and not header[4] & _ACK


@dataclass
class Relay:
    """A TCP port in front of a target "host:port"."""

    target: str
    port: int = 0
    num_pings: int = 0
    num_connections: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        task = asyncio.create_task(self._connect(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cuts all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        inner_reader, inner_writer = await asyncio.open_connection(host.strip("[]"), int(port))
        counter = FrameCounter(_PREFACE_BYTES)
        await asyncio.gather(
            self._pump(reader, inner_writer, counter), self._pump(inner_reader, writer, None), return_exceptions=True
        )

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counter: FrameCounter | None
    ) -> None:
        try:
            while data := await reader.read(65536):
                if counter is not None:
                    seen = counter.num_pings
                    counter.feed(data)
                    self.num_pings += counter.num_pings - seen
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def relay(target: str) -> AsyncIterator[Relay]:
    made = Relay(target)
    async with await asyncio.start_server(made.accept, "127.0.0.1", 0) as server:
        made.port = server.sockets[0].getsockname()[1]
        try:
            yield made
        finally:
            server.close()
            await made.close()


def pinging_channel(port: int, ping_interval_s: float) -> grpc.aio.Channel:
    """What an operator sets who wants to know of a dead peer: pings with and without calls, as many as it takes."""
    options = [
        ("grpc.keepalive_time_ms", round(ping_interval_s * 1000)),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    ]
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)


def _gateways_channel(channel: grpc.aio.Channel, port: int, ping_interval_s: float) -> LoopChannel:
    return LoopChannel(
        channel,
        f"127.0.0.1:{port}",
        max_message_bytes=MAX_RECEIVE_BYTES,
        keepalive_s=ping_interval_s,
        on_end=lambda end: None,
    )


class SilentStream:
    """One stream that should outlive the silence; counts what comes meanwhile."""

    def __init__(self, name: str, call: Any, through: Relay) -> None:
        self.name = name
        self.call = call
        self.relay = through
        self.num_messages = 0
        self.ended = ""
        self.verdict = "not asked yet"
        self._newest: Any = None
        self._arrived = asyncio.Event()
        self._reading = asyncio.create_task(self._read(), name=name)

    async def _read(self) -> None:
        try:
            while (message := await self.call.read()) is not grpc.aio.EOF:
                self.num_messages += 1
                self._newest = message
                self._arrived.set()
            self.ended = "ended by the server"
        except grpc.aio.AioRpcError as error:
            self.ended = f"{error.code().name}: {error.details()}"
        self._arrived.set()

    async def next(self) -> Any:
        """The newest message after `forget`; raises RuntimeError when the stream ended, TimeoutError without one."""
        async with asyncio.timeout(_ANSWER_S):
            await self._arrived.wait()
        if self.ended:
            raise RuntimeError(self.ended)
        self._arrived.clear()
        return self._newest

    def forget(self) -> None:
        self._arrived.clear()
        self.num_messages = 0

    async def close(self) -> None:
        self.call.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


async def open_streams(
    stack: contextlib.AsyncExitStack, head_target: str, ping_interval_s: float
) -> tuple[SilentStream, list[SilentStream]]:
    """WatchRoster on the head, and Attach twice for each rank; each has said its first word."""

    async def channel(target: str) -> tuple[grpc.aio.Channel, Relay]:
        through = await stack.enter_async_context(relay(target))
        return await stack.enter_async_context(pinging_channel(through.port, ping_interval_s)), through

    head, through = await channel(head_target)
    watch = SilentStream(
        "WatchRoster", wire.RendezvousServiceStub(head).WatchRoster(wire.WatchRosterRequest()), through
    )
    stack.push_async_callback(watch.close)
    roster = (await watch.next()).roster
    attached: list[SilentStream] = []
    for entry in roster.ranks:
        target = next(target for target in entry.targets if not target.startswith("unix:"))
        for who in ("", ", as gateways do"):
            engine, through = await channel(target)
            dialled: Any = _gateways_channel(engine, through.port, ping_interval_s) if who else engine
            call: Any = wire.EngineServiceStub(dialled).Attach()
            await call.write(wire.AttachRequest(open=wire.OpenAttachment(gateway="silence")))
            stream = SilentStream(f"Attach, rank {entry.rank}{who}", call, through)
            attached.append(stream)
            stack.push_async_callback(stream.close)
            await stream.next()
    return watch, attached


async def ask_attached(stream: SilentStream) -> None:
    """The stream still serves: a request's tokens come back over it."""
    stop = wire.StopConditions(max_tokens=1, ignore_eos=True)
    request = wire.GenerateRequest(prompt_token_ids=[1, 2, 3], stop=stop)
    await stream.call.write(wire.AttachRequest(submit=wire.Submit(handle=1, request=request)))
    while not (message := await stream.next()).outputs.finished:
        if message.outputs.failed:
            raise RuntimeError(message.outputs.failed[0].message)


async def ask_roster(watch: SilentStream, head_target: str) -> None:
    """The stream still tells of changes: a rank that is drained, and back."""
    async with grpc.aio.insecure_channel(head_target) as channel:
        admin, selector = wire.AdminServiceStub(channel), wire.RankSelector(ranks=[0])
        await admin.Drain(wire.DrainRequest(selector=selector), timeout=_ANSWER_S)
        while (await watch.next()).roster.ranks[0].state != wire.RANK_STATE_DRAINING:
            pass
        await admin.Undrain(wire.UndrainRequest(selector=selector), timeout=_ANSWER_S)


async def keep_silent(head_target: str, silence_s: float, ping_interval_s: float) -> list[SilentStream]:
    """The streams after the silence, each with its verdict: "alive", or how it failed."""
    async with contextlib.AsyncExitStack() as stack:
        watch, attached = await open_streams(stack, head_target, ping_interval_s)
        streams = [watch, *attached]
        for stream in streams:
            stream.forget()
        await asyncio.sleep(silence_s)
        told = {stream.name: stream.num_messages for stream in streams}
        for stream in streams:
            asking = ask_roster(stream, head_target) if stream is watch else ask_attached(stream)
            try:
                await asking
                stream.verdict = "alive" if stream.relay.num_connections == 1 else "alive, but on another connection"
            except (RuntimeError, TimeoutError, grpc.aio.AioRpcError) as error:
                stream.verdict = f"dead: {error or 'no answer'}"
            stream.num_messages = told[stream.name]
        return streams


def _parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.silence", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of silence (default: 60)")
    parser.add_argument("--ping-interval", type=float, default=10.0, help="seconds between client pings (default: 10)")
    parser.add_argument("--model", help="checkpoint to serve (default: muster's own)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    flags = _parse_arguments(arguments)
    serve = [flags.model] if flags.model else []
    with Deployment(*serve, "-dp", "2", "--num-threads", "1") as deployment:
        started = time.monotonic()
        print(f"silent for {flags.minutes:g} minutes, a ping every {flags.ping_interval:g} s", flush=True)
        streams = asyncio.run(keep_silent(deployment.head_target, flags.minutes * 60, flags.ping_interval))
        print(f"after {(time.monotonic() - started) / 60:.1f} minutes:", flush=True)
        print("| stream | client pings | messages meanwhile | then |\n|---|--:|--:|---|")
        for stream in streams:
            print(f"| {stream.name} | {stream.relay.num_pings} | {stream.num_messages} | {stream.verdict} |")
    return 0 if all(stream.verdict == "alive" for stream in streams) else 1


if __name__ == "__main__":
    sys.exit(main())
