"""What operators and probes ask: health, readiness, load, version, metrics. All from memory, so that load on the
gateway cannot delay them for long."""

from __future__ import annotations

from typing import Literal, TypedDict

from starlette.requests import Request
from starlette.responses import Response

from gateway.ports import RankLoad, RankProgress
from gateway.routes.serving import Serving, json_response

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_RETRY_AFTER = {"retry-after": "1"}

State = Literal["ready", "draining", "no_backend", "loading"]


class LiveBody(TypedDict):
    """The process runs its event loop."""

    status: Literal["alive"]


class HealthBody(TypedDict):
    """Whether requests can be served now."""

    status: State


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
        body: LiveBody = {"status": "alive"}
        return json_response(body)

    async def health(self, request: Request) -> Response:
        """Requests can be served now."""
        body: HealthBody = {"status": self._status()}
        return _as_ready(body)

    async def ready(self, request: Request) -> Response:
        """As health, with how far each rank is."""
        ranks = list(self._serving.cluster.progress())
        num_ready = sum(rank.state == "ready" for rank in ranks)
        body: ReadyBody = {"status": self._status(), "num_ready": num_ready, "num_ranks": len(ranks), "ranks": ranks}
        return _as_ready(body)

    async def version(self, request: Request) -> Response:
        body: VersionBody = {"version": self._serving.settings.product_version}
        return json_response(body)

    async def load(self, request: Request) -> Response:
        """Loads as the balancer sees them."""
        ranks = list(self._serving.cluster.loads())
        body: LoadBody = {"server_load": sum(rank.in_flight for rank in ranks), "ranks": ranks}
        return json_response(body)

    async def metrics(self, request: Request) -> Response:
        return Response(self._serving.metrics.render(), headers={"content-type": _METRICS_TYPE})

    def _status(self) -> State:
        return serving_state(self._serving)


def serving_state(serving: Serving) -> State:
    """Whether requests can be served now."""
    if serving.lifecycle.leaving or serving.lifecycle.draining:
        return "draining"
    if serving.cluster.ready:
        return "ready"
    return "no_backend" if serving.cluster.models() else "loading"


def _as_ready(body: HealthBody) -> Response:
    if body["status"] == "ready":
        return json_response(body)
    return json_response(body, status=503, headers=_RETRY_AFTER)
