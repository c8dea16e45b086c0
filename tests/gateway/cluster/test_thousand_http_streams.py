"""1,000 concurrent HTTP streams through uvicorn, the app, the generator and gRPC: all complete, nothing stays."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import re
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.app import build_app
from gateway.http_server import HttpServer
from gateway.settings import AppSettings
from tests.support.fake_cluster import FakeCluster, fake_cluster
from tests.support.fake_engine import EngineScript, echo
from tests.support.waiting import eventually

NUM_REQUESTS = 1000
# Beyond the default limit of many shells: each request has a socket at either end.
NUM_FILES = 4096


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = NUM_FILES if hard == resource.RLIM_INFINITY else min(NUM_FILES, hard)
    if wanted < 2 * NUM_REQUESTS + 200:
        pytest.skip(f"the limit of open files is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.asynccontextmanager
async def http_gateway(cluster: FakeCluster) -> AsyncIterator[int]:
    backend = cluster.backend
    app = build_app(
        generator=backend.generator,
        cluster=backend.cluster,
        metrics=backend.metrics,
        settings=AppSettings(),
    )
    listener = socket.create_server(("127.0.0.1", 0), backlog=2 * NUM_REQUESTS)
    server = HttpServer(app, [listener], shutdown_timeout_s=5)
    await server.start()
    try:
        yield listener.getsockname()[1]
    finally:
        await server.stop()
        listener.close()


async def one(port: int, number: int) -> None:
    prompt = f"{number} bottles"
    body = json.dumps(
        {
            "model": "tiny",
            "prompt": prompt,
            "max_tokens": 64,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:300]
    events = [line[6:] for line in answer.split(b"\n") if line.startswith(b"data: ")]
    assert events[-1].strip() == b"[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert "".join(choice["text"] for choice in choices) == prompt
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]
    assert chunks[-1]["usage"]["completion_tokens"] == len(prompt) + 1


async def wave(cluster: FakeCluster, port: int) -> None:
    engine = cluster.engines[0]
    engine.allow(0)
    tasks = [asyncio.create_task(one(port, number)) for number in range(NUM_REQUESTS)]
    await eventually(lambda: engine.num_live == NUM_REQUESTS, "all run at once", timeout_s=60)
    engine.allow(None)
    await asyncio.gather(*tasks)
    await cluster.settled()
    engine.submitted.clear()
    engine.traceparents.clear()


def resident_kib() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


@pytest.mark.usefixtures("many_files")
async def test_a_thousand_http_streams_complete_and_leave_nothing() -> None:
    async with fake_cluster(EngineScript(token=echo)) as cluster, http_gateway(cluster) as port:
        await wave(cluster, port)
        await eventually(lambda: cluster.engines[0].num_live == 0, "idle")
        num_tasks = len(asyncio.all_tasks())
        await wave(cluster, port)
        gc.collect()
        before_kib = resident_kib()
        await wave(cluster, port)
        gc.collect()
        # An allocator may keep a few pages more; a request's state, kept, would be 20 KiB a thousand times.
        assert resident_kib() - before_kib < 8 * 1024, (before_kib, resident_kib())
        try:
            await eventually(lambda: len(asyncio.all_tasks()) <= num_tasks, "no task is left")
        except AssertionError:
            print([str(t) for t in asyncio.all_tasks()], num_tasks)
            raise
        for name in (b"open", b"queued"):
            assert re.search(
                rb"^muster:gateway_requests_%b\{[^}]*\} 0\.0$" % name, cluster.backend.metrics.render(), re.M
            )
