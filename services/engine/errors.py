"""What goes wrong with a request, as gRPC statuses."""

from __future__ import annotations

import grpc

from engine.errors import DuplicateRequestError, EngineError, InvalidRequestError, QueueFullError
from services.rpc.errors import FieldViolation, RpcError

# How soon a refused caller may try again; a loading or draining engine rarely changes faster.
_RETRY_AFTER_S = 1.0


def engine_error_table(error: Exception) -> RpcError | None:
    """The ErrorTable of the engine's own exceptions."""
    if isinstance(error, InvalidRequestError):
        return RpcError(
            grpc.StatusCode.INVALID_ARGUMENT,
            str(error),
            reason="INVALID_REQUEST",
            violations=(FieldViolation(error.field, error.message),),
        )
    if isinstance(error, DuplicateRequestError):
        return RpcError(grpc.StatusCode.ALREADY_EXISTS, str(error), reason="DUPLICATE_REQUEST_ID")
    if isinstance(error, QueueFullError):
        return RpcError(
            grpc.StatusCode.RESOURCE_EXHAUSTED, str(error), reason="QUEUE_FULL", retry_after_s=error.retry_after_s
        )
    if isinstance(error, EngineError):
        return RpcError(grpc.StatusCode.INTERNAL, str(error), reason="ENGINE_ERROR")
    return None


def to_rpc_error(error: Exception) -> RpcError:
    """The status of any exception; unknown ones are INTERNAL."""
    if isinstance(error, RpcError):
        return error
    return engine_error_table(error) or RpcError(
        grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}", reason="INTERNAL"
    )


def unavailable(reason: str, message: str, retry_after_s: float = _RETRY_AFTER_S) -> RpcError:
    return RpcError(grpc.StatusCode.UNAVAILABLE, message, reason=reason, retry_after_s=retry_after_s)


def wrong_rank(wanted: str, rank: int | None) -> RpcError:
    has = "has no rank yet" if rank is None else f"is rank {rank}"
    return RpcError(
        grpc.StatusCode.FAILED_PRECONDITION,
        f"the call is for rank {wanted} and this engine {has}; the roster says where each rank is",
        reason="WRONG_RANK",
        metadata={} if rank is None else {"rank": str(rank)},
    )


def step_failed(message: str) -> RpcError:
    """A request that the engine's own fault ended; the fault may be gone on another rank."""
    return RpcError(
        grpc.StatusCode.INTERNAL, message or "the engine failed while it ran this request", reason="ENGINE_STEP_FAILED"
    )


def ended(message: str, field: str) -> RpcError:
    """A request that ended with an error: by what it asked for, if a field is named, else by the engine's fault."""
    if not field:
        return step_failed(message)
    return RpcError(
        grpc.StatusCode.INVALID_ARGUMENT,
        f"{field}: {message}",
        reason="INVALID_REQUEST",
        violations=(FieldViolation(field, message),),
    )


def timed_out(timeout_s: float) -> RpcError:
    return RpcError(
        grpc.StatusCode.DEADLINE_EXCEEDED,
        f"the request did not finish within its timeout of {timeout_s:g} s and was aborted",
        reason="REQUEST_TIMEOUT",
    )
