"""Engines and deployments in one line, with everything right unless said otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from muster import v1 as wire

from services.head.admission import Introduction, Offer, Rules

CONFIGURATION = {"dtype": "bfloat16", "max_model_len": "2048", "model": "smol"}

RULES = Rules(
    deployment_id="blue",
    data_parallel_size=3,
    protocol_min=1,
    protocol_max=2,
    product_version="1.0",
    configuration=CONFIGURATION,
)

_INTRODUCTION = Introduction(
    protocol_min=1,
    protocol_max=1,
    product_version="1.0",
    deployment_id="blue",
    rank=0,
    data_parallel_size=3,
    host="node1",
    host_id="h1",
    pid=100,
    incarnation=10,
    local=True,
    headless=False,
    configuration=CONFIGURATION,
)


def rules(**changes: Any) -> Rules:
    return replace(RULES, **changes)


def introduction(**changes: Any) -> Introduction:
    return replace(_INTRODUCTION, **changes)


def model(**changes: Any) -> wire.ModelInfo:
    facts: dict[str, Any] = {
        "served_model_names": ["smol"],
        "fingerprint": "f00d",
        "max_model_len": 2048,
        "block_size": 16,
        **changes,
    }
    return wire.ModelInfo(**facts)


def offer(targets: tuple[str, ...] = ("unix:/run/e0.sock",), **changes: Any) -> Offer:
    return Offer(targets, model(**changes), ())


def hello(**changes: Any) -> wire.Hello:
    """A Hello that the head of RULES accepts."""
    fields: dict[str, Any] = {
        "protocol": wire.ProtocolRange(min=1, max=1),
        "product_version": "1.0",
        "deployment_id": "blue",
        "rank": 0,
        "data_parallel_size": 3,
        "host": "node1",
        "host_id": "h1",
        "pid": 100,
        "incarnation": 10,
        "configuration": CONFIGURATION,
        **changes,
    }
    return wire.Hello(**{name: value for name, value in fields.items() if value is not None})


def ready(targets: tuple[str, ...] = ("unix:/run/e0.sock",), **changes: Any) -> wire.Ready:
    return wire.Ready(targets=targets, model=model(**changes))
