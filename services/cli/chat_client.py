"""A small client of /v1/chat/completions: messages in, text deltas out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import httpx


class ChatError(Exception):
    """The server could not be reached or refused; the message is for people."""


class ChatClient:
    """One connection to one server. `model` None asks for the first one it serves."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        model: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        base = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # An answer may take long; only an unreachable server is noticed by time.
        timeout = httpx.Timeout(None, connect=5.0)
        try:
            self._http = httpx.Client(base_url=base, headers=headers, timeout=timeout, transport=transport)
        except httpx.InvalidURL as error:
            raise ChatError(f"--url {url!r}: {error}; give for example http://127.0.0.1:8000") from None
        self._url = base
        self._model = model
        options = {"temperature": temperature, "max_tokens": max_tokens}
        self._options = {key: value for key, value in options.items() if value is not None}

    def __enter__(self) -> ChatClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def stream(self, messages: Sequence[dict[str, str]]) -> Iterator[str]:
        """Yields the answer's text as it comes. Raises ChatError. Closing the iterator aborts the request."""
        body = {"model": self._served_model(), "messages": list(messages), "stream": True, **self._options}
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    response.read()
                    raise ChatError(_error_text(response))
                yield from _deltas(response.iter_lines())
        except httpx.UnsupportedProtocol:
            raise ChatError(f"--url {self._url!r} does not begin with http:// or https://") from None
        except httpx.ConnectError:
            raise ChatError(f"no server answers at {self._url}; start one with `muster serve`, or give --url") from None
        except httpx.HTTPError as error:
            raise ChatError(f"the connection to {self._url} broke: {error or type(error).__name__}") from None

    def _served_model(self) -> str:
        if self._model is None:
            try:
                response = self._http.get("/v1/models")
            except httpx.UnsupportedProtocol:
                raise ChatError(f"--url {self._url!r} does not begin with http:// or https://") from None
            except httpx.HTTPError:
                raise ChatError(
                    f"no server answers at {self._url}; start one with `muster serve`, or give --url"
                ) from None
            if response.status_code != 200:
                raise ChatError(_error_text(response))
            models = response.json().get("data") or []
            if not models:
                raise ChatError(f"{self._url} serves no model yet; try again in a moment")
            self._model = str(models[0]["id"])
        return self._model


def _deltas(lines: Iterator[str]) -> Iterator[str]:
    finished = False
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        event: dict[str, Any] = json.loads(data)
        if error := event.get("error"):
            raise ChatError(str(error.get("message", error)))
        for choice in event.get("choices", ()):
            finished = finished or choice.get("finish_reason") is not None
            if text := choice.get("delta", {}).get("content"):
                yield text
    if not finished:
        raise ChatError("the answer was cut off: the server ended the stream early")


def _error_text(response: httpx.Response) -> str:
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = response.text.strip()[:200] or "no reason given"
    return f"{message} (HTTP {response.status_code})"
