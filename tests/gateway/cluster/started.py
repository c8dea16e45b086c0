"""Requests that run in the background of a test."""

from __future__ import annotations

import asyncio
from typing import cast

from tests.support.fake_cluster import FakeCluster, ask
from tests.support.waiting import eventually

# Steps that an engine takes before it is told to go on.
HANGS = 0


async def start(cluster: FakeCluster, **options: object) -> asyncio.Task[object]:
    """A request that runs in a task; returns once an engine has it."""
    before = sum(len(engine.submitted) for engine in cluster.engines)
    task = asyncio.create_task(cluster.answer(ask(**options)))  # type: ignore[arg-type]
    await eventually(lambda: sum(len(e.submitted) for e in cluster.engines) > before, "an engine has the request")
    return cast("asyncio.Task[object]", task)
