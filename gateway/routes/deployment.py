"""GET /deployment: what the page at / shows live, and what a script may want to know at a glance."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TypedDict

from starlette.requests import Request
from starlette.responses import Response

from gateway.deployment_history import INTERVAL_S, LoadPoint, LoadSample
from gateway.errors import InvalidRequest
from gateway.openai.fields import shown
from gateway.ports import Deployment, RankReport
from gateway.routes.serving import Serving, json_response
from gateway.routes.status import State, serving_state


class DeploymentQuery(TypedDict, total=False):
    """`history_after`: only samples later than this time, in seconds since the epoch."""

    history_after: float


class ServedModelBody(TypedDict):
    """The model that all ranks serve; its lengths are in tokens."""

    name: str
    names: list[str]
    architecture: str
    dtype: str
    max_model_len: int


class HistoryColumns(TypedDict):
    """One value per time in `at`; null where it is not known."""

    generated_tokens_per_s: list[float | None]
    prompt_tokens_per_s: list[float | None]
    running: list[int | None]
    waiting: list[int | None]
    kv_usage: list[float | None]


class HistoryBody(TypedDict):
    """The last ten minutes, about one sample per `interval_s`. `ranks` is by rank, empty with more than 32 of them."""

    interval_s: float
    at: list[float]
    total: HistoryColumns
    ranks: dict[str, HistoryColumns]


class DeploymentBody(TypedDict):
    """`ranks` are those that this gateway serves; times are in seconds since the epoch."""

    status: State
    version: str
    now: float
    head_connected: bool
    model: ServedModelBody | None
    num_ranks: int
    num_ready: int
    gateways: list[str]
    ranks: list[RankReport]
    history: HistoryBody


class DeploymentStatus:
    """Answers from cached state."""

    def __init__(self, serving: Serving, deployment: Deployment) -> None:
        self._serving = serving
        self._deployment = deployment

    async def show(self, request: Request) -> Response:
        """Ranks, load and history."""
        after_s = _time(request.query_params.get("history_after", "0"))
        ranks = list(self._deployment.ranks())
        body: DeploymentBody = {
            "status": serving_state(self._serving),
            "version": self._serving.settings.product_version,
            "now": time.time(),
            "head_connected": self._deployment.head_connected,
            "model": self._model(),
            "num_ranks": len(ranks),
            "num_ready": sum(rank.state == "ready" for rank in ranks),
            "gateways": list(self._deployment.gateways()),
            "ranks": ranks,
            "history": history_body(self._deployment.samples(after_s)),
        }
        return json_response(body, headers={"cache-control": "no-store"})

    def _model(self) -> ServedModelBody | None:
        for model in self._serving.cluster.models():
            names = list(model.served_model_names) or [model.architecture]
            return {
                "name": names[0],
                "names": names,
                "architecture": model.architecture,
                "dtype": model.dtype,
                "max_model_len": model.max_model_len,
            }
        return None


def history_body(samples: Sequence[LoadSample]) -> HistoryBody:
    """Rows to columns, which is how plots read them."""
    ranks = sorted({rank for sample in samples for rank in sample.ranks})
    return {
        "interval_s": INTERVAL_S,
        "at": [round(sample.at_s, 3) for sample in samples],
        "total": _columns([sample.total for sample in samples]),
        "ranks": {str(rank): _columns([sample.ranks.get(rank) for sample in samples]) for rank in ranks},
    }


def _columns(points: Sequence[LoadPoint | None]) -> HistoryColumns:
    return {
        "generated_tokens_per_s": [_rounded(point.generated_tokens_per_s, 1) if point else None for point in points],
        "prompt_tokens_per_s": [_rounded(point.prompt_tokens_per_s, 1) if point else None for point in points],
        "running": [point.running if point else None for point in points],
        "waiting": [point.waiting if point else None for point in points],
        "kv_usage": [_rounded(point.kv_usage, 4) if point else None for point in points],
    }


def _rounded(number: float | None, digits: int) -> float | None:
    return None if number is None else round(number, digits)


def _time(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise InvalidRequest(
            "history_after",
            f"Invalid 'history_after': got {shown(text)}; give seconds since the epoch, as in 'history.at'.",
        )
    return seconds
