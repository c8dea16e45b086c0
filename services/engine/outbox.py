"""What waits to be sent to one gateway; event loop only, no I/O."""

from __future__ import annotations

import asyncio

from muster import v1 as wire

from engine.request import FinishReason, TokenOutput
from services.engine import convert, errors
from services.engine.mailboxes import Delta
from services.rpc.errors import RpcError


class Outbox:
    """Merges outputs by handle until the stream can carry more.

    A gateway that keeps up gets one StepOutputs per engine step; one that does not gets several steps in one,
    named by the last. What waits is bounded by the lengths of the live requests plus `max_ended` endings: beyond
    these `has_room` is false and the attachment reads no further submits.
    """

    def __init__(self, *, max_ended: int = 4096) -> None:
        # Most handles get one plain output before the next message goes; only further ones are merged.
        self._deltas: dict[int, TokenOutput | Delta] = {}
        self._failures: dict[int, RpcError] = {}
        self._step = 0
        self._num_ended = 0
        self._max_ended = max_ended
        self._filled = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def put(self, handle: int, output: TokenOutput, step: int) -> None:
        deltas = self._deltas
        if not deltas:
            self._filled.set()
        waiting = deltas.get(handle)
        if waiting is None:
            deltas[handle] = output
        elif isinstance(waiting, Delta):
            waiting.add(output)
        else:
            deltas[handle] = merged = Delta()
            merged.add(waiting)
            merged.add(output)
        self._step = step
        if output.finish_reason is not None:
            self._count_end()

    def fail(self, handle: int, error: RpcError) -> None:
        self._failures[handle] = error
        self._count_end()
        self._filled.set()

    def ends(self, handle: int) -> bool:
        """True while the ending of this handle waits here: the gateway cannot know yet that it is free."""
        delta = self._deltas.get(handle)
        return handle in self._failures or (delta is not None and _end(delta) is not None)

    def wake(self) -> None:
        """Lets `wait_filled` return although nothing waits, for a stream that is to end."""
        self._filled.set()

    @property
    def empty(self) -> bool:
        return not self._deltas and not self._failures

    async def wait_filled(self) -> None:
        """Returns once something waits or `wake` was called since the last call; for the one writer."""
        await self._filled.wait()
        self._filled.clear()

    async def wait_room(self) -> None:
        await self._room.wait()

    def take(self) -> wire.StepOutputs:
        """Everything that waits, as one message."""
        deltas, self._deltas = self._deltas, {}
        failures, self._failures = self._failures, {}
        self._num_ended = 0
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

    def _count_end(self) -> None:
        self._num_ended += 1
        if self._num_ended >= self._max_ended:
            self._room.clear()


def _end(delta: TokenOutput | Delta) -> TokenOutput | None:
    """The output that finishes the request, when it is among those that wait."""
    if isinstance(delta, Delta):
        return delta.end
    return delta if delta.finish_reason is not None else None


def _write_tokens(
    outputs: wire.StepOutputs, deltas: dict[int, TokenOutput | Delta]
) -> list[tuple[int, TokenOutput | Delta]]:
    """Returns those that have more than tokens; in most steps there are none."""
    handles: list[int] = []
    counts: list[int] = []
    token_ids: list[int] = []
    others: list[tuple[int, TokenOutput | Delta]] = []
    for handle, delta in deltas.items():
        if delta.token_ids:
            handles.append(handle)
            counts.append(len(delta.token_ids))
            token_ids += delta.token_ids
        if delta.finish_reason is not None or delta.logprobs or delta.prompt is not None:
            others.append((handle, delta))
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
