"""The fuzzer itself: the same requests for a seed, and a judge that sees what is wrong."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from benchmarks.fuzz.bodies import encoded, mutated
from benchmarks.fuzz.client import Answer
from benchmarks.fuzz.endpoints import ENDPOINTS
from benchmarks.fuzz.poison import Raw
from benchmarks.fuzz.verdict import complaint
from benchmarks.fuzz.wire import Shot, Shots

OPENAI = Shot("POST /x", (b"head", b"body"), "openai")
ANTHROPIC = Shot("POST /x", (b"head", b"body"), "anthropic")
ERROR = {"message": "Invalid 'n'.", "type": "invalid_request_error", "param": "n", "code": "invalid_value"}
JSON = {"content-type": "application/json"}


def test_a_seed_gives_the_same_requests() -> None:
    one, other, another = (Shots(seed, api_key="k", response_id="resp_1", model_id="m") for seed in (1, 1, 2))
    shots = [one.next() for _ in range(300)]
    assert shots == [other.next() for _ in range(300)]
    assert shots != [another.next() for _ in range(300)]
    assert len({shot.label for shot in shots}) > 15


def test_good_bodies_are_what_they_look_like() -> None:
    for endpoint in ENDPOINTS:
        for body in endpoint.bodies:
            assert json.loads(encoded(body)) == body


def test_mutations_leave_their_origin_alone_and_change_most() -> None:
    body = next(endpoint.bodies[1] for endpoint in ENDPOINTS if endpoint.path == "/v1/chat/completions")
    before = json.dumps(body)
    chance = random.Random(0)
    changed = sum(mutated(body, chance) != encoded(body) for _ in range(200))
    assert json.dumps(body) == before
    assert 120 < changed < 200, "some stay good"
    assert encoded({"a": [Raw(b"NaN"), None]}) == b'{"a":[NaN,null]}'


def answer(status: int, body: Any, headers: dict[str, str] = JSON) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answer(status, headers, data, is_whole=True)


_ANTHROPIC_ERROR = {"type": "error", "error": {"type": "not_found_error", "message": "x"}, "request_id": "r"}
_STREAM = {"content-type": "text/event-stream; charset=utf-8"}


@pytest.mark.parametrize(
    ("shot", "seen"),
    [
        (OPENAI, answer(200, {"id": "x"})),
        (OPENAI, answer(400, {"error": ERROR})),
        (ANTHROPIC, answer(404, _ANTHROPIC_ERROR)),
        (ANTHROPIC, answer(400, {"error": {**ERROR, "code": "invalid_http"}})),
        (OPENAI, answer(200, b'data: {"a":1}\n\n: ping\n\ndata: [DONE]\n\n', _STREAM)),
    ],
)
def test_what_is_right(shot: Shot, seen: Answer) -> None:
    assert complaint(shot, seen) is None


@pytest.mark.parametrize(
    ("shot", "seen", "says"),
    [
        (OPENAI, Answer(), "no answer"),
        (OPENAI, Answer(200, JSON, b"", is_whole=False), "cut off"),
        (OPENAI, answer(500, {"error": ERROR}), "status 500"),
        (OPENAI, answer(422, {"error": ERROR}), "status 422"),
        (OPENAI, answer(400, b"no", {"content-type": "text/plain"}), "as text/plain"),
        (OPENAI, answer(400, {"error": "text"}), "without an error object"),
        (OPENAI, answer(400, {"error": {"message": "x", "type": "t"}}), "has only"),
        (OPENAI, answer(400, {"error": {**ERROR, "code": "odd"}}), "code odd"),
        (OPENAI, answer(400, {"error": {**ERROR, "message": ""}}), "no message"),
        (OPENAI, answer(400, {"error": {**ERROR, "message": "x" * 5000}}), "5000 characters"),
        (OPENAI, answer(400, {"error": {**ERROR, "message": 'File "x.py"'}}), "for programmers"),
        (ANTHROPIC, answer(400, {"error": ERROR}), "Anthropic"),
        (OPENAI, answer(200, b"{"), "no JSON"),
        (OPENAI, answer(200, b'data: {"a":1}\n\n', _STREAM), "ends with"),
        (OPENAI, answer(200, b'data: {"error":{"type":"server_error"}}\n\ndata: [DONE]\n\n', _STREAM), "a failure"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong(shot: Shot, seen: Answer, says: str) -> None:
    found = complaint(shot, seen)
    assert found is not None
    assert says in found
