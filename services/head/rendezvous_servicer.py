"""RendezvousService: the async shell around the roster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from muster import v1 as wire

from services.head import convert
from services.head.control_plane import ControlPlane
from services.head.outbox import Outbox
from services.head.session import Session
from services.rpc.errors import invalid_field


class RendezvousServicer(wire.RendezvousServiceServicer):
    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    async def Register(
        self, request_iterator: AsyncIterator[wire.RegisterRequest], context: Any
    ) -> AsyncIterator[wire.RegisterResponse]:
        outbox = Outbox[wire.RegisterResponse]()
        session = Session(self._control, outbox)
        # Reading and writing are independent: a command must reach an engine that says nothing.
        reader = asyncio.create_task(session.read(request_iterator))
        try:
            async for frame in outbox.frames():
                yield frame
        finally:
            session.close()
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader

    async def WatchRoster(
        self, request: wire.WatchRosterRequest, context: Any
    ) -> AsyncIterator[wire.WatchRosterResponse]:
        with self._listed(request):
            watch, version = self._control.roster_watch, 0
            while True:
                await watch.newer_than(version)
                version = watch.version
                yield watch.response
                await watch.rest()

    async def GetDeployment(self, request: wire.GetDeploymentRequest, context: Any) -> wire.GetDeploymentResponse:
        control, rules = self._control, self._control.rules
        remaining_s = control.startup_remaining_s
        return wire.GetDeploymentResponse(
            roster=control.roster_watch.value,
            loads=control.rank_loads(),
            product_version=rules.product_version,
            protocol=wire.ProtocolRange(min=rules.protocol_min, max=rules.protocol_max),
            started_at=convert.timestamp(control.started_s + control.wall_offset_s),
            configuration=rules.configuration,
            ready_deadline=None if remaining_s is None else convert.duration(remaining_s),
        )

    @contextlib.contextmanager
    def _listed(self, request: wire.WatchRosterRequest) -> Iterator[None]:
        """Lists the gateway that watches, if it is one, for as long as it watches."""
        if not request.watcher.HasField("gateway"):
            yield
            return
        gateway = request.watcher.gateway
        if not gateway.name:
            raise invalid_field("watcher.gateway.name", "is empty; give the gateway a name, for example host:port")
        number = self._control.add_gateway(gateway)
        try:
            yield
        finally:
            self._control.remove_gateway(number, gateway.name)
