"""`muster gateway`: REST over HTTP and InferenceService over gRPC, in front of all ranks."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from muster import v1 as wire

from gateway.app import build_app
from gateway.backend import Backend
from gateway.certificate import Certificate
from gateway.generation import GenerationLimits
from gateway.grpc_front import InferenceServicer
from gateway.http_server import KEEP_ALIVE_S, HttpServer
from gateway.lifecycle import Lifecycle
from gateway.patience import Limits
from gateway.peers import GatewayPeers, PeerServicer
from gateway.responses.archive import ResponseArchive
from gateway.responses.store import ResponseStore
from gateway.settings import AppSettings
from gateway.tracing import NO_TRACING, Tracing
from services.gateway.errors import gateway_error_table
from services.gateway.guarded_inference import GuardedInference
from services.gateway.guarded_peers import GuardedPeers
from services.gateway.prefix_caches import reset_prefix_caches
from services.http_front import PLAIN, HttpFront
from services.launcher.listening import HttpSockets, listen_http, listen_unix
from services.launcher.plan import join_host_port
from services.rpc import open_files
from services.rpc.channels import Dialer
from services.rpc.identity import host_id, host_name, tcp_target
from services.rpc.listening import ListenError, is_wildcard
from services.rpc.runtime import settle, stop_event
from services.rpc.security import OPEN, Security, SecurityError
from services.rpc.server import RpcServer
from services.smg import check_smg
from services.version import __version__

_log = logging.getLogger(__name__)

INFERENCE_SERVICE = "muster.v1.InferenceService"
PEER_SERVICE = "muster.v1.PeerService"
_READINESS_POLL_S = 0.1
_DRAIN_POLL_S = 0.05
# Connections wait so long for a restarted gateway to find its ranks; then an error is better than silence.
_WAIT_UNTIL_READY_S = 10.0
# What answers cut off at the shutdown timeout get to say so to their clients.
_LAST_WORDS_S = 1.0
# Of the connections a gateway has room for. The HTTP side closes idle ones when it needs room; gRPC cannot.
_GRPC_SHARE = 2 / 3


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """`http_fds` are listening sockets inherited from the launcher; without them `host` and `http_port` are bound.

    `reuse_port` shares the gRPC port with other gateways of this launcher, which keeps it reserved.
    """

    head_target: str
    ranks: tuple[int, ...] = ()  # global ranks to send requests to; empty means all
    name: str | None = None  # unique in the deployment; None makes one of host and pid
    host: str = "127.0.0.1"
    http_port: int = 8000
    http_fds: tuple[int, ...] = ()
    grpc_port: int = 8001
    unix_path: Path | None = None  # for the other gateways of this host, who share the port
    reuse_port: bool = False
    wait_until_ready: bool = False  # take no connections from the shared ports before there is somebody to serve them
    api_keys: tuple[str, ...] = ()
    request_timeout_s: float | None = None
    open_metrics: bool = False
    any_model_name: bool = False
    allowed_origins: tuple[str, ...] = ()
    page: bool = True
    root_path: str = ""
    max_body_bytes: int = 32 << 20
    ping_interval_s: float = 15.0
    smg: bool = False  # serve the smg router on the gRPC port too
    response_store_bytes: int = 64 << 20
    response_ttl_s: float = 86_400.0
    shutdown_timeout_s: float = 30.0
    drain_delay_s: float = 0.0  # after the signal, in which requests are still taken although readiness is false
    metrics_dir: Path | None = None  # shared with the gateways whose metrics are added up with this one's
    max_rank_losses: int = 2  # under one request, before it counts as their cause
    security: Security = OPEN
    front: HttpFront = PLAIN


async def run_gateway(options: GatewayOptions) -> int:
    """Serves until SIGTERM or SIGINT, after which running answers may finish; returns the exit code."""
    stop = stop_event()
    try:
        if options.smg:
            check_smg(options.security, options.api_keys)
        rpc = RpcServer(
            error_tables=[gateway_error_table],
            reuse_port=options.reuse_port,
            security=options.security,
            api_keys=options.api_keys,
            connection_share=_GRPC_SHARE,
        )
    except SecurityError as error:
        _log.error("the gateway cannot start: %s", error)
        return 2
    try:
        http = _http_sockets(options)
        grpc_port = rpc.listen_tcp(options.host, options.grpc_port, flags="--host/--grpc-port")
        if options.unix_path is not None:
            rpc.listen_unix(options.unix_path)
    except ListenError as error:
        _log.error("%s", error)
        await rpc.stop(0)
        return 1
    try:
        failure = await _Gateway(options, rpc, http, grpc_port=grpc_port).run(stop)
    finally:
        http.close()
    if failure:
        _log.error("cannot serve: %s", failure)
    return 1 if failure else 0


def _http_sockets(options: GatewayOptions) -> HttpSockets:
    if options.http_fds:
        sockets = [socket.socket(fileno=fd) for fd in options.http_fds]
        is_unix = sockets[0].family == socket.AF_UNIX
        return HttpSockets(sockets, 0 if is_unix else sockets[0].getsockname()[1])
    return listen_http(options.host, options.http_port) if options.front.uds is None else listen_unix(options.front.uds)


class _Gateway:
    """The parts of one gateway process; stopped in the reverse order of their start."""

    def __init__(
        self,
        options: GatewayOptions,
        rpc: RpcServer,
        http: HttpSockets,
        *,
        grpc_port: int,
    ) -> None:
        self._options = options
        self._rpc = rpc
        entry = _roster_entry(options, http=http, grpc_port=grpc_port)
        dialer = Dialer(options.security)
        self._backend = Backend(
            head_target=options.head_target,
            gateway=entry,
            host_id=host_id(),
            dial=dialer.dial,
            dial_engine=dialer.dial_engine,
            scope=options.ranks or None,
            metrics_directory=options.metrics_dir,
            limits=GenerationLimits(max_losses=options.max_rank_losses, queue_timeout_s=options.front.queue_timeout),
            tracing=_tracing(options),
        )
        servicer = InferenceServicer(generator=self._backend.generator, cluster=self._backend.cluster)
        # With cluster tokens, the port itself asks for a token or a key on every call.
        guards_itself = options.api_keys and options.security.cluster_token_file is None
        guarded = GuardedInference(servicer, options.api_keys) if guards_itself else servicer
        rpc.add(INFERENCE_SERVICE, wire.add_InferenceServiceServicer_to_server, guarded)
        archive = self._add_archive(entry.name)
        self._smg_service = self._add_smg() if options.smg else None
        self._lifecycle = Lifecycle()
        app = build_app(
            generator=self._backend.generator,
            cluster=self._backend.cluster,
            metrics=self._backend.metrics,
            settings=_app_settings(options),
            lifecycle=self._lifecycle,
            embedder=self._backend.embedder,
            responses=archive,
            deployment=self._backend.deployment,
        )
        room = open_files.num_connections(open_files.raise_limit(), 1.0 - _GRPC_SHARE)
        self._http = HttpServer(
            app,
            http.sockets,
            shutdown_timeout_s=options.shutdown_timeout_s + _LAST_WORDS_S,
            limits=Limits(request_s=KEEP_ALIVE_S, num_connections=room),
            certificate=_certificate(options.front),
        )
        _log.info("REST on %s, gRPC on port %d, head at %s", entry.http_url, grpc_port, options.head_target)

    def _add_archive(self, name: str) -> ResponseArchive:
        """The memory for finished responses, and the service by which other gateways look into it."""
        options = self._options
        store = ResponseStore(options.response_store_bytes, options.response_ttl_s)
        # With cluster tokens, the port itself asks for a member's, and the dialer shows ours.
        has_tokens = options.security.cluster_token_file is not None
        # Metadata of gRPC is ASCII; a key that is none cannot be sent.
        key = None if has_tokens else next((key for key in options.api_keys if key.isascii()), None)
        dial, known = Dialer(options.security).dial, self._backend.cluster.peers
        peers = GatewayPeers(host_id=host_id(), dial=dial, peers=known, api_key=key)
        servicer = PeerServicer(store, name, peers)
        guarded = GuardedPeers(servicer, options.api_keys) if options.api_keys and not has_tokens else servicer
        self._rpc.add(PEER_SERVICE, wire.add_PeerServiceServicer_to_server, guarded)
        return ResponseArchive(store, gateway=name, peers=peers)

    def _add_smg(self) -> str:
        """The smg router's service, whose package is an extra."""
        from gateway.smg.servicer import SERVICE_NAME, SmgServicer, add_to_server

        options = self._options
        dial = Dialer(options.security).dial
        servicer = SmgServicer(
            generator=self._backend.generator,
            embedder=self._backend.embedder,
            cluster=self._backend.cluster,
            flush_cache=lambda: reset_prefix_caches(dial, options.head_target, options.ranks),
            product_version=__version__,
        )
        self._rpc.add(SERVICE_NAME, add_to_server, servicer)
        return SERVICE_NAME

    async def run(self, stop: asyncio.Event) -> str:
        """Ends after `stop`, or with the reason why this gateway can never serve."""
        self._backend.start()
        if self._options.wait_until_ready:
            await self._wait_until_ready(stop)
        await self._http.start()
        await self._rpc.start()
        announcing = asyncio.create_task(self._announce_readiness())
        while not self._backend.cluster.tokenizer_problem:
            if await _set_within(stop, _READINESS_POLL_S):
                break
        announcing.cancel()
        await asyncio.wait([announcing])
        failure = self._backend.cluster.tokenizer_problem
        await self._stop()
        return "" if stop.is_set() else failure

    async def _wait_until_ready(self, stop: asyncio.Event) -> None:
        deadline = time.monotonic() + _WAIT_UNTIL_READY_S
        cluster = self._backend.cluster
        while not (cluster.ready or cluster.tokenizer_problem) and time.monotonic() < deadline:
            if await _set_within(stop, _READINESS_POLL_S):
                return

    async def _announce_readiness(self) -> None:
        """Health on the gRPC port says what /readyz says."""
        was_ready, has_settled = False, False
        while True:
            ready = self._backend.cluster.ready
            if ready and not has_settled:
                settle()
                has_settled = True
            if ready != was_ready:
                _log.info("ready to serve" if ready else "not ready: no rank serves")
                self._rpc.set_serving("", ready)
                self._rpc.set_serving(INFERENCE_SERVICE, ready)
                self._rpc.set_serving(PEER_SERVICE, ready)
                if self._smg_service is not None:
                    self._rpc.set_serving(self._smg_service, ready)
                was_ready = ready
            await asyncio.sleep(_READINESS_POLL_S)

    async def _stop(self) -> None:
        timeout_s, delay_s = self._options.shutdown_timeout_s, self._options.drain_delay_s
        self._lifecycle.leave()
        self._rpc.set_all_not_serving()
        if delay_s:
            _log.info("leaving: not ready any more; requests are taken for %g s, until balancers have noticed", delay_s)
            await asyncio.sleep(delay_s)
        _log.info("stopping: %d requests may finish within %g s", self._backend.generator.num_open, timeout_s)
        self._lifecycle.drain(timeout_s)
        started = time.monotonic()
        await asyncio.gather(self._drain_http(started + timeout_s), self._rpc.stop(timeout_s))
        await self._backend.close()
        _log.info("stopped after %.1f s", time.monotonic() - started)

    async def _drain_http(self, deadline: float) -> None:
        """Goes on listening while answers run, so that probes and balancers hear 503 and not a refused connection."""
        while True:
            if self._backend.generator.num_open == 0 or time.monotonic() >= deadline:
                break
            await asyncio.sleep(_DRAIN_POLL_S)
        await self._http.stop()


