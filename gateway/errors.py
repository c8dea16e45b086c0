"""What can go wrong in the gateway, and whose fault it is.

Each error knows its own place in the error table of the REST API (status, type, code); `services.gateway` has the
table to gRPC. Messages name the field, what was wrong and the fix, because they are all a client gets to see.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class GatewayError(Exception):
    """Something a client is told about.

    `param` names the field at fault, `extra` adds keys to the error object, `retry_after_s` says when trying again
    can help.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: str | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        extra: Mapping[str, int | str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.extra: Mapping[str, int | str] = extra or {}
        if code is not None:
            self.code = code

    def body(self) -> dict[str, object]:
        """The error object; all four of OpenAI's keys are always there."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code, **self.extra}

    def headers(self) -> dict[str, str]:
        """Response headers the error needs."""
        headers: dict[str, str] = {}
        if self.retry_after_s is not None:
            # Retry-After counts whole seconds; rounding up never asks a client to come back too early.
            headers["retry-after"] = str(max(1, -int(-self.retry_after_s // 1)))
            headers["retry-after-ms"] = str(max(1, round(self.retry_after_s * 1000)))
        return headers


class InvalidRequest(GatewayError):
    """The caller's input is wrong; trying again without changing it cannot help."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"

    def __init__(self, param: str | None, message: str, code: str = "invalid_value") -> None:
        super().__init__(message, param=param, code=code)


class ContextLengthExceeded(GatewayError):
    """The prompt leaves no room for an answer. Agents look for this code or this phrase in order to compact."""

    status = 400
    type = "invalid_request_error"
    code = "context_length_exceeded"

    def __init__(self, n_prompt_tokens: int, n_ctx: int, *, param: str = "messages", at_least: bool = False) -> None:
        count = f"at least {n_prompt_tokens}" if at_least else str(n_prompt_tokens)
        super().__init__(
            f"This model's maximum context length is {n_ctx} tokens. However, your {param} resulted in "
            f"{count} tokens, which leaves no room for output. Please reduce the length of the {param}.",
            param=param,
            extra={"n_prompt_tokens": n_prompt_tokens, "n_ctx": n_ctx},
        )
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx


class Unauthenticated(GatewayError):
    """No API key, or one we don't know."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"

    def headers(self) -> dict[str, str]:
        return {**super().headers(), "www-authenticate": "Bearer"}


class ModelNotFound(GatewayError):
    """The model asked for is not served here."""

    status = 404
    type = "invalid_request_error"
    code = "model_not_found"

    def __init__(self, model: str, served: list[str]) -> None:
        known = ", ".join(f"'{name}'" for name in served) or "none"
        super().__init__(f"The model '{model}' does not exist here. Served: {known}.", param="model")


class ResponseNotFound(GatewayError):
    """No gateway keeps this response (any more)."""

    status = 404
    type = "invalid_request_error"
    code = "response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(
            f"Response with id '{response_id[:100]}' not found. It was not stored, was deleted, was kept for its time, "
            "had to make room for newer ones, or went with the gateway that kept it.",
            param="response_id",
        )


class RouteNotFound(GatewayError):
    """No such path."""

    status = 404
    type = "not_found_error"


class MethodNotAllowed(GatewayError):
    """The path exists, the method does not."""

    status = 405
    type = "invalid_request_error"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow

    def headers(self) -> dict[str, str]:
        return {**super().headers(), "allow": self.allow}


class RequestTooLarge(GatewayError):
    """The body is over the limit."""

    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class HeadersTooLarge(GatewayError):
    """Request line and headers are over the limit."""

    status = 431
    type = "invalid_request_error"
    code = "headers_too_large"


class InvalidHttp(GatewayError):
    """What came is no HTTP/1.1 request, so nothing else about it is known."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_http"


class UnsupportedMediaType(GatewayError):
    """The body is declared as something that cannot be JSON."""

    status = 415
    type = "invalid_request_error"


class Overloaded(GatewayError):
    """Every queue is full."""

    status = 429
    type = "rate_limit_error"
    code = "server_overloaded"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class EngineFailed(GatewayError):
    """The engine broke on this request. Deterministic failures say that trying again cannot help, because official
    clients retry a 500 twice and would run the poison three times."""

    code = "engine_failed"

    def __init__(self, message: str, *, deterministic: bool = True) -> None:
        super().__init__(message)
        self.deterministic = deterministic

    def headers(self) -> dict[str, str]:
        return {**super().headers(), "x-should-retry": "false" if self.deterministic else "true"}


class NotSupported(GatewayError):
    """This deployment cannot do that at all."""

    status = 501
    type = "not_supported_error"
    code = "not_supported"

    def headers(self) -> dict[str, str]:
        return {**super().headers(), "x-should-retry": "false"}


class InternalError(GatewayError):
    """A bug of ours; the log has the traceback, the client only a request id."""

    code = "internal_error"

    def headers(self) -> dict[str, str]:
        return {**super().headers(), "x-should-retry": "false"}


class Unavailable(GatewayError):
    """Nothing can serve this now, but something may soon."""

    status = 503
    type = "unavailable_error"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class Loading(Unavailable):
    """The deployment has not been ready yet."""

    code = "loading"


class NoBackend(Unavailable):
    """All ranks in scope are lost."""

    code = "no_backend"


class Draining(Unavailable):
    """The gateway or the rank finishes its work and takes no more."""

    code = "draining"


class RequestTimeout(GatewayError):
    """The request did not finish within the time it was given."""

    status = 504
    type = "timeout_error"
    code = "request_timeout"


class TokenizerError(Exception):
    """The tokenizer archive cannot be used; says which part and why. An operator's problem, not a client's."""
