"""The head's table from domain exceptions to gRPC statuses."""

from __future__ import annotations

import grpc

from services.head.admission import Fault, Rejection
from services.head.roster import LeaseEnded
from services.rpc.errors import FieldViolation, RpcError
from services.rpc.watched import WatchClosed

# An engine must not try again after these codes without a change, nor after ABORTED (a newer process has its rank);
# UNAVAILABLE and DEADLINE_EXCEEDED invite it to register again, RESOURCE_EXHAUSTED to wait until a rank is free.
_CODES = {
    Fault.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    Fault.MISMATCH: grpc.StatusCode.FAILED_PRECONDITION,
    Fault.TAKEN: grpc.StatusCode.ALREADY_EXISTS,
    Fault.HELD: grpc.StatusCode.UNAVAILABLE,
    Fault.FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
}

_RETRY_HELD_S = 1.0


def head_error_table(error: Exception) -> RpcError | None:
    match error:
        case Rejection():
            return RpcError(
                _CODES[error.fault],
                str(error),
                reason=error.reason,
                violations=[FieldViolation(m.field, m.describe()) for m in error.mismatches],
                retry_after_s=_RETRY_HELD_S if error.fault is Fault.HELD else None,
            )
        case LeaseEnded():
            return RpcError(grpc.StatusCode.UNAVAILABLE, str(error), reason="LEASE_ENDED")
        case WatchClosed():
            return head_stopping()
    return None


def head_stopping() -> RpcError:
    return RpcError(
        grpc.StatusCode.UNAVAILABLE,
        "the head stops; engines keep serving and register again with its successor",
        reason="HEAD_STOPPING",
        retry_after_s=1.0,
    )
