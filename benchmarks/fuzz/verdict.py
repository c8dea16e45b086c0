"""What an answer must look like."""

from __future__ import annotations

import json
import re
from typing import Any

from benchmarks.fuzz.client import Answer
from benchmarks.fuzz.wire import Shot

# What a request may be told: good, or whose fault it is. Nothing that says that the server failed.
_STATUSES = frozenset({200, 400, 401, 404, 405, 413, 415, 429, 431})
_CODES = frozenset(
    {"invalid_value", "invalid_json", "missing_required_parameter", "unsupported_parameter", "invalid_api_key"}
    | {"model_not_found", "response_not_found", "previous_response_not_found", "context_length_exceeded"}
    | {"request_too_large", "server_overloaded", "invalid_http", "headers_too_large", None}
)
_LEAK = re.compile(r"Traceback|File \"|0x[0-9a-f]{9,}|<class |object at ")
_MAX_MESSAGE = 3000  # characters; what a client sent is quoted, never repeated


def complaint(shot: Shot, answer: Answer) -> str | None:
    """What is wrong with the answer; None for nothing."""
    if not answer.status:
        return "no answer" if shot.needs_answer else None
    if not answer.is_whole:
        return f"{answer.status}, cut off" if shot.needs_answer else None
    if answer.status not in _STATUSES:
        return f"status {answer.status}: {answer.body[:300]!r}"
    if not shot.has_body:
        return None
    if answer.status == 200:
        return _of_success(answer)
    return _of_error(shot, answer)


def _of_error(shot: Shot, answer: Answer) -> str | None:
    if answer.headers.get("content-type") != "application/json":
        return f"{answer.status} as {answer.headers.get('content-type')}: {answer.body[:200]!r}"
    body = _parsed(answer.body)
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return f"{answer.status} without an error object: {answer.body[:200]!r}"
    wrong = _anthropic(body, error) if shot.family == "anthropic" else _openai(error)
    # What cannot be read as HTTP has no path, and so no family.
    if wrong and shot.family == "anthropic" and error.get("code") in ("invalid_http", "headers_too_large"):
        wrong = _openai(error)
    return f"{answer.status}, {wrong}: {answer.body[:300]!r}" if wrong else None


def _openai(error: dict[str, Any]) -> str | None:
    if not {"message", "type", "param", "code"} <= error.keys():
        return f"the error has only {sorted(error)}"
    if error["code"] not in _CODES:
        return f"code {error['code']}"
    if error["type"] not in ("invalid_request_error", "authentication_error", "not_found_error", "rate_limit_error"):
        return f"type {error['type']}"
    return _message(error["message"])


def _anthropic(body: dict[str, Any], error: dict[str, Any]) -> str | None:
    if body.get("type") != "error" or not isinstance(body.get("request_id"), str):
        return "not in Anthropic's shape"
    if error.get("type") not in (
        *("invalid_request_error", "authentication_error", "not_found_error", "request_too_large", "rate_limit_error"),
    ):
        return f"type {error.get('type')}"
    return _message(error.get("message"))


def _message(message: object) -> str | None:
    if not isinstance(message, str) or not message:
        return "no message"
    if len(message) > _MAX_MESSAGE:
        return f"a message of {len(message)} characters"
    return "a message for programmers" if _LEAK.search(message) else None


def _of_success(answer: Answer) -> str | None:
    kind = answer.headers.get("content-type", "").partition(";")[0]
    if kind == "text/event-stream":
        return _of_stream(answer.body)
    if kind == "application/json" and _parsed(answer.body) is None:
        return f"200 that is no JSON: {answer.body[:200]!r}"
    return None if kind in ("application/json", "text/html", "text/plain") else f"200 as {kind}"


def _of_stream(body: bytes) -> str | None:
    """Every event is one JSON object, the last one ends the stream, and none says that the server failed."""
    last = b""
    for block in body.split(b"\n\n"):
        lines = [line for line in block.split(b"\n") if line and not line.startswith(b":")]
        if not lines:
            continue
        last = lines[-1]
        if not last.startswith(b"data: "):
            return f"an event without data: {block[:200]!r}"
        if last != b"data: [DONE]":
            event = _parsed(last[6:])
            if not isinstance(event, dict):
                return f"an event that is no object: {last[:200]!r}"
            if _fails(event):
                return f"a failure within a stream: {last[:300]!r}"
    ends = (
        b"[DONE]",
        b'"response.completed"',
        b'"response.incomplete"',
        b'"message_stop"',
        b'"error"',
        b'"response.failed"',
    )
    return None if any(end in last for end in ends) else f"a stream that ends with {last[:200]!r}"


def _fails(event: dict[str, Any]) -> bool:
    error = event.get("error") or (event.get("response") or {}).get("error")
    return isinstance(error, dict) and error.get("type", error.get("code")) in ("server_error", "api_error")


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None
