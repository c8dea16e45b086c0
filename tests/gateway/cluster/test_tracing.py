"""Traces: the caller's context reaches the engine, and spans reach a collector."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from gateway.generation_request import ChoiceDelta
from gateway.otlp import OtlpTracing
from tests.support.fake_cluster import FakeCluster, ask, fake_cluster
from tests.support.fake_engine import EngineScript, says
from tests.support.waiting import eventually

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps the spans it gets."""

    def __init__(self) -> None:
        self.spans: list[Any] = []

    async def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return trace_service_pb2.ExportTraceServiceResponse()


@contextlib.asynccontextmanager
async def traced(script: EngineScript) -> AsyncIterator[tuple[FakeCluster, Collector]]:
    collector = Collector()
    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    tracing = OtlpTracing(f"http://127.0.0.1:{port}", version="1.2.3")
    try:
        async with fake_cluster(script) as cluster:
            cluster.backend.generator._tracing = tracing
            yield cluster, collector
        await asyncio.to_thread(tracing.close)
    finally:
        await server.stop(0)


def attributes_of(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


async def test_without_a_collector_the_callers_trace_reaches_the_engine() -> None:
    async with fake_cluster() as cluster:
        await cluster.answer(ask(max_tokens=1, traceparent=PARENT))
        await cluster.answer(ask(max_tokens=1))
        assert [each for engine in cluster.engines for each in engine.traceparents] == [PARENT, ""]


async def test_a_span_has_what_dashboards_ask_for() -> None:
    async with traced(EngineScript(token=says("four"), cached_tokens=2)) as (cluster, collector):
        await cluster.answer(ask(traceparent=PARENT, n=2))
        sent = cluster.engines[0].traceparents[0]
    (span,) = collector.spans
    assert span.trace_id.hex() == TRACE
    assert span.parent_span_id.hex() == "b7ad6b7169203331"
    assert sent == f"00-{TRACE}-{span.span_id.hex()}-01"
    attributes = attributes_of(span)
    assert attributes["gen_ai.request.model"] == "tiny"
    assert attributes["gen_ai.usage.input_tokens"] == 5
    assert attributes["gen_ai.usage.output_tokens"] == 10
    assert attributes["muster.usage.cached_tokens"] == 2
    assert attributes["muster.rank"] == 0
    assert attributes["gen_ai.latency.time_to_first_token"] > 0
    assert [each.string_value for each in attributes["gen_ai.response.finish_reasons"].values] == ["stop", "stop"]
    assert [event.name for event in span.events] == ["first token"]


async def test_a_request_whose_client_left_has_a_span_too() -> None:
    async with traced(EngineScript(steps_left=2)) as (cluster, collector):
        events = cluster.stream(ask())
        async for event in events:
            if isinstance(event, ChoiceDelta):
                break
        await events.aclose()  # type: ignore[attr-defined]
        await eventually(lambda: len(cluster.engines[0].aborted) == 1, "the engine was told")
    (span,) = collector.spans
    assert attributes_of(span)["error.type"] == "cancelled"
    assert attributes_of(span)["muster.phase"] == "decode"


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "https://127.0.0.1:9"])
def test_a_collector_that_is_away_holds_nothing_up(endpoint: str) -> None:
    tracing = OtlpTracing(endpoint, version="")
    span = tracing.start(ask(), "tiny")
    span.failed("server_overloaded")
    assert span.traceparent.startswith("00-")
