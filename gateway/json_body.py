"""A request's body, read as a JSON object."""

from __future__ import annotations

import orjson

from gateway.errors import InvalidRequest, UnsupportedMediaType

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
    return value
