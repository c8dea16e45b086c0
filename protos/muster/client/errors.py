"""Failed calls as exceptions: by status, with the details that Muster's servers send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

_DETAILS_KEY = "grpc-status-details-bin"


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field of a request that was wrong."""

    field: str
    description: str


class MusterError(Exception):
    """A call that failed. `reason` is stable and for programs, the message for people; `retry_after_s` is when the
    server wants to be asked again, None when it did not say."""

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[FieldViolation] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason or code.name
        self.metadata = dict(metadata or {})
        self.violations = tuple(violations)
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


class InvalidRequestError(MusterError):
    """The request is at fault; `violations` name its fields."""


class UnauthenticatedError(MusterError):
    """No token or key, or one that nobody knows."""


class PermissionDeniedError(MusterError):
    """The token's role does not allow the call."""


class NotFoundError(MusterError):
    """A name that is not served."""


class AlreadyExistsError(MusterError):
    """The request id belongs to a request that still runs."""


class FailedPreconditionError(MusterError):
    """The other side is not what the caller takes it for, for example another rank."""


class OverloadedError(MusterError):
    """The queue is full, or a message is too large."""


class UnavailableError(MusterError):
    """Loading, draining, or nobody there. The only status that is retried by itself, see `service_config`."""


class DeadlineExceededError(MusterError):
    """The call's own time was over; the server has aborted it."""


class CallCancelledError(MusterError):
    """The call was cancelled."""


class UnimplementedError(MusterError):
    """The server does not offer this."""


class ServerError(MusterError):
    """The server's fault."""


class TruncatedError(MusterError):
    """A stream that ended without its last message: what came is not the whole."""

    def __init__(self) -> None:
        super().__init__("the stream ended without its last message", code=grpc.StatusCode.DATA_LOSS)


_BY_CODE: Mapping[grpc.StatusCode, type[MusterError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequestError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExistsError,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPreconditionError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.CANCELLED: CallCancelledError,
    grpc.StatusCode.UNIMPLEMENTED: UnimplementedError,
}


def to_error(error: Any) -> MusterError:
    """The exception for a failed call of grpc or grpc.aio. Details that cannot be read are left out."""
    code = error.code()
    fields: dict[str, Any] = {"reason": "", "metadata": {}, "violations": [], "retry_after_s": None}
    for detail in _details(error.trailing_metadata()):
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        request = error_details_pb2.BadRequest()
        if detail.Unpack(info):
            fields["reason"], fields["metadata"] = info.reason, dict(info.metadata)
        elif detail.Unpack(retry):
            fields["retry_after_s"] = retry.retry_delay.ToNanoseconds() / 1e9
        elif detail.Unpack(request):
            fields["violations"] += [FieldViolation(v.field, v.description) for v in request.field_violations]
    return _BY_CODE.get(code, ServerError)(error.details() or code.name, code=code, **fields)


def _details(trailing_metadata: Any) -> Sequence[Any]:
    for key, value in trailing_metadata or ():
        if key == _DETAILS_KEY:
            try:
                return status_pb2.Status.FromString(value).details  # type: ignore[no-any-return]
            except Exception:  # a malformed trailer must not hide the status
                return ()
    return ()
