"""What waits to be sent to one gateway; event loop only, no I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from muster import v1 as wire

from engine.request import FinishReason, TokenOutput
from services.engine import convert, errors
from services.engine.mailboxes import Delta
from services.rpc.errors import RpcError

# Of outputs that wait one by one: more would grow old in the eyes of the garbage collector.
_MOST_UNMERGED = 1024


class Outbox:
    """Keeps outputs until the stream can carry more, and makes one message of them.

    A gateway that keeps up gets one StepOutputs per engine step; one that does not gets several steps in one,
    named by the last. What waits is bounded by the lengths of the live requests plus `max_ended` endings: beyond
    these `has_room` is false and the attachment reads no further submits.
    """

    def __init__(self, *, max_ended: int = 4096) -> None:
        # Outputs are only put down here, because there is one for each request and step; `take` sorts them.
        self._waiting: list[tuple[int, TokenOutput]] = []
        self._merged: dict[int, Delta] = {}  # older ones of a stream that is far behind
        self._ending: set[int] = set()  # handles whose ending waits
        self._failures: dict[int, RpcError] = {}
        self._step = 0
        self._max_ended = max_ended
        self._filled = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def put(self, handle: int, output: TokenOutput, step: int) -> None:
        waiting = self._waiting
        if not waiting:
            self._filled.set()
        waiting.append((handle, output))
        self._step = step
        if output.finish_reason is not None:
            self._count_end(handle)
        if len(waiting) >= _MOST_UNMERGED:
            self._merge()

    def fail(self, handle: int, error: RpcError) -> None:
        self._failures[handle] = error
        self._count_end(handle)
        self._filled.set()

    def ends(self, handle: int) -> bool:
        """True while the ending of this handle waits here: the gateway cannot know yet that it is free."""
        return handle in self._ending

    def wake(self) -> None:
        """Lets `wait_filled` return although nothing waits, for a stream that is to end."""
        self._filled.set()

    @property
    def empty(self) -> bool:
        return not self._waiting and not self._merged and not self._failures

    async def wait_filled(self) -> None:
        """Returns once something waits or `wake` was called since the last call; for the one writer."""
        await self._filled.wait()
        self._filled.clear()

    async def wait_room(self) -> None:
        await self._room.wait()

    def take(self) -> wire.StepOutputs:
        """Everything that waits, as one message."""
        deltas: Sequence[tuple[int, TokenOutput | Delta]] = self._waiting
        if self._merged or len({handle for handle, _ in self._waiting}) != len(self._waiting):
            self._merge()
            deltas = list(self._merged.items())
        self._waiting, self._merged, self._ending = [], {}, set()
        failures, self._failures = self._failures, {}
        self._room.set()
        outputs = wire.StepOutputs(step=self._step)
        for handle, delta in _write_tokens(outputs, deltas):
            if delta.logprobs:
                outputs.logprobs.add(handle=handle, logprobs=convert.to_logprobs(delta.logprobs))
            if delta.prompt is not None:
                outputs.started.add(handle=handle, prompt=convert.to_prompt_info(delta.prompt))
            if (end := _end(delta)) is not None:
                _write_end(outputs, handle, end)
        for handle, error in failures.items():
            outputs.failed.append(_to_failed(handle, error))
        return outputs

    def _merge(self) -> None:
        merged = self._merged
        for handle, output in self._waiting:
            delta = merged.get(handle)
            if delta is None:
                delta = merged[handle] = Delta()
            delta.add(output)
        self._waiting = []

    def _count_end(self, handle: int) -> None:
        self._ending.add(handle)
        if len(self._ending) >= self._max_ended:
            self._room.clear()


def _end(delta: TokenOutput | Delta) -> TokenOutput | None:
    """The output that finishes the request, when it is among those that wait."""
    if isinstance(delta, Delta):
        return delta.end
    return delta if delta.finish_reason is not None else None


def _write_tokens(
    outputs: wire.StepOutputs, deltas: Sequence[tuple[int, TokenOutput | Delta]]
) -> list[tuple[int, TokenOutput | Delta]]:
    """Returns those that have more than tokens; in most steps there are none."""
    handles: list[int] = []
    counts: list[int] = []
    token_ids: list[int] = []
    others: list[tuple[int, TokenOutput | Delta]] = []
    for item in deltas:
        handle, delta = item
        new = delta.token_ids
        if new:
            handles.append(handle)
            counts.append(len(new))
            token_ids += new
        if delta.finish_reason is not None or delta.logprobs or delta.prompt is not None:
            others.append(item)
    outputs.handles.extend(handles)
    outputs.token_ids.extend(token_ids)
    if len(token_ids) != len(handles):
        outputs.token_counts.extend(counts)
    return others


def _write_end(outputs: wire.StepOutputs, handle: int, end: TokenOutput) -> None:
    assert end.finish_reason is not None
    if end.finish_reason is FinishReason.ERROR:
        outputs.failed.append(_to_failed(handle, errors.ended(end.error, end.error_field)))
        return
    outputs.finished.add(
        handle=handle,
        finish_reason=convert.to_finish_reason(end.finish_reason),
        stop_token_id=end.stop_token_id,
        usage=convert.to_usage(end.usage) if end.usage is not None else None,
    )


def _to_failed(handle: int, error: RpcError) -> wire.Failed:
    failed = wire.Failed(
        handle=handle,
        code=error.code.value[0],
        message=error.message,
        reason=error.reason,
        field=error.violations[0].field if error.violations else "",
    )
    if error.retry_after_s is not None:
        failed.retry_after.FromNanoseconds(round(error.retry_after_s * 1e9))
    return failed
