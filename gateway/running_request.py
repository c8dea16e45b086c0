"""One request's choices while they run: where each runs, what came, what is lost; no waiting in here."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import grpc
from muster import v1 as wire

from gateway.attachment import EngineLost, Failed, Finished, Ticket
from gateway.change_signal import ChangeSignal
from gateway.choice import Choice
from gateway.engine_link import EngineLink
from gateway.errors import EngineFailed, GatewayError, InvalidRequest, Overloaded, RequestTimeout
from gateway.generation_request import (
    Constraint,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    GenerationUsage,
    PromptReport,
)
from gateway.losses import SAME_EVENT_S, LossRecord, Verdict
from gateway.metrics import RequestMeter
from gateway.placement import Place
from gateway.wire_convert import from_request

# A rank that does not want a request and says no more is not asked again for so long.
_PAUSE_S = 1.0


@dataclass(slots=True)
class _Home:
    """A place and how many of the request's choices still run there."""

    place: Place
    num_choices: int


@dataclass(frozen=True, slots=True)
class _Submission:
    """One choice on one rank."""

    home: _Home
    ticket: Ticket
    handle: int


class RunningRequest:
    """The choices of one request.

    A choice runs somewhere, or is homeless (not submitted yet, refused, or its rank was lost), or has finished. What a
    lost rank sent is kept and goes along as `generated_token_ids`, so the next rank continues the same text. The prompt
    report comes from choice 0 alone; news of the others wait for it.
    """

    def __init__(
        self,
        request: GenerationRequest,
        choices: list[Choice],
        *,
        model: wire.ModelInfo,
        max_tokens: int,
        engine_request_id: str,
        meter: RequestMeter,
        lost_within: Callable[[float], AbstractSet[int]],
        max_losses: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.news = ChangeSignal()
        self.homeless = list(choices)
        # (rank, incarnation) that would not have it, and until when on the clock they are not asked again.
        self.refused_by: dict[tuple[int, int], float] = {}
        self.full: Overloaded | None = None
        self.losses = LossRecord(max_losses)
        self.lost_nodes: set[str] = set()
        # A rank had it; its client may have seen a part of the answer.
        self.has_begun = False
        # Since when no rank did anything for it.
        self.sought_since_s = clock()
        self.rank = -1
        self._request = request
        self._choices = choices
        self._model = model
        self._max_tokens = max_tokens
        self._engine_request_id = engine_request_id
        self.meter = meter
        self._lost_within = lost_within
        self._clock = clock
        self._num_submitted = 0
        self._submissions: dict[int, _Submission] = {}
        self._report: PromptReport | None = None
        self._reported = False
        # A stop string has to be seen when it comes, so that the engine is told.
        self._is_quiet = not request.streamed and not request.stop_strings
        self._held: list[GenerationEvent] = []

    @property
    def finished(self) -> bool:
        """Every choice has its finish reason and nothing is held back."""
        return self._reported and not self._submissions and not self.homeless

    @property
    def reported(self) -> bool:
        """The prompt was computed."""
        return self._reported

    @property
    def num_generated(self) -> int:
        """Tokens of all choices so far."""
        return sum(len(choice.generated) for choice in self._choices)

    @property
    def finish_reasons(self) -> list[str]:
        """Of the choices that have one."""
        return [choice.finish_reason.value for choice in self._choices if choice.finish_reason is not None]

    def usage(self) -> GenerationUsage:
        """The prompt once, completion tokens over all choices."""
        cached = self._report.cached_tokens if self._report is not None else 0
        num_reasoning = sum(choice.num_reasoning_tokens for choice in self._choices)
        return GenerationUsage(len(self._request.prompt_token_ids), self.num_generated, cached, num_reasoning)

    def submit(self, place: Place, timeout_s: float | None) -> None:
        """Sends all homeless choices to one place."""
        homeless, self.homeless = self.homeless, []
        home = _Home(place, len(homeless))
        self.rank = place.link.rank
        for choice in homeless:
            ticket = Ticket(self.news, suspect=self.losses.count > 0)
            handle = place.link.submit(
                ticket, self._wire_request(choice), timeout_s=timeout_s, traceparent=self._request.traceparent
            )
            self._submissions[choice.index] = _Submission(home, ticket, handle)

    def collect(self) -> list[GenerationEvent]:
        """What can be told now. Raises the GatewayError that ends the request."""
        events: list[GenerationEvent] = []
        lost: EngineLost | None = None
        lost_node = ""
        for index, submission in tuple(self._submissions.items()):
            ticket = submission.ticket
            end = ticket.end
            if self._report is None:
                self._find_report(index, ticket)
            if end is None and not ticket.token_ids:
                continue
            choice = self._choices[index]
            gave_up = _gave_up(end)
            if gave_up:
                end = EngineLost(submission.home.place.link.rank, "the engine gave the request up")
            self._advance(choice, ticket, end if isinstance(end, Finished) else None, events)
            if choice.finish_reason is not None:
                self._leave(index)
            elif isinstance(end, Failed):
                self._leave(index)
                self._refused(choice, end, submission.home.place.link)
            elif isinstance(end, EngineLost):
                self._leave(index)
                self.homeless.append(choice)
                self.has_begun = True
                if gave_up:
                    self._pause(submission.home.place.link, _PAUSE_S)
                    self.meter.continued(end.rank)  # on purpose, and not because of what was asked
                else:
                    lost, lost_node = end, submission.home.place.link.node
        if lost is not None:
            self._lost(lost, lost_node)
        return self._release(events)

    def close(self) -> None:
        """Aborts what still runs and gives the leases back; harmless when all is over."""
        for index in list(self._submissions):
            self._leave(index)

    def _advance(self, choice: Choice, ticket: Ticket, end: Finished | None, events: list[GenerationEvent]) -> None:
        token_ids, logprobs = ticket.take()
        if token_ids:
            self.sought_since_s = self._clock()
            self.meter.tokens(self.rank, choice.index, len(token_ids))
            ticket.is_quiet = self._is_quiet and not self.losses.count
        delta = choice.advance(token_ids, logprobs, end)
        if delta is not None:
            events.append(delta)

    def _find_report(self, index: int, ticket: Ticket) -> None:
        if index != 0:
            return
        if ticket.prompt is not None:
            self._report = ticket.prompt
        elif isinstance(ticket.end, Finished):
            self._report = PromptReport(len(self._request.prompt_token_ids), ticket.end.cached_tokens)

    def _release(self, events: list[GenerationEvent]) -> list[GenerationEvent]:
        if self._reported:
            return events
        self._held += events
        if self._report is None:
            return []
        held, self._held = self._held, []
        self._reported = True
        return [self._report, *held]

    def _leave(self, index: int) -> None:
        submission = self._submissions.pop(index)
        home = submission.home
        home.place.link.abort(submission.handle, submission.ticket)
        home.num_choices -= 1
        if not home.num_choices:
            home.place.lease.release()

    def _pause(self, link: EngineLink, seconds: float) -> None:
        self.refused_by[link.rank, link.incarnation] = self._clock() + seconds

    def _lost(self, lost: EngineLost, node: str) -> None:
        self.sought_since_s = self._clock()
        verdict = self.losses.add(
            rank=lost.rank,
            num_suspects=lost.num_suspects,
            heard=lost.heard,
            lost_lately=self._lost_within(SAME_EVENT_S),
        )
        self.lost_nodes.add(node)
        if verdict is Verdict.FAIL:
            if self._request.rank is not None and self.losses.count == 1:
                raise EngineFailed(
                    f"Rank {lost.rank}, which the request asks for, was lost while it ran. Try again, or name no rank.",
                    deterministic=False,
                )
            raise EngineFailed(f"The request lost its rank {times(self.losses.count)}, last: {lost.message}.")
        self.meter.continued(lost.rank)

    def _refused(self, choice: Choice, failed: Failed, link: EngineLink) -> None:
        error = _to_error(failed, link.rank, self._request.constraint)
        if isinstance(error, Overloaded):
            self.full = error
            self._pause(link, float("inf"))
        elif failed.code == grpc.StatusCode.UNAVAILABLE.value[0]:
            self._pause(link, failed.retry_after_s or _PAUSE_S)
        else:
            raise error
        self.homeless.append(choice)

    def _wire_request(self, choice: Choice) -> wire.GenerateRequest:
        self._num_submitted += 1
        return from_request(
            self._request,
            # Unique among live requests, also when a caller uses one id twice or a lost rank comes back early.
            request_id=f"{self._engine_request_id}-{self._num_submitted}",
            seed=choice.seed,
            max_tokens=self._max_tokens,
            generated_token_ids=choice.generated,
            with_prompt_logprobs=choice.index == 0 and self._report is None,
            defaults=self._model.default_sampling,
        )


def _gave_up(end: Finished | Failed | EngineLost | None) -> bool:
    """An engine that stops, or whose drain ran out of time, aborts what it has; that is no end of the request.

    What this gateway aborts it listens to no more, so that an abort which it hears of is always the engine's.
    """
    if isinstance(end, EngineLost):
        return end.is_planned
    return isinstance(end, Finished) and end.reason is FinishReason.ABORT


def times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _to_error(failed: Failed, rank: int, constraint: Constraint | None) -> GatewayError:
    code = failed.code
    if code in (grpc.StatusCode.INVALID_ARGUMENT.value[0], grpc.StatusCode.OUT_OF_RANGE.value[0]):
        if constraint is not None and failed.field.partition(".")[0] == "constraint":
            reason = failed.message.removeprefix(failed.field).removeprefix(":").strip()
            return InvalidRequest(constraint.param, f"Invalid '{constraint.param}': {reason}.")
        return InvalidRequest(failed.field or None, failed.message)
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]:
        return Overloaded(failed.message, retry_after_s=failed.retry_after_s or 1.0)
    if code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]:
        return RequestTimeout("The request did not finish within its time.")
    return EngineFailed(f"Rank {rank} failed on the request: {failed.message}")
