"""Decoding statuses that others made."""

from __future__ import annotations

import grpc
import pytest

from services.rpc.errors import RpcError, describe, to_status


def call_error(trailers: list[tuple[str, str | bytes]], details: str = "broken") -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), details=details
    )


def test_a_status_without_details_has_its_code_as_reason() -> None:
    error = describe(call_error([]))
    assert (error.code, error.message, error.reason) == (grpc.StatusCode.UNAVAILABLE, "broken", "UNAVAILABLE")
    assert error.violations == ()
    assert error.retry_after_s is None


@pytest.mark.parametrize("rubbish", [b"\xff\xff\xff", b"", b"\x00"])
def test_malformed_details_do_not_hide_the_status(rubbish: bytes) -> None:
    error = describe(call_error([("grpc-status-details-bin", rubbish)]))
    assert (error.code, error.message) == (grpc.StatusCode.UNAVAILABLE, "broken")


def test_a_retry_delay_is_never_rounded_to_nothing() -> None:
    status = to_status(RpcError(grpc.StatusCode.UNAVAILABLE, "later", reason="BUSY", retry_after_s=1e-10))
    error = describe(call_error(list(status.trailing_metadata), "later"))
    assert error.retry_after_s == 1e-9
    assert error.reason == "BUSY"


def test_grpcs_own_retries_hear_of_the_delay_too() -> None:
    code = grpc.StatusCode.UNAVAILABLE
    later = dict(to_status(RpcError(code, "later", reason="LATER", retry_after_s=0.0015)).trailing_metadata)
    assert later["grpc-retry-pushback-ms"] == "2"
    never = dict(to_status(RpcError(code, "no", reason="NO")).trailing_metadata)
    assert "grpc-retry-pushback-ms" not in never


def test_any_grpc_error_can_be_described() -> None:
    assert describe(grpc.RpcError("odd")).code is grpc.StatusCode.UNKNOWN
