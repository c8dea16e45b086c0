"""What operators and probes ask: health, readiness, load, version, metrics. All from memory, so that load on the
gateway cannot delay them for long."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal, TypedDict

from starlette.requests import Request
from starlette.responses import Response

from gateway.ports import RankLoad, RankProgress
from gateway.routes.serving import Serving, json_response

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_RETRY_AFTER = {"retry-after": "1"}


class LiveBody(TypedDict):
    """The process runs its event loop."""

    status: Literal["alive"]


class HealthBody(TypedDict):
    """Whether requests can be served now."""

    status: Literal["ready", "draining", "no_backend", "loading"]


class ReadyBody(HealthBody):
    """With how far each rank is."""

    num_ready: int
    num_ranks: int
    ranks: list[RankProgress]


class VersionBody(TypedDict):
    """Of Muster."""

    version: str


class LoadBody(TypedDict):
    """Loads as the balancer sees them; `server_load` are this gateway's requests."""

    server_load: int
    ranks: list[RankLoad]


class Status:
    """Answers from cached state."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def live(self, request: Request) -> Response:
        """The process runs its event loop."""
        return json_response({"status": "alive"})

    async def health(self, request: Request) -> Response:
        """Requests can be served now."""
        status = self._status()
        return json_response({"status": status}) if status == "ready" else _unavailable({"status": status})

    async def ready(self, request: Request) -> Response:
        """As health, with how far each rank is."""
        status = self._status()
        ranks = [asdict(progress) for progress in self._serving.cluster.progress()]
        num_ready = sum(rank["state"] == "ready" for rank in ranks)
        body = {"status": status, "num_ready": num_ready, "num_ranks": len(ranks), "ranks": ranks}
        return json_response(body) if status == "ready" else _unavailable(body)

    async def version(self, request: Request) -> Response:
        return json_response({"version": self._serving.settings.product_version})

    async def load(self, request: Request) -> Response:
        """Loads as the balancer sees them."""
        ranks = [asdict(load) for load in self._serving.cluster.loads()]
        return json_response({"server_load": sum(rank["in_flight"] for rank in ranks), "ranks": ranks})

    async def metrics(self, request: Request) -> Response:
        return Response(self._serving.metrics.render(), headers={"content-type": _METRICS_TYPE})

    def _status(self) -> str:
        if self._serving.lifecycle.draining:
            return "draining"
        if self._serving.cluster.ready:
            return "ready"
        return "no_backend" if self._serving.cluster.models() else "loading"


def _unavailable(body: dict[str, object]) -> Response:
    return json_response(body, status=503, headers=_RETRY_AFTER)
