"""How a client dials: certificates, token, keepalive, retries."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from muster import v1 as wire

INFERENCE = "muster.v1.InferenceService"
_RETRIED = (INFERENCE, "muster.v1.EngineService", "muster.v1.RendezvousService", "muster.v1.CoordinatorService")
_MAX_RECEIVE_BYTES = 64 * 1024 * 1024


Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM, as bytes or as files. Without `ca` the system's authorities; `certificate` and `key` for mutual TLS;
    `server_name` when the certificate has another name than the address that is dialled."""

    ca: bytes | Path | None = None
    certificate: bytes | Path | None = None
    key: bytes | Path | None = None
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What rides in a call's metadata. `rank` is global."""

    request_id: str | None = None
    traceparent: str | None = None
    rank: int | None = None


NO_FACTS = CallFacts()


def service_config(*, health_of: str | None = None, retries: bool = True) -> str:
    """The gRPC service config that this client dials with, as JSON, for other clients to take over.

    A call that a server refuses with UNAVAILABLE, before its first message, is tried again, when the server wants it
    to be. All addresses of a target take turns; with `health_of`, a service's name, those only where it is SERVING.
    """
    config: dict[str, Any] = {"loadBalancingConfig": [{"round_robin": {}}]}
    if health_of is not None:
        config["healthCheckConfig"] = {"serviceName": health_of}
    if retries:
        policy = {
            "maxAttempts": 5,
            "initialBackoff": "0.2s",
            "maxBackoff": "5s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE"],
        }
        config["methodConfig"] = [{"name": [{"service": name} for name in _RETRIED], "retryPolicy": policy}]
    return json.dumps(config)


class Connection:
    """Makes channels of both kinds, and the metadata of calls."""

    def __init__(self, *, token: str | Callable[[], str] | None, tls: Tls | None, retries: bool) -> None:
        self._token = token
        self._tls = tls
        self._retries = retries

    def dial(self, target: str, health_of: str | None = None) -> grpc.Channel:
        options = self._options(health_of)
        if self._tls is None or target.startswith("unix:"):
            return grpc.insecure_channel(target, options=options)
        return grpc.secure_channel(target, self._credentials(self._tls), options=options)

    def dial_async(self, target: str, health_of: str | None = None) -> grpc.aio.Channel:
        options = self._options(health_of)
        if self._tls is None or target.startswith("unix:"):
            return grpc.aio.insecure_channel(target, options=options)
        return grpc.aio.secure_channel(target, self._credentials(self._tls), options=options)

    def metadata(self, facts: CallFacts) -> Metadata:
        """gRPC's own call credentials refuse plaintext connections, also those of a test on one machine."""
        found: list[tuple[str, str | bytes]] = []
        if self._token is not None:
            found.append(("authorization", f"Bearer {self._token if isinstance(self._token, str) else self._token()}"))
        if facts.request_id is not None:
            found.append(("x-request-id", facts.request_id))
        if facts.traceparent is not None:
            found.append(("traceparent", facts.traceparent))
        if facts.rank is not None:
            found.append(("x-data-parallel-rank", str(facts.rank)))
        return tuple(found)

    def _options(self, health_of: str | None) -> list[tuple[str, Any]]:
        options: list[tuple[str, Any]] = [
            ("grpc.service_config", service_config(health_of=health_of, retries=self._retries)),
            # A dead server shows within half a minute although nobody writes.
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.max_receive_message_length", _MAX_RECEIVE_BYTES),
        ]
        if self._tls is not None and self._tls.server_name is not None:
            options.append(("grpc.ssl_target_name_override", self._tls.server_name))
        return options

    @staticmethod
    def _credentials(tls: Tls) -> grpc.ChannelCredentials:
        ca, certificate, key = (
            part.read_bytes() if isinstance(part, Path) else part for part in (tls.ca, tls.certificate, tls.key)
        )
        return grpc.ssl_channel_credentials(ca, key, certificate)


def engine_target(roster: wire.Roster, rank: int) -> str:
    """Where to reach a rank, over TCP where it can be. Raises LookupError for one that cannot be asked now."""
    if not 0 <= rank < len(roster.ranks):
        known = f"ranks are 0 to {len(roster.ranks) - 1}" if roster.ranks else "the roster names none"
        raise LookupError(f"rank {rank} does not exist: {known}")
    entry = roster.ranks[rank]
    if not entry.targets:
        state = wire.RankState.Name(entry.state).removeprefix("RANK_STATE_")
        raise LookupError(f"rank {rank} is {state} and has no address")
    targets: Sequence[str] = entry.targets
    return next((target for target in targets if not target.startswith("unix:")), targets[0])
