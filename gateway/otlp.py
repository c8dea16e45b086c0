"""Spans to an OpenTelemetry collector over OTLP; needs the extra `otel`.

Attributes follow the semantic conventions for generative AI where they have a name, else begin with "muster.".
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Span, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.generation_request import GenerationRequest, GenerationUsage

_FLUSH_MS = 5000


class OtlpTracing:
    """Sends spans in batches from a thread of its own; what a collector does not take is dropped."""

    def __init__(self, endpoint: str, *, version: str) -> None:
        resource = Resource.create({"service.name": "muster-gateway", "service.version": version})
        self._provider = TracerProvider(resource=resource)
        exporter = OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https://"))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("muster.gateway", version)
        self._propagator = TraceContextTextMapPropagator()

    def start(self, request: GenerationRequest, model: str) -> OtlpSpan:
        context = self._propagator.extract({"traceparent": request.traceparent}) if request.traceparent else None
        attributes: dict[str, str | int | float] = {
            "gen_ai.operation.name": "generate",
            "gen_ai.request.model": model,
            "gen_ai.request.choice.count": request.n,
            "gen_ai.response.id": request.request_id,
            "gen_ai.usage.input_tokens": len(request.prompt_token_ids),
        }
        if request.max_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = request.max_tokens
        if request.sampling.temperature is not None:
            attributes["gen_ai.request.temperature"] = request.sampling.temperature
        span = self._tracer.start_span("generate", context, SpanKind.SERVER, attributes)
        return OtlpSpan(span)

    def close(self) -> None:
        self._provider.force_flush(_FLUSH_MS)
        self._provider.shutdown()


class OtlpSpan:
    """One request, from its arrival at the generator to its end."""

    def __init__(self, span: object) -> None:
        assert isinstance(span, Span)
        self._span = span
        self._started_s = time.monotonic()
        context = span.get_span_context()
        self._traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    @property
    def traceparent(self) -> str:
        return self._traceparent

    def first_token(self, rank: int) -> None:
        self._span.set_attribute("gen_ai.latency.time_to_first_token", time.monotonic() - self._started_s)
        self._span.add_event("first token", {"muster.rank": rank})

    def continued(self, rank: int) -> None:
        self._span.add_event("rank lost", {"muster.rank": rank})

    def finished(self, rank: int, reasons: Sequence[str], usage: GenerationUsage) -> None:
        self._span.set_attributes(
            {
                "muster.rank": rank,
                "gen_ai.response.finish_reasons": list(reasons),
                "gen_ai.usage.output_tokens": usage.completion_tokens,
                "muster.usage.cached_tokens": usage.cached_tokens,
                "muster.usage.reasoning_tokens": usage.reasoning_tokens,
            }
        )
        self._span.end()

    def failed(self, code: str) -> None:
        self._span.set_attribute("error.type", code)
        self._span.set_status(Status(StatusCode.ERROR, code))
        self._span.end()

    def cancelled(self, phase: str) -> None:
        self._span.set_attribute("error.type", "cancelled")
        self._span.set_attribute("muster.phase", phase)
        self._span.set_status(Status(StatusCode.ERROR, f"the client left in {phase}"))
        self._span.end()
