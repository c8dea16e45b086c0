"""`muster gateway`: REST over HTTP and InferenceService over gRPC, in front of all ranks."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from dataclasses import dataclass

from muster import v1 as wire

from gateway.app import build_app
from gateway.backend import Backend
from gateway.generation import GenerationLimits
from gateway.grpc_front import InferenceServicer
from gateway.http_server import HttpServer
from gateway.lifecycle import Lifecycle
from gateway.settings import AppSettings
from gateway.tracing import NO_TRACING, Tracing
from services.gateway.errors import gateway_error_table
from services.gateway.guarded_inference import GuardedInference
from services.http_front import PLAIN, HttpFront
from services.launcher.listening import HttpSockets, listen_http, listen_unix
from services.launcher.plan import join_host_port
from services.rpc.channels import dial
from services.rpc.identity import host_id, host_name
from services.rpc.listening import ListenError
from services.rpc.runtime import stop_event
from services.rpc.server import RpcServer
from services.version import __version__

_log = logging.getLogger(__name__)

INFERENCE_SERVICE = "muster.v1.InferenceService"
_READINESS_POLL_S = 0.1
_DRAIN_POLL_S = 0.05
# Connections wait so long for a restarted gateway to find its ranks; then an error is better than silence.
_WAIT_UNTIL_READY_S = 10.0
# What answers cut off at the shutdown timeout get to say so to their clients.
_LAST_WORDS_S = 1.0


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
    reuse_port: bool = False
    wait_until_ready: bool = False  # take no connections from the shared ports before there is somebody to serve them
    api_keys: tuple[str, ...] = ()
    request_timeout_s: float | None = None
    open_metrics: bool = False
    any_model_name: bool = False
    allowed_origins: tuple[str, ...] = ()
    root_path: str = ""
    max_body_bytes: int = 32 << 20
    ping_interval_s: float = 15.0
    shutdown_timeout_s: float = 30.0
    front: HttpFront = PLAIN

    @property
    def all_keys(self) -> tuple[str, ...]:
        """Those given and those of the file."""
        return (*self.api_keys, *self.front.keys())


async def run_gateway(options: GatewayOptions) -> int:
    """Serves until SIGTERM or SIGINT, after which running answers may finish; returns the exit code."""
    stop = stop_event()
    rpc = RpcServer(error_tables=[gateway_error_table], reuse_port=options.reuse_port)
    try:
        http = _http_sockets(options)
        grpc_port = rpc.listen_tcp(options.host, options.grpc_port, flags="--host/--grpc-port")
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
        self._backend = Backend(
            head_target=options.head_target,
            gateway=_roster_entry(options, http=http, grpc_port=grpc_port),
            host_id=host_id(),
            dial=dial,
            scope=options.ranks or None,
            limits=GenerationLimits(queue_timeout_s=options.front.queue_timeout),
            tracing=_tracing(options),
        )
        servicer = InferenceServicer(generator=self._backend.generator, cluster=self._backend.cluster)
        guarded = GuardedInference(servicer, options.all_keys) if options.all_keys else servicer
        rpc.add(INFERENCE_SERVICE, wire.add_InferenceServiceServicer_to_server, guarded)
        self._lifecycle = Lifecycle()
        app = build_app(
            generator=self._backend.generator,
            cluster=self._backend.cluster,
            metrics=self._backend.metrics,
            settings=_app_settings(options),
            lifecycle=self._lifecycle,
        )
        self._http = HttpServer(
            app,
            http.sockets,
            shutdown_timeout_s=options.shutdown_timeout_s + _LAST_WORDS_S,
            certfile=options.front.ssl_certfile,
            keyfile=options.front.ssl_keyfile,
        )
        _log.info("REST on %s, gRPC on port %d, head at %s", _http_url(options, http), grpc_port, options.head_target)

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
        was_ready = False
        while True:
            ready = self._backend.cluster.ready
            if ready != was_ready:
                _log.info("ready to serve" if ready else "not ready: no rank serves")
                self._rpc.set_serving("", ready)
                self._rpc.set_serving(INFERENCE_SERVICE, ready)
                was_ready = ready
            await asyncio.sleep(_READINESS_POLL_S)

    async def _stop(self) -> None:
        timeout_s = self._options.shutdown_timeout_s
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
        api_keys=options.all_keys,
        open_metrics=options.open_metrics,
        max_body_bytes=options.max_body_bytes,
        ping_interval_s=options.ping_interval_s,
        request_timeout_s=options.request_timeout_s,
        any_model_name=options.any_model_name,
        root_path=options.root_path,
        cors_origins=options.allowed_origins,
        cors_methods=options.front.allowed_methods,
        cors_headers=options.front.allowed_headers,
        cors_credentials=options.front.allow_credentials,
        reasoning_parser=options.front.reasoning_parser,
        tool_call_parser=options.front.tool_call_parser,
    )


def _tracing(options: GatewayOptions) -> Tracing:
    if options.front.otlp_traces_endpoint is None:
        return NO_TRACING
    from gateway.otlp import OtlpTracing  # an extra that need not be installed

    return OtlpTracing(options.front.otlp_traces_endpoint, version=__version__)


def _http_url(options: GatewayOptions, http: HttpSockets) -> str:
    if options.front.uds is not None:
        return f"unix:{options.front.uds}"
    return f"{options.front.scheme}://{join_host_port(options.host, http.port)}"


def _roster_entry(options: GatewayOptions, *, http: HttpSockets, grpc_port: int) -> wire.GatewayEntry:
    # The pid alone is not unique: containers count their processes from 1.
    name = options.name or f"{host_name()}-{os.getpid()}-{secrets.token_hex(2)}"
    return wire.GatewayEntry(
        name=name,
        host=host_name(),
        pid=os.getpid(),
        http_url=_http_url(options, http),
        grpc_target=join_host_port(options.host, grpc_port),
        ranks=options.ranks,
    )