async def _set_within(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return False
    return True


def _app_settings(options: GatewayOptions) -> AppSettings:
    return AppSettings(
        product_version=__version__,
        api_keys=options.api_keys,
        open_metrics=options.open_metrics,
        max_body_bytes=options.max_body_bytes,
        ping_interval_s=options.ping_interval_s,
        request_timeout_s=options.request_timeout_s,
        any_model_name=options.any_model_name,
        page=options.page,
        root_path=options.root_path,
        cors_origins=options.allowed_origins,
        cors_methods=options.front.allowed_methods,
        cors_headers=options.front.allowed_headers,
        cors_credentials=options.front.allow_credentials,
        reasoning_parser=options.front.reasoning_parser,
        tool_call_parser=options.front.tool_call_parser,
    )


def _certificate(front: HttpFront) -> Certificate | None:
    return None if front.ssl_certfile is None else Certificate(front.ssl_certfile, front.ssl_keyfile)


def _tracing(options: GatewayOptions) -> Tracing:
    if options.front.otlp_traces_endpoint is None:
        return NO_TRACING
    from gateway.otlp import OtlpTracing  # an extra that need not be installed

    return OtlpTracing(options.front.otlp_traces_endpoint, version=__version__)


def _http_url(options: GatewayOptions, host: str, http: HttpSockets) -> str:
    if options.front.uds is not None:
        return f"unix:{options.front.uds}"
    return f"{options.front.scheme}://{join_host_port(host, http.port)}"


def _roster_entry(options: GatewayOptions, *, http: HttpSockets, grpc_port: int) -> wire.GatewayEntry:
    # The pid alone is not unique: containers count their processes from 1.
    tcp = tcp_target(options.host, grpc_port)
    name = options.name or f"{host_name()}-{os.getpid()}-{secrets.token_hex(2)}"
    host = host_name() if is_wildcard(options.host) else options.host
    return wire.GatewayEntry(
        name=name,
        host=host_name(),
        pid=os.getpid(),
        http_url=_http_url(options, host, http),
        grpc_target=join_host_port(host, grpc_port),
        ranks=options.ranks,
        targets=[f"unix:{options.unix_path}", tcp] if options.unix_path is not None else [tcp],
        host_id=host_id(),
    )
