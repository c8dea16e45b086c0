"""The head process: one port, three services, and the watch over the deployment's start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from muster import v1 as wire

from services.head.admin_servicer import AdminServicer
from services.head.admission import Rules
from services.head.control_plane import ControlPlane, Timing
from services.head.coordinator_servicer import CoordinatorServicer
from services.head.errors import head_error_table
from services.head.rendezvous_servicer import RendezvousServicer
from services.head.startup import Outcome
from services.rpc.channels import Dialer
from services.rpc.identity import new_incarnation
from services.rpc.runtime import stop_event
from services.rpc.security import OPEN, Security, SecurityError
from services.rpc.server import ListenError, RpcServer
from services.version import PROTOCOL_MAX, PROTOCOL_MIN, __version__

_log = logging.getLogger(__name__)

RENDEZVOUS_SERVICE = "muster.v1.RendezvousService"
COORDINATOR_SERVICE = "muster.v1.CoordinatorService"
ADMIN_SERVICE = "muster.v1.AdminService"

_LISTEN_FLAGS = "--data-parallel-bind-address/--data-parallel-rpc-port (muster head: --host/--port)"
# Streams are ended by the head itself; the grace only lets their last frames out.
_STOP_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class HeadOptions:
    """`configuration` holds the settings that every rank must share, key = flag name without dashes in front, and
    `advice` those of which a difference is a warning.

    `host` and `port` are bound (port 0 takes a free one), and `unix_path` beside them. `local_ranks` are started
    by this node's launcher; it only makes the progress lines more helpful.
    """

    deployment_id: str
    data_parallel_size: int
    max_data_parallel_size: int | None = None  # to which engines may join at run time; None: as many as at the start
    wanted_size: int | None = None  # what an earlier head was asked for; None: data_parallel_size
    configuration: Mapping[str, str] = field(default_factory=dict)
    advice: Mapping[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 0
    unix_path: Path | None = None
    health_port: int | None = None  # for probes that cannot speak TLS
    ready_timeout_s: float = 600.0
    heartbeat_interval_s: float = 2.0
    heartbeat_timeout_s: float = 10.0
    shrink_group_after_s: float | None = None
    local_ranks: range | None = None
    security: Security = OPEN

    def mistake(self) -> str | None:
        """What is wrong with the values, naming the flag; None when nothing is."""
        if self.data_parallel_size < 1:
            return f"--data-parallel-size is {self.data_parallel_size}; at least 1 rank is needed"
        most = self.max_data_parallel_size
        if most is not None and most < self.data_parallel_size:
            return (
                f"--max-data-parallel-size {most} is less than --data-parallel-size {self.data_parallel_size}; raise it"
                " or leave it out"
            )
        if self.wanted_size is not None and not 1 <= self.wanted_size <= (most or self.data_parallel_size):
            return (
                f"--wanted-size {self.wanted_size} is not between 1 and --max-data-parallel-size "
                f"{most or self.data_parallel_size}"
            )
        if self.ready_timeout_s <= 0:
            return f"--ready-timeout is {self.ready_timeout_s:g} s; give the ranks time to load"
        if not 0 < self.heartbeat_interval_s < self.heartbeat_timeout_s:
            return (
                f"--heartbeat-interval is {self.heartbeat_interval_s:g} s and --heartbeat-timeout"
                f" {self.heartbeat_timeout_s:g} s; the timeout has to be the longer one, best by a few intervals"
            )
        return None


async def run_head(options: HeadOptions, *, on_listening: Callable[[list[str]], None]) -> int:
    """Runs until SIGTERM or SIGINT (0), or until the start fails (1, or 2 when an option cannot be).

    `on_listening` gets the gRPC targets, the Unix socket first, once the head serves.
    """
    mistake = options.mistake()
    if mistake is not None:
        _log.error("%s", mistake)
        return 2
    stop = stop_event()
    try:
        server = RpcServer(error_tables=[head_error_table], security=options.security)
    except SecurityError as error:
        _log.error("the head cannot start: %s", error)
        return 2
    control = _build_control_plane(options, server)
    try:
        targets = _listen(server, options)
    except ListenError as error:
        _log.error("the head cannot start: %s", error)
        await server.stop(0)
        return 1
    await server.start()
    for name in ("", RENDEZVOUS_SERVICE, COORDINATOR_SERVICE, ADMIN_SERVICE):
        server.set_serving(name, True)
    _log.info("head of deployment %s listens on %s", options.deployment_id, ", ".join(targets))
    on_listening(targets)
    try:
        return await _watch_over(control, stop, interval_s=options.heartbeat_interval_s / 4)
    finally:
        server.set_all_not_serving()
        control.close()
        await server.stop(_STOP_GRACE_S)


def _build_control_plane(options: HeadOptions, server: RpcServer) -> ControlPlane:
    rules = Rules(
        deployment_id=options.deployment_id,
        data_parallel_size=options.data_parallel_size,
        protocol_min=PROTOCOL_MIN,
        protocol_max=PROTOCOL_MAX,
        product_version=__version__,
        configuration=options.configuration,
        advice=options.advice,
        max_data_parallel_size=options.max_data_parallel_size or 0,
    )
    timing = Timing(
        options.ready_timeout_s, options.heartbeat_interval_s, options.heartbeat_timeout_s, options.shrink_group_after_s
    )
    control = ControlPlane(
        rules,
        timing,
        incarnation=new_incarnation(),
        local_ranks=options.local_ranks,
        wanted_size=options.wanted_size,
        on_serving=lambda rank, serving: server.set_serving(rank_health_name(rank), serving),
    )
    for rank in range(options.wanted_size or options.data_parallel_size):
        server.set_serving(rank_health_name(rank), False)
    server.add(RENDEZVOUS_SERVICE, wire.add_RendezvousServiceServicer_to_server, RendezvousServicer(control))
    server.add(COORDINATOR_SERVICE, wire.add_CoordinatorServiceServicer_to_server, CoordinatorServicer(control))
    admin = AdminServicer(control, Dialer(options.security).dial)
    server.add(ADMIN_SERVICE, wire.add_AdminServiceServicer_to_server, admin)
    return control


def rank_health_name(rank: int) -> str:
    """The name under which the head's health service tells whether a rank is READY."""
    return f"muster.v1.EngineService/rank-{rank}"


def _listen(server: RpcServer, options: HeadOptions) -> list[str]:
    targets = []
    if options.unix_path is not None:
        targets.append(server.listen_unix(options.unix_path))
    port = server.listen_tcp(options.host, options.port, flags=_LISTEN_FLAGS)
    if options.health_port is not None:
        server.listen_health(options.host, options.health_port, flags="--host/--health-port")
    bare = options.host.removeprefix("[").removesuffix("]")
    targets.append(f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}")
    return targets


async def _watch_over(control: ControlPlane, stop: asyncio.Event, *, interval_s: float) -> int:
    while not stop.is_set():
        if control.tick() is Outcome.EXPIRED:
            return 1
        try:
            async with asyncio.timeout(interval_s):
                await stop.wait()
        except TimeoutError:
            continue
    _log.info("the head stops")
    return 0
