"""Errors that travel: one exception that becomes a gRPC status with google.rpc details, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

ERROR_DOMAIN = "muster.dev"

# The details ride in a trailer, in base64 beside the percent-encoded message, and default clients refuse more
# than 8 KiB of metadata; a status over that arrives as an unreadable RESOURCE_EXHAUSTED.
_MAX_MESSAGE_CHARS = 1000
_MAX_STATUS_BYTES = 3500
_DETAILS_KEY = "grpc-status-details-bin"
# What gRPC's own retries go by (gRFC A6); they do not look into details.
_PUSHBACK_KEY = "grpc-retry-pushback-ms"


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field of a request that was wrong: what it held, what was expected, what to change."""

    field: str
    description: str


class RpcError(Exception):
    """A failure with its gRPC status. Raise it in a handler; `describe` gives it back to the caller.

    `reason` is UPPER_SNAKE and stable, for programs; `message` is for people. `retry_after_s` invites the
    caller to try again no sooner than that many seconds.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        reason: str,
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[FieldViolation] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.violations = tuple(violations)
        self.retry_after_s = retry_after_s

    def __repr__(self) -> str:
        return f"RpcError({self.code.name}, {self.message!r}, reason={self.reason!r})"


# A domain exception's status; None when the table does not know the exception.
ErrorTable = Callable[[Exception], RpcError | None]


@dataclass(frozen=True, slots=True)
class RpcStatus:
    """What `abort_with_status` takes; the same four fields as grpc.Status."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]


def invalid_field(field: str, description: str, *, reason: str = "INVALID_REQUEST") -> RpcError:
    """One wrong field of a request."""
    return RpcError(
        grpc.StatusCode.INVALID_ARGUMENT,
        f"{field}: {description}",
        reason=reason,
        violations=(FieldViolation(field, description),),
    )


def to_status(error: RpcError) -> RpcStatus:
    """The status and its google.rpc details, cut to a size that every client accepts."""
    message = _shorten(error.message, _MAX_MESSAGE_CHARS)
    status = status_pb2.Status(code=error.code.value[0], message=message)
    status.details.add().Pack(
        error_details_pb2.ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN, metadata=error.metadata)
    )
    if error.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(math.ceil(error.retry_after_s * 1e9))
        status.details.add().Pack(retry)
    if error.violations:
        room = _MAX_STATUS_BYTES - status.ByteSize()
        status.details.add().Pack(_bad_request(error.violations, room))
    trailers: list[tuple[str, str | bytes]] = [(_DETAILS_KEY, status.SerializeToString())]
    if error.retry_after_s is not None:
        trailers.append((_PUSHBACK_KEY, str(math.ceil(error.retry_after_s * 1000))))
    return RpcStatus(error.code, message, tuple(trailers))


def describe(error: grpc.RpcError) -> RpcError:
    """The RpcError behind a failed call. Without details, the reason is the status code's name."""
    code = _code_of(error)
    message = _details_of(error)
    status = _rich_status(error)
    reason, metadata = code.name, {}
    violations: list[FieldViolation] = []
    retry_after_s: float | None = None
    for detail in status.details if status is not None else ():
        info, bad_request, retry = (
            error_details_pb2.ErrorInfo(),
            error_details_pb2.BadRequest(),
            error_details_pb2.RetryInfo(),
        )
        if detail.Unpack(info):
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(bad_request):
            violations += [FieldViolation(v.field, v.description) for v in bad_request.field_violations]
        elif detail.Unpack(retry):
            retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
    return RpcError(code, message, reason=reason, metadata=metadata, violations=violations, retry_after_s=retry_after_s)


def _bad_request(violations: Sequence[FieldViolation], room_bytes: int) -> error_details_pb2.BadRequest:
    answer = error_details_pb2.BadRequest()
    for index, violation in enumerate(violations):
        entry = error_details_pb2.BadRequest.FieldViolation(
            field=_shorten(violation.field, 200), description=_shorten(violation.description, 500)
        )
        if answer.ByteSize() + entry.ByteSize() > room_bytes - 100:
            answer.field_violations.add(field="", description=f"and {len(violations) - index} more fields")
            break
        answer.field_violations.append(entry)
    return answer


def _shorten(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def _code_of(error: Any) -> grpc.StatusCode:
    code = error.code() if hasattr(error, "code") else None
    return code if isinstance(code, grpc.StatusCode) else grpc.StatusCode.UNKNOWN


def _details_of(error: Any) -> str:
    details = error.details() if hasattr(error, "details") else None
    return details or str(error)


def _rich_status(error: Any) -> status_pb2.Status | None:
    metadata = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    for key, value in metadata or ():
        if key == _DETAILS_KEY:
            try:
                return status_pb2.Status.FromString(value)
            except Exception:  # a peer's malformed trailer must not hide its status
                return None
    return None
