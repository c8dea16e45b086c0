"""Server-sent events, as OpenAI's clients read them: one `data:` line per event, then a blank line."""

from __future__ import annotations

import orjson

MEDIA_TYPE = "text/event-stream"
DONE = b"data: [DONE]\n\n"
# A comment; clients skip it, proxies and Node's fetch see that the stream is alive.
PING = b": ping\n\n"


def event(body: object) -> bytes:
    """One event. Compact JSON has no raw newline, so the event cannot break."""
    return b"data: " + orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS) + b"\n\n"
