"""Stands in for the engine thread: records what is asked of it; the test plays the steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.request import FinishReason, Request, TokenOutput, Usage
from services.engine.convert import Limits
from services.engine.intake import Intake
from services.engine.state import EngineState


@dataclass
class Stats:
    step: int


@dataclass
class Result:
    """A StepResult as far as the intake reads it."""

    outputs: list[TokenOutput]
    stats: Stats
    rejected: list[Any] = field(default_factory=list)


class RecordingLoop:
    failed: BaseException | None = None

    def __init__(self) -> None:
        self.submitted: list[Request] = []
        self.aborted: list[str] = []

    def submit(self, request: Request) -> None:
        self.submitted.append(request)

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)


class PlayedEngine:
    """An intake over a recording loop, and the steps that the test plays."""

    def __init__(self) -> None:
        self.state = EngineState(incarnation=1)
        self.loop = RecordingLoop()
        self.intake = Intake(self.state)
        self.intake.open(self.loop, Limits(vocab_size=1000, max_model_len=100))  # type: ignore[arg-type]
        self._step = 0

    def step(self, *outputs: TokenOutput) -> None:
        self._step += 1
        self.intake.deliver(Result(list(outputs), Stats(self._step)))  # type: ignore[arg-type]

    def key(self, index: int) -> str:
        """The engine's key of the index-th submitted request."""
        return self.loop.submitted[index].request_id

    def tokens(self, index: int, *token_ids: int) -> TokenOutput:
        return TokenOutput(self.key(index), token_ids)

    def end(self, index: int, reason: FinishReason = FinishReason.LENGTH) -> TokenOutput:
        return TokenOutput(self.key(index), finish_reason=reason, usage=Usage(1, 2, 0), error="broken step")
