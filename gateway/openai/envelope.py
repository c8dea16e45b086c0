"""What all bodies of one answer share."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.errors import Draining
from gateway.generation_request import FinishReason
from gateway.openai.bodies import Finish


@dataclass(frozen=True, slots=True)
class Envelope:
    """Id, time and model of one answer; equal on all chunks of a stream."""

    response_id: str
    created: int
    model: str
    fingerprint: str


def finish_reason_text(reason: FinishReason) -> Finish:
    """The reason in OpenAI's words, which have none for a server that gave up: that is an error."""
    if reason is FinishReason.ABORT:
        raise Draining("The server ended this request before it was finished. Send it again.")
    return "stop" if reason is FinishReason.STOP else "length"
