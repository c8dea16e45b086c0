"""A span per request, where somebody collects them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.generation_request import GenerationRequest, GenerationUsage


class RequestSpan(Protocol):
    """One request's span; `finished`, `failed` or `cancelled` ends it, once."""

    @property
    def traceparent(self) -> str:
        """What goes to the engine: this span as the parent of the engine's."""
        ...

    def first_token(self, rank: int) -> None: ...

    def continued(self, rank: int) -> None:
        """`rank` was lost and the request goes on elsewhere."""
        ...

    def finished(self, rank: int, reasons: Sequence[str], usage: GenerationUsage) -> None: ...

    def failed(self, code: str) -> None: ...

    def cancelled(self, phase: str) -> None: ...


class Tracing(Protocol):
    """Makes spans."""

    def start(self, request: GenerationRequest, model: str) -> RequestSpan:
        """A span that continues the trace of `request.traceparent`, if it has one."""
        ...

    def close(self) -> None:
        """Sends what was not sent yet; takes some seconds at most."""
        ...


class _NoSpan:
    """Passes the caller's trace on to the engine and records nothing."""

    __slots__ = ("traceparent",)

    def __init__(self, traceparent: str) -> None:
        self.traceparent = traceparent

    def first_token(self, rank: int) -> None:
        pass

    def continued(self, rank: int) -> None:
        pass

    def finished(self, rank: int, reasons: Sequence[str], usage: GenerationUsage) -> None:
        pass

    def failed(self, code: str) -> None:
        pass

    def cancelled(self, phase: str) -> None:
        pass


class _NoTracing:
    def start(self, request: GenerationRequest, model: str) -> RequestSpan:
        return _NoSpan(request.traceparent)

    def close(self) -> None:
        pass


NO_TRACING: Tracing = _NoTracing()
