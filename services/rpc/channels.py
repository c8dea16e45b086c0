"""How processes dial each other."""

from __future__ import annotations

from typing import Any

import grpc

from services.rpc.access import TokenFile
from services.rpc.certificates import Certificates
from services.rpc.client_stream import StreamEnd
from services.rpc.loop_call import KEEPALIVE_S
from services.rpc.loop_channel import LoopChannel, runs_in_loop
from services.rpc.security import OPEN, Security
from services.rpc.tls_trouble import tls_trouble
from services.rpc.token_channel import TokenChannel

# Generous: GetTokenizer's chunks and step outputs stay far below it.
MAX_RECEIVE_BYTES = 256 * 1024 * 1024

_MAX_KEEPALIVE_S = 3600.0

_OPTIONS: tuple[tuple[str, Any], ...] = (
    # A dead peer shows after 10 s + 5 s although nobody writes; idle connections are watched too.
    ("grpc.keepalive_time_ms", round(1000 * KEEPALIVE_S)),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    # What lies between a fast writer and a slow reader is bounded: left to itself, the window grows to megabytes of
    # snapshots that are out of date when they are read.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 256 * 1024),
    # A restarted peer is found within 2 s; the default backs off to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Two channels to one address are two connections, and closing one leaves the other.
    ("grpc.use_local_subchannel_pool", 1),
    # http_proxy in the environment is meant for the internet, not for the cluster's own traffic.
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
)


class Dialer:
    """Makes channels to "unix:/path", "host:port", "[::1]:port" or "dns:///host:port"; they connect when first used.

    With certificates, TCP targets are dialled with TLS; with a token file, every call shows its first token.
    """

    def __init__(self, security: Security = OPEN) -> None:
        """Raises SecurityError when a flag of `security` cannot be honoured."""
        self._security = security
        self._certificates = Certificates(security) if security.dials_tls else None
        self._tokens = TokenFile(security.cluster_token_file) if security.cluster_token_file else None
        self._keepalive_s: dict[str, float] = {}  # by target, where the peer found our pings too many

    def dial(self, target: str) -> grpc.aio.Channel:
        """A channel for an event loop."""
        if self._certificates is None or target.startswith("unix:"):
            channel = grpc.aio.insecure_channel(target, options=_OPTIONS)
        else:
            channel = grpc.aio.secure_channel(target, self._certificates.channel_credentials(), options=self._options)
        return channel if self._tokens is None else self._showing(channel, self._tokens)

    def dial_engine(self, target: str) -> grpc.aio.Channel:
        """A channel whose Attach call the event loop reads itself, where the connection is in plaintext.

        gRPC's own stack, which all other calls and TLS use, costs several times as much for each message.
        """
        if (self._certificates is not None and not target.startswith("unix:")) or not runs_in_loop(target):
            return self.dial(target)

        def remember(end: StreamEnd) -> None:
            if end.too_many_pings:
                self._keepalive_s[target] = min(2 * self._keepalive_s.get(target, KEEPALIVE_S), _MAX_KEEPALIVE_S)

        channel: Any = LoopChannel(
            grpc.aio.insecure_channel(target, options=_OPTIONS),
            target,
            max_message_bytes=MAX_RECEIVE_BYTES,
            keepalive_s=self._keepalive_s.get(target, KEEPALIVE_S),
            on_end=remember,
        )
        shown: grpc.aio.Channel = channel if self._tokens is None else self._showing(channel, self._tokens)
        return shown

    def dial_blocking(self, target: str) -> grpc.Channel:
        """The same for a command without an event loop."""
        if self._certificates is None or target.startswith("unix:"):
            channel = grpc.insecure_channel(target, options=_OPTIONS)
        else:
            channel = grpc.secure_channel(target, self._certificates.channel_credentials(), options=self._options)
        return channel if self._tokens is None else self._showing(channel, self._tokens)

    def trouble_with(self, target: str) -> str | None:
        """Why no connection comes about, as far as certificates explain it. Blocks for some seconds at most."""
        return tls_trouble(target, self._security)

    @property
    def _options(self) -> tuple[tuple[str, Any], ...]:
        assert self._certificates is not None
        return (*_OPTIONS, *self._certificates.channel_options())

    @staticmethod
    def _showing(channel: Any, tokens: TokenFile) -> Any:
        return TokenChannel(channel, lambda: tokens.own)


_OPEN = Dialer()
dial, dial_engine = _OPEN.dial, _OPEN.dial_engine
