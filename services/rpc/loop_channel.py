"""A channel whose calls with messages in both directions run in the event loop; all others are gRPC's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from services.rpc.client_stream import ClientStream, Metadata, StreamEnd
from services.rpc.loop_call import LoopCall

_UNIX = "unix:"


class LoopChannel:
    """Wraps a channel of grpc.aio to the same target.

    gRPC's threads hand each message from one to the next before the event loop hears of it. For the one stream that
    carries every token that costs as much as all the rest; so it gets a connection of its own, in plaintext, which
    the loop reads.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        target: str,
        *,
        max_message_bytes: int,
        keepalive_s: float,
        on_end: Callable[[StreamEnd], None],
    ) -> None:
        """`target` as gRPC takes it: "unix:/path", "host:port", "[::1]:port" or "dns:///host:port"."""
        self._channel = channel
        self._target = target
        self._max_message_bytes = max_message_bytes
        self._keepalive_s = keepalive_s
        self._on_end = on_end

    def stream_stream(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        **_: Any,
    ) -> Callable[..., LoopCall]:
        authority = "localhost" if self._target.startswith(_UNIX) else _address(self._target)

        def call(*, metadata: Metadata | None = None) -> LoopCall:
            stream = ClientStream(
                path=method, authority=authority, metadata=metadata or (), max_message_bytes=self._max_message_bytes
            )
            return LoopCall(
                stream,
                self._connect,
                target=self._target,
                serialize=request_serializer,
                parse=response_deserializer,
                keepalive_s=self._keepalive_s,
                on_end=self._on_end,
            )

        return call

    async def _connect(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        loop = asyncio.get_running_loop()
        if self._target.startswith(_UNIX):
            await loop.create_unix_connection(protocol, _unix_path(self._target))
            return
        host, _, port = _address(self._target).rpartition(":")
        # uvloop and asyncio switch Nagle's algorithm off themselves.
        await loop.create_connection(protocol, host.removeprefix("[").removesuffix("]"), int(port))

    def __getattr__(self, name: str) -> Any:  # unary_unary, close, get_state, …
        return getattr(self._channel, name)


def runs_in_loop(target: str) -> bool:
    """Whether the target is of a kind that is dialled here; gRPC knows more of them."""
    if target.startswith(_UNIX):
        return True
    host, _, port = _address(target).rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    return bool(bare) and port.isdecimal() and "/" not in bare and (":" not in bare or host.startswith("["))


def _unix_path(target: str) -> str:
    path = target.removeprefix(_UNIX)
    return path.removeprefix("//") if path.startswith("///") else path


def _address(target: str) -> str:
    return target.removeprefix("dns:").removeprefix("///")
