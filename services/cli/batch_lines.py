"""The lines of a batch: OpenAI's JSONL format for requests and their results. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

URLS = ("/v1/chat/completions", "/v1/completions")


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One line of the input that can be sent."""

    custom_id: str
    url: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BatchResult:
    """One line of the output: an answer with its status, or an error that is none of HTTP's."""

    custom_id: str | None
    status_code: int | None = None
    request_id: str = ""
    body: Any = None
    error_code: str = ""
    error_message: str = ""

    @property
    def succeeded(self) -> bool:
        return self.status_code == 200

    @property
    def failure(self) -> str:
        """Why it did not succeed, for people."""
        if self.error_code:
            return self.error_message
        error = self.body.get("error") if isinstance(self.body, dict) else None
        message = error.get("message", "") if isinstance(error, dict) else ""
        return f"HTTP {self.status_code}{': ' if message else ''}{message}"

    def line(self, number: int) -> str:
        """`number` is the input's line, which makes the id."""
        response = None
        if self.status_code is not None:
            response = {"status_code": self.status_code, "request_id": self.request_id, "body": self.body}
        error = {"code": self.error_code, "message": self.error_message} if self.error_code else None
        result = {"id": f"batch_req_{number}", "custom_id": self.custom_id, "response": response, "error": error}
        return json.dumps(result, ensure_ascii=False, separators=(",", ":"))


class BatchReader:
    """Turns lines into requests, or into the results that say why not; knows which ids were used."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def read(self, text: str, number: int) -> BatchRequest | BatchResult:
        """`number` is the line's, from 1."""
        try:
            line = json.loads(text)
        except (ValueError, RecursionError) as error:
            return _invalid(None, number, f"is not JSON: {error}")
        if not isinstance(line, dict):
            return _invalid(None, number, "is not a JSON object")
        custom_id = line.get("custom_id")
        if not isinstance(custom_id, str) or not custom_id:
            return _invalid(None, number, "custom_id: is missing or no text; give each line its own")
        if custom_id in self._seen:
            return _invalid(custom_id, number, f"custom_id: was used in line {self._seen[custom_id]} too")
        self._seen[custom_id] = number
        if line.get("method", "POST") != "POST":
            return _invalid(custom_id, number, f"method: is {line['method']!r}; give POST")
        if line.get("url") not in URLS:
            return _invalid(custom_id, number, f"url: is {line.get('url')!r}; give {' or '.join(URLS)}")
        body = line.get("body")
        if not isinstance(body, dict):
            return _invalid(custom_id, number, "body: is missing or no JSON object")
        if body.get("stream"):
            return _invalid(custom_id, number, "body.stream: a batch has whole answers; leave it out")
        return BatchRequest(custom_id, line["url"], body)


def _invalid(custom_id: str | None, number: int, what: str) -> BatchResult:
    return BatchResult(custom_id, error_code="invalid_line", error_message=f"line {number}: {what}")
