"""Every error leaves as an error object in OpenAI's or Anthropic's shape, whatever raised it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.anthropic.errors import error_body, speaks_anthropic
from gateway.errors import GatewayError, InternalError, InvalidRequest, MethodNotAllowed, RouteNotFound

logger = logging.getLogger(__name__)

_SHOWN = 200  # characters of a path that are quoted back


class ErrorEnvelope:
    """The last resort: nothing but a cancellation gets past it, and no traceback reaches a client."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False
        # Routers answer in text, unless they are told that somebody makes errors into answers.
        scope["app"] = self

        def watched_send(message: Message) -> Awaitable[None]:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            return send(message)

        try:
            await self._app(scope, receive, watched_send)
        except ClientDisconnect:
            logger.info("request %s: the client left while sending", _request_id(scope))
        except Exception as error:
            answer = _as_gateway_error(error, scope)
            if not started:
                await error_response(answer, _body(answer, scope))(scope, receive, send)


def error_response(error: GatewayError, body: dict[str, object]) -> Response:
    """The error with its status, headers and body."""
    return Response(
        orjson.dumps(body),
        status_code=error.status,
        headers=error.headers(),
        media_type="application/json",
    )


def _body(error: GatewayError, scope: Scope) -> dict[str, object]:
    """In the shape that clients of the path look for."""
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    return error_body(error, _request_id(scope)) if speaks_anthropic(path) else {"error": error.body()}


def _as_gateway_error(error: Exception, scope: Scope) -> GatewayError:
    if isinstance(error, GatewayError):
        return error
    if isinstance(error, HTTPException):
        return _from_starlette(error, scope)
    request_id = _request_id(scope)
    logger.error("request %s failed", request_id, exc_info=error)
    return InternalError(f"The server failed on request {request_id}; its log has the reason.")


def _from_starlette(error: HTTPException, scope: Scope) -> GatewayError:
    path = scope["path"] if len(scope["path"]) <= _SHOWN else scope["path"][:_SHOWN] + "…"
    where = f"{scope['method']} {path}"
    if error.status_code == 404:
        return RouteNotFound(f"There is no {where} here.")
    if error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        return MethodNotAllowed(f"{where} is not allowed; use {allow}.", allow=allow)
    return InvalidRequest(None, str(error.detail))


def _request_id(scope: Scope) -> str:
    return str(scope.get("state", {}).get("request_id", "-"))
