"""A request's body, read as a JSON object."""

from __future__ import annotations

import orjson

from gateway.errors import InvalidRequest, UnsupportedMediaType

_MAX_DEPTH = 200
# What is written is nested deeper than what was read, at most so many levels, and orjson writes 254.
_MARGIN = 50
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


def check_content(content_type: str, content_encoding: str) -> None:
    """Refuses what is declared to be something else. Any other type goes, because clients often send a wrong one."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type in _FORMS:
        raise UnsupportedMediaType(
            f"Content-Type is {media_type}; send a JSON object as application/json "
            "(curl: add -H 'Content-Type: application/json')."
        )
    if content_encoding.strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType(f"Content-Encoding is {content_encoding}; send the body uncompressed.")


def parse_object(body: bytes) -> dict[str, object]:
    """The body as a JSON object. Raises InvalidRequest for anything else, however large or deep."""
    try:
        value = orjson.loads(body)
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise InvalidRequest(None, f"The body is not valid JSON: {error}.", "invalid_json") from error
    if not isinstance(value, dict):
        raise InvalidRequest(None, "The body must be a JSON object.", "invalid_json")
    if body.count(b"[") + body.count(b"{") > _MAX_DEPTH:  # fewer cannot be too deep
        _check_depth(value)
    return value


def _check_depth(fields: dict[str, object]) -> None:
    """Raises InvalidRequest naming the field: much of a request is written again, to answers, templates and engines."""
    for name, value in fields.items():
        wrapped = value
        for _ in range(_MARGIN):
            wrapped = [wrapped]
        try:
            orjson.dumps(wrapped)
        except orjson.JSONEncodeError as error:
            raise InvalidRequest(
                name[:100], f"Invalid '{name[:100]}': it is nested more than {_MAX_DEPTH} levels deep."
            ) from error
