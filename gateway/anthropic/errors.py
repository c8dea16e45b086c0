"""Errors in the shape that clients of the Messages API look for."""

from __future__ import annotations

from gateway import sse
from gateway.errors import ContextLengthExceeded, GatewayError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_PATHS = ("/v1/messages", "/messages")  # and what is below them


def speaks_anthropic(path: str) -> bool:
    """Whether the path, below any root path, is one of the Messages API's."""
    return any(path == own or path.startswith(own + "/") for own in _PATHS)


def error_body(error: GatewayError, request_id: str | None = None) -> dict[str, object]:
    """The whole body of an error answer, and the data of an error event."""
    detail = {"type": _TYPES.get(error.status, "api_error"), "message": _message(error)}
    return {"type": "error", "error": detail, "request_id": request_id}


def error_event(error: GatewayError, request_id: str | None = None) -> bytes:
    """A late error; streams end with it."""
    return sse.named_event("error", error_body(error, request_id))


def _message(error: GatewayError) -> str:
    if isinstance(error, ContextLengthExceeded):
        # Agents look for these words in order to compact.
        return f"prompt is too long: {error.n_prompt_tokens} tokens > {error.n_ctx - 1} maximum"
    return error.message
