from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from services.cli.chat_client import ChatClient, ChatError
from services.cli.chat_command import Conversation

MODELS = {"object": "list", "data": [{"id": "tiny"}]}


def events(*texts: str, finish: str | None = "stop", done: bool = True) -> bytes:
    chunks: list[dict[str, object]] = [
        {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]} for text in texts
    ]
    if finish:
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return ("".join([": ping\n\n", *lines]) + ("data: [DONE]\n\n" if done else "")).encode()


class Server:
    """Answers from a script and keeps the bodies it got."""

    def __init__(self, answer: Callable[[httpx.Request], httpx.Response]) -> None:
        self.bodies: list[dict[str, object]] = []
        self.headers: list[httpx.Headers] = []
        self._answer = answer

    def client(self, **options: object) -> ChatClient:
        return ChatClient("http://server/v1/", transport=httpx.MockTransport(self._handle), **options)  # type: ignore[arg-type]

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.headers.append(request.headers)
        if request.url.path == "/v1/models":
            return httpx.Response(200, json=MODELS)
        assert request.url.path == "/v1/chat/completions"
        self.bodies.append(json.loads(request.content))
        return self._answer(request)


@pytest.fixture
def written() -> list[str]:
    return []


def test_the_answer_is_streamed_and_remembered(written: list[str]) -> None:
    server = Server(lambda request: httpx.Response(200, content=events("Hel", "lo")))
    with server.client(api_key="k", temperature=0.0) as client:
        conversation = Conversation(client, "Be brief.", write=written.append)
        conversation.ask("Hi")
        conversation.ask("Again")
    assert written == ["Hel", "lo", "\n"] * 2
    assert server.bodies[0]["model"] == "tiny"
    assert server.bodies[0]["temperature"] == 0.0
    assert server.bodies[0]["stream"] is True
    assert "max_tokens" not in server.bodies[0]
    assert server.bodies[1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Again"},
    ]
    assert server.headers[0]["authorization"] == "Bearer k"


def test_an_error_is_told_with_its_status_and_leaves_no_trace(written: list[str]) -> None:
    error = {"error": {"message": "all queues are full", "type": "rate_limit_error", "param": None, "code": "x"}}
    server = Server(lambda request: httpx.Response(429, json=error))
    with server.client() as client:
        conversation = Conversation(client, None, write=written.append)
        with pytest.raises(ChatError, match=r"all queues are full \(HTTP 429\)"):
            conversation.ask("Hi")
    assert conversation.messages == []


def test_an_error_inside_the_stream_is_told(written: list[str]) -> None:
    body = events("Hel", finish=None, done=False) + b'data: {"error": {"message": "the rank was lost"}}\n\n'
    with Server(lambda request: httpx.Response(200, content=body)).client() as client:
        conversation = Conversation(client, None, write=written.append)
        with pytest.raises(ChatError, match="the rank was lost"):
            conversation.ask("Hi")
    assert conversation.messages[-1] == {"role": "assistant", "content": "Hel"}


def test_a_truncated_stream_is_not_taken_for_an_answer(written: list[str]) -> None:
    body = events("Hel", finish=None, done=False)
    server = Server(lambda request: httpx.Response(200, content=body))
    with server.client() as client, pytest.raises(ChatError, match="cut off"):
        Conversation(client, None, write=written.append).ask("Hi")


def test_stopping_an_answer_keeps_what_was_said(written: list[str]) -> None:
    def stop_after_first(text: str) -> None:
        written.append(text)
        if text == "Hel":
            raise KeyboardInterrupt

    with Server(lambda request: httpx.Response(200, content=events("Hel", "lo"))).client() as client:
        conversation = Conversation(client, None, write=stop_after_first)
        with pytest.raises(KeyboardInterrupt):
            conversation.ask("Hi")
    assert conversation.messages[-1]["content"] == "Hel"


def test_reset_keeps_the_system_prompt_and_a_new_one_replaces_it(written: list[str]) -> None:
    with Server(lambda request: httpx.Response(200, content=events("x"))).client() as client:
        conversation = Conversation(client, "A", write=written.append)
        conversation.ask("Hi")
        conversation.reset()
        assert conversation.messages == [{"role": "system", "content": "A"}]
        conversation.reset("B")
        assert conversation.messages == [{"role": "system", "content": "B"}]


def test_no_server_says_what_to_start() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    transport = httpx.MockTransport(refuse)
    with ChatClient("http://server", transport=transport) as client, pytest.raises(ChatError, match="muster serve"):
        next(client.stream([]))


def test_a_url_without_a_scheme_is_explained() -> None:
    with ChatClient("server:8000") as client, pytest.raises(ChatError, match="http://"):
        next(client.stream([]))
