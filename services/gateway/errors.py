"""The gateway's errors as gRPC statuses; the REST table is in gateway/errors.py."""

from __future__ import annotations

import grpc

from gateway import errors
from services.rpc.errors import FieldViolation, RpcError

# The most derived class that matches decides.
_CODES: tuple[tuple[type[errors.GatewayError], grpc.StatusCode], ...] = (
    (errors.InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.ContextLengthExceeded, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.RequestTooLarge, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (errors.ModelNotFound, grpc.StatusCode.NOT_FOUND),
    (errors.ResponseNotFound, grpc.StatusCode.NOT_FOUND),
    (errors.NotSupported, grpc.StatusCode.UNIMPLEMENTED),
    (errors.Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.Unavailable, grpc.StatusCode.UNAVAILABLE),
    (errors.RequestTimeout, grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.EngineFailed, grpc.StatusCode.INTERNAL),
)


def gateway_error_table(error: Exception) -> RpcError | None:
    """A gateway error's status with the field at fault and when to try again; None for anything else."""
    if not isinstance(error, errors.GatewayError):
        return None
    code = next((code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
    return RpcError(
        code,
        error.message,
        reason=(error.code or "internal_error").upper(),
        metadata={key: str(value) for key, value in error.extra.items()},
        violations=[FieldViolation(error.param, error.message)] if error.param else [],
        retry_after_s=error.retry_after_s,
    )
