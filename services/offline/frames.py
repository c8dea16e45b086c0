"""What an offline runner and its ranks say to each other: one JSON object a line, over the rank's standard streams."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Question:
    """A request for a rank. `body` is the text of the HTTP request's body."""

    number: int
    method: str
    path: str
    body: str


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to the question of that number. `body` is the text of the HTTP response's body."""

    number: int
    status: int
    request_id: str
    body: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The rank's first line: it answers from now on."""

    served_model_names: tuple[str, ...]


def encode(frame: Question | Reply | Ready) -> bytes:
    return json.dumps(asdict(frame), separators=(",", ":")).encode() + b"\n"


def decode_question(line: bytes) -> Question:
    return Question(**json.loads(line))


def decode_reply(line: bytes) -> Reply | Ready:
    fields: dict[str, Any] = json.loads(line)
    return Reply(**fields) if "number" in fields else Ready(tuple(fields["served_model_names"]))
