"""One gRPC port of one process, with health, reflection and channelz on it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_channelz.v1 import channelz, channelz_pb2

from services.rpc import health, open_files, reflection
from services.rpc.access import AccessInterceptor, TokenFile
from services.rpc.certificates import Certificates
from services.rpc.errors import ErrorTable
from services.rpc.interceptor import ErrorInterceptor
from services.rpc.listening import (
    AddressInUseError,
    ListenError,
    check_can_bind,
    is_absent,
    prepare_unix_path,
    resolve,
)
from services.rpc.security import OPEN, Security, SecurityError, exposure_warning

__all__ = ["AddressInUseError", "ListenError", "RpcServer", "check_doors"]

_log = logging.getLogger(__name__)

# A connection that has not said what HTTP/2 begins with by then is closed; gRPC's own limit is two minutes.
_HANDSHAKE_TIMEOUT_MS = 10_000
# Calls of one connection at one time; a client with more of them waits, or opens another connection.
_MAX_STREAMS = 1024
# Calls of all connections that came while the event loop was busy. Beyond its own limit, from 1000 on, gRPC ends calls
# at random with CANCELLED: a crowd's would hit everybody's. A waiting call costs some 10 KiB.
_MAX_WAITING_CALLS = 64 * _MAX_STREAMS
# Connections of those who ask for health on a port of its own.
_MAX_PROBES = 64
_IDLE_CONNECTION_MS = 15 * 60 * 1000

_CHANNELZ_SERVICE_NAME: str = channelz_pb2.DESCRIPTOR.services_by_name["Channelz"].full_name


class RpcServer:
    """Serves all services of a process on Unix sockets and TCP ports.

    Create it inside the running event loop; add services, then listen, then start. Everything, also the name "",
    is NOT_SERVING until `set_serving`.
    """

    def __init__(
        self,
        *,
        error_tables: Sequence[ErrorTable] = (),
        reuse_port: bool = False,
        security: Security = OPEN,
        api_keys: Sequence[str] = (),
        connection_share: float = 1.0,
        most_connections: int | None = None,
    ) -> None:
        """`api_keys` are accepted beside the tokens of `security`, for what clients of InferenceService do.

        `connection_share` of the files this process may open are for callers of this server; `most_connections` says
        how many each address may have in any case.

        Raises SecurityError when a flag of `security` cannot be honoured.
        """
        interceptors: list[grpc.aio.ServerInterceptor] = [ErrorInterceptor(error_tables)]
        if security.cluster_token_file is not None:
            interceptors.insert(0, AccessInterceptor(TokenFile(security.cluster_token_file), api_keys=api_keys))
        self._credentials = _server_credentials(security)
        limit = open_files.raise_limit()
        if (shortage := open_files.shortage(limit)) is not None:
            _log.warning("%s", shortage)
        num_connections = open_files.num_connections(limit, connection_share)
        if most_connections is not None:
            num_connections = min(num_connections, most_connections)
        self._server = grpc.aio.server(interceptors=interceptors, options=_options(reuse_port, num_connections))
        self._reuse_port = reuse_port
        self._security = security
        self._service_names: list[str] = []
        self._health_server: grpc.aio.Server | None = None
        self._health = health.HealthServicer()
        self._watching: asyncio.Task[None] | None = None
        self._stopping = False

    def add(self, service_name: str, register: Callable[[Any, grpc.aio.Server], None], servicer: object) -> None:
        """Adds a servicer: its full name, the generated `wire.add_…Servicer_to_server`, and the object."""
        register(servicer, self._server)
        self._service_names.append(service_name)
        self._health.set(service_name, False)

    def listen_unix(self, path: Path) -> str:
        """Listens on a socket file and returns its target; raises ListenError naming what is wrong with it."""
        target = prepare_unix_path(path)
        try:
            self._server.add_insecure_port(target)
        except RuntimeError as error:
            raise ListenError(f"cannot listen on {target}: {error}") from error
        return target

    def listen_tcp(self, host: str, port: int, *, flags: str) -> int:
        """Listens on all addresses of `host` and returns the port, the real one for 0.

        `flags` names what chose host and port, for example "--host/--port"; it appears in AddressInUseError and
        ListenError.
        """
        bound_port = self._listen(host, port, flags, self._bind)
        warning = exposure_warning(host, self._security)
        if warning is not None:
            _log.warning("%s", warning)
        return bound_port

    def _listen(self, host: str, port: int, flags: str, bind: Callable[[str], int]) -> int:
        if not 0 <= port <= 65535:
            raise ListenError(f"port {port} does not exist; {flags} takes 0 to 65535")
        addresses = resolve(host, flags=flags)
        present = [address for address in addresses if not is_absent(address)]
        if port == 0:
            # One address is enough for a name: whoever dials the name tries all of its addresses.
            present = present[:1]
        bound_port = port
        for address in present or addresses[:1]:
            # Asked first, because gRPC does not say why it cannot bind.
            check_can_bind(address, port, host=host, flags=flags, reuse_port=self._reuse_port)
            try:
                bound_port = bind(address.with_port(port))
            except RuntimeError as error:
                raise AddressInUseError(host, port, flags) from error  # somebody was faster
        return bound_port

    def listen_health(self, host: str, port: int, *, flags: str) -> int:
        """Answers health checks, and nothing else, on a port of their own without TLS: some probes cannot speak it.

        See `listen_tcp`; what is said there is what everybody may know anyway.
        """
        options = _options(reuse_port=False, num_connections=_MAX_PROBES)
        self._health_server = grpc.aio.server(interceptors=[ErrorInterceptor(())], options=options)
        health.add_to_server(self._health, self._health_server)
        return self._listen(host, port, flags, self._health_server.add_insecure_port)

    def _bind(self, address: str) -> int:
        if self._credentials is None:
            return self._server.add_insecure_port(address)
        return self._server.add_secure_port(address, self._credentials)

    async def start(self) -> None:
        health.add_to_server(self._health, self._server)
        channelz.add_channelz_servicer(self._server)
        names = [*self._service_names, health.SERVICE_NAME, _CHANNELZ_SERVICE_NAME]
        if self._security.reflection:
            reflection.add_to_server(names, self._server)
        await self._server.start()
        self._watching = asyncio.create_task(self._watch_over(), name="grpc server")
        if self._health_server is not None:
            await self._health_server.start()

    def set_serving(self, service_name: str, serving: bool) -> None:
        """Tells health checks and their watchers; "" stands for the whole process."""
        self._health.set(service_name, serving)

    def set_all_not_serving(self) -> None:
        """The first step of stopping: health checks turn traffic away while calls go on."""
        self._health.set_all_not_serving()

    async def stop(self, grace_s: float) -> None:
        """Says NOT_SERVING, refuses new calls, and gives running ones `grace_s` seconds before they are cancelled."""
        self._health.set_all_not_serving()
        self._stopping = True
        await self._server.stop(grace_s)
        if self._health_server is not None:
            await self._health_server.stop(0)
        if self._watching is not None:
            await self._watching

    async def _watch_over(self) -> None:
        """A server that ended by itself would leave a process that looks well and that nobody can call."""
        failure: Exception | None = None
        try:
            await self._server.wait_for_termination()
        except Exception as error:
            failure = error
        if not self._stopping:
            _log.critical("the gRPC server has failed; this process ends too, to be started anew", exc_info=failure)
            _end_process()


def _end_process() -> None:
    """At once: no call can be finished, and those who wait for one are told by the broken connections."""
    logging.shutdown()
    os._exit(1)


def _server_credentials(security: Security) -> grpc.ServerCredentials | None:
    if security.serves_tls or security.tls_key is not None:
        return Certificates(security).server_credentials()
    if security.tls_ca is not None:
        raise SecurityError(
            f"--tls-ca {security.tls_ca} without --tls-cert and --tls-key: this process could not show a certificate "
            "on its own port; give all three"
        )
    return None


def check_doors(security: Security) -> None:
    """Raises SecurityError when a process could not serve and dial as `security` says; for before anything starts."""
    _server_credentials(security)
    if security.cluster_token_file is not None:
        TokenFile(security.cluster_token_file)


def _options(reuse_port: bool, num_connections: int) -> list[tuple[str, Any]]:
    return [
        # Off: the default lets a second server take the same port silently.
        ("grpc.so_reuseport", int(reuse_port)),
        # Clients may ping often and while idle; the defaults cut them off with "too many pings".
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_TIMEOUT_MS),
        # A client that vanished without closing is noticed within 30 s.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", 64 * 1024 * 1024),
        ("grpc.max_concurrent_streams", _MAX_STREAMS),
        ("grpc.server.max_pending_requests", _MAX_WAITING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", _MAX_WAITING_CALLS),
        # Beyond that a connection is closed as soon as it comes, and those that are there go on.
        ("grpc.max_allowed_incoming_connections", num_connections),
        # A connection without a call is given back; its client dials again when it has one.
        ("grpc.max_connection_idle_ms", _IDLE_CONNECTION_MS),
    ]
