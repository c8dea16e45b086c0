"""Many requests over one Attach stream: handles, demultiplexing, and how each ends; pure."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from muster import v1 as wire

from gateway.change_signal import ChangeSignal
from gateway.generation_request import FinishReason, PromptReport, TokenLogprob
from gateway.wire_convert import to_finish_reason, to_logprobs

# So many tokens of a quiet ticket are read some milliseconds of text at a time.
_LONG_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Finished:
    """The engine ended the request, normally or by abort."""

    reason: FinishReason
    stop_token_id: int | None
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine refused or broke the request; `code` is a gRPC status code."""

    code: int
    message: str
    reason: str
    field: str
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class EngineLost:
    """The rank's stream broke; nothing more comes for this submission, and what came is good.

    `num_suspects` requests that had lost a rank before were on the stream, and `heard` tells whether the engine did a
    step of this submission: frames of others may have been on their way when it died. `is_planned` when nothing died:
    the engine ended the stream in order, or its rank left.
    """

    rank: int
    message: str
    num_suspects: int = 0
    heard: bool = False
    is_planned: bool = False


class ProtocolViolation(Exception):
    """The engine's frame contradicts the contract; the stream cannot be trusted any more."""


class Ticket:
    """One submitted choice: what came for it and was not taken yet.

    Deltas that nobody takes merge, so a slow reader costs its own context's tokens and no more. `news` is shared by
    the tickets of one request: however many of its choices move in a step, its reader wakes once. A `suspect` is of a
    request that has lost a rank before. The reader of a quiet one, who wants the whole answer, wakes at its end, and
    now and then so that a long one is not left to be read at once.
    """

    __slots__ = ("end", "is_quiet", "logprobs", "news", "prompt", "suspect", "token_ids")

    def __init__(self, news: ChangeSignal, *, suspect: bool = False) -> None:
        self.news = news
        self.suspect = suspect
        self.is_quiet = False
        self.prompt: PromptReport | None = None
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.end: Finished | Failed | EngineLost | None = None

    def take(self) -> tuple[list[int], list[TokenLogprob]]:
        """The tokens and logprobs since the last call."""
        taken = self.token_ids, self.logprobs
        self.token_ids, self.logprobs = [], []
        return taken


class Attachment:
    """The gateway's half of one Attach stream.

    A handle is taken from `submit` until the engine says that it ended, also when nobody listens any more: the engine
    may still send tokens for it. The smallest free one is used next, which keeps the frames small.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._tickets: dict[int, Ticket] = {}
        self._abandoned: set[int] = set()
        self._free: list[int] = []
        self._num_handles = 0
        self._moved: set[ChangeSignal] = set()

    def __len__(self) -> int:
        """Handles in use."""
        return len(self._tickets) + len(self._abandoned)

    def submit(self, ticket: Ticket) -> int:
        """A handle for the ticket."""
        if self._free:
            handle = heapq.heappop(self._free)
        else:
            self._num_handles += 1
            handle = self._num_handles
        self._tickets[handle] = ticket
        return handle

    def abandon(self, handle: int, ticket: Ticket) -> bool:
        """Nobody listens any more; True when the engine has to be told."""
        if self._tickets.get(handle) is not ticket:
            return False
        del self._tickets[handle]
        self._abandoned.add(handle)
        return True

    def apply(self, outputs: wire.StepOutputs) -> None:
        """Hands one engine step out; `wake` tells who has news. Raises ProtocolViolation."""
        if outputs.started:
            self._add_started(outputs)
        self._add_tokens(outputs)
        for finished in outputs.finished:
            stop_token_id = finished.stop_token_id if finished.HasField("stop_token_id") else None
            reason = to_finish_reason(finished.finish_reason)
            self._end(finished.handle, Finished(reason, stop_token_id, finished.usage.cached_tokens))
        for failed in outputs.failed:
            self._end(failed.handle, _to_failed(failed))

    def wake(self) -> None:
        """Wakes each request that moved since the last call, once."""
        moved, self._moved = self._moved, set()
        for news in moved:
            news.notify()

    def lose(self, message: str, *, is_planned: bool = False) -> None:
        """The stream is over: everything that was live ends with EngineLost."""
        tickets, self._tickets = self._tickets, {}
        self._abandoned.clear()
        self._free.clear()
        self._num_handles = 0
        num_suspects = len({id(ticket.news) for ticket in tickets.values() if ticket.suspect})
        for ticket in tickets.values():
            heard = ticket.prompt is not None or bool(ticket.token_ids)
            ticket.end = EngineLost(self.rank, message, num_suspects, heard, is_planned)
            self._moved.add(ticket.news)
        self.wake()

    def _add_started(self, outputs: wire.StepOutputs) -> None:
        for started in outputs.started:
            ticket = self._tickets.get(started.handle)
            if ticket is not None:
                prompt = started.prompt
                ticket.prompt = PromptReport(prompt.num_tokens, prompt.cached_tokens, to_logprobs(prompt.logprobs))
                self._moved.add(ticket.news)

    def _add_tokens(self, outputs: wire.StepOutputs) -> None:
        for entry in outputs.logprobs:
            ticket = self._tickets.get(entry.handle)
            if ticket is not None:
                ticket.logprobs.extend(to_logprobs(entry.logprobs))
        # Lists, because a loop over a field of a message costs several times one over a list.
        handles, counts, token_ids = outputs.handles[:], outputs.token_counts[:], outputs.token_ids[:]
        tickets, moved = self._tickets, self._moved
        if not counts:
            if len(handles) != len(token_ids):
                raise ProtocolViolation(f"{len(token_ids)} token_ids for {len(handles)} handles without token_counts")
            for handle, token_id in zip(handles, token_ids, strict=True):
                ticket = tickets.get(handle)
                if ticket is not None:
                    ticket.token_ids.append(token_id)
                    if not ticket.is_quiet or len(ticket.token_ids) >= _LONG_TOKENS:
                        moved.add(ticket.news)
            return
        if len(counts) != len(handles) or sum(counts) != len(token_ids):
            raise ProtocolViolation(f"token_counts {counts[:8]} don't add up to {len(token_ids)} token_ids")
        start = 0
        for handle, count in zip(handles, counts, strict=True):
            ticket = tickets.get(handle)
            if ticket is not None:
                ticket.token_ids.extend(token_ids[start : start + count])
                if not ticket.is_quiet or len(ticket.token_ids) >= _LONG_TOKENS:
                    moved.add(ticket.news)
            start += count

    def _end(self, handle: int, end: Finished | Failed) -> None:
        ticket = self._tickets.pop(handle, None)
        if ticket is not None:
            ticket.end = end
            self._moved.add(ticket.news)
            heapq.heappush(self._free, handle)
        elif handle in self._abandoned:
            self._abandoned.remove(handle)
            heapq.heappush(self._free, handle)


def _to_failed(failed: wire.Failed) -> Failed:
    retry_after_s = failed.retry_after.ToNanoseconds() / 1e9 if failed.HasField("retry_after") else None
    return Failed(failed.code, failed.message, failed.reason, failed.field, retry_after_s)
