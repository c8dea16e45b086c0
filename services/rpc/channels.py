"""How processes dial each other."""

from __future__ import annotations

from typing import Any

import grpc

# Generous: GetTokenizer's chunks and step outputs stay far below it.
MAX_RECEIVE_BYTES = 256 * 1024 * 1024

_OPTIONS: tuple[tuple[str, Any], ...] = (
    # A dead peer shows after 10 s + 5 s although nobody writes; idle connections are watched too.
    ("grpc.keepalive_time_ms", 10_000),
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


def dial(target: str) -> grpc.aio.Channel:
    """A channel to "unix:/path", "host:port", "[::1]:port" or "dns:///host:port". Connects when first used."""
    return grpc.aio.insecure_channel(target, options=_OPTIONS)


def dial_blocking(target: str) -> grpc.Channel:
    """The same for a command without an event loop."""
    return grpc.insecure_channel(target, options=_OPTIONS)
