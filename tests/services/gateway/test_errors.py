from __future__ import annotations

import grpc
import pytest

from gateway import errors
from services.gateway.errors import gateway_error_table


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (errors.InvalidRequest("n", "n is 0"), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_VALUE"),
        (errors.ContextLengthExceeded(9, 8), grpc.StatusCode.INVALID_ARGUMENT, "CONTEXT_LENGTH_EXCEEDED"),
        (errors.Unauthenticated("no key"), grpc.StatusCode.UNAUTHENTICATED, "INVALID_API_KEY"),
        (errors.ModelNotFound("x", ["tiny"]), grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND"),
        (errors.Overloaded("full"), grpc.StatusCode.RESOURCE_EXHAUSTED, "SERVER_OVERLOADED"),
        (errors.Loading("soon"), grpc.StatusCode.UNAVAILABLE, "LOADING"),
        (errors.NoBackend("lost"), grpc.StatusCode.UNAVAILABLE, "NO_BACKEND"),
        (errors.Draining("bye"), grpc.StatusCode.UNAVAILABLE, "DRAINING"),
        (errors.RequestTimeout("late"), grpc.StatusCode.DEADLINE_EXCEEDED, "REQUEST_TIMEOUT"),
        (errors.EngineFailed("broke"), grpc.StatusCode.INTERNAL, "ENGINE_FAILED"),
    ],
)
def test_each_error_has_its_status(error: errors.GatewayError, code: grpc.StatusCode, reason: str) -> None:
    found = gateway_error_table(error)
    assert found is not None
    assert (found.code, found.reason, found.message) == (code, reason, error.message)
    assert found.retry_after_s == error.retry_after_s


def test_the_field_at_fault_and_the_numbers_travel() -> None:
    found = gateway_error_table(errors.ContextLengthExceeded(9, 8))
    assert found is not None
    assert [violation.field for violation in found.violations] == ["messages"]
    assert found.metadata == {"n_prompt_tokens": "9", "n_ctx": "8"}


def test_what_is_not_the_gateways_is_left_to_others() -> None:
    assert gateway_error_table(ValueError("x")) is None


def test_every_class_of_error_is_placed() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.GatewayError)]
    only_http = {errors.GatewayError, errors.InternalError, errors.EngineFailed}
    only_http |= {errors.RouteNotFound, errors.MethodNotAllowed, errors.UnsupportedMediaType}
    only_http |= {errors.InvalidHttp, errors.HeadersTooLarge}
    for kind in set(kinds) - only_http:
        bare = kind.__new__(kind)
        errors.GatewayError.__init__(bare, "x")
        found = gateway_error_table(bare)
        assert found is not None
        assert found.code is not grpc.StatusCode.INTERNAL, kind
