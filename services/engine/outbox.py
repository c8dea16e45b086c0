"""What waits to be sent to one gateway; event loop only, no I/O."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from muster import v1 as wire

from engine.request import FinishReason, Output, PromptInfo, TokenLogprobs
from services.engine import convert, errors
from services.rpc.errors import RpcError

# Pairs of handle and tokens that wait before those of one handle are put together. Merging late is cheap, and a gateway
# that keeps up never has as many.
_MOST_PAIRS = 16_384


class _More:
    """What a handle has beside tokens."""

    __slots__ = ("end", "logprobs", "prompt")

    def __init__(self) -> None:
        self.logprobs: list[TokenLogprobs] = []
        self.prompt: PromptInfo | None = None
        self.end: Output | None = None  # the output that finished the request


class Outbox:
    """Merges outputs by handle until the stream can carry more.

    A gateway that keeps up gets one StepOutputs per engine step; one that does not gets several steps in one,
    named by the last. What waits is bounded by the lengths of the live requests plus `max_ended` endings: beyond
    these `has_room` is false and the attachment reads no further submits.
    """

    def __init__(self, *, max_ended: int = 4096, most_pairs: int = _MOST_PAIRS) -> None:
        # Whoever has nothing but tokens for a handle adds them here, which is all that most outputs take.
        self.tokens: list[tuple[int, Sequence[int]]] = []
        self._more: dict[int, _More] = {}
        self._failures: dict[int, RpcError] = {}
        self._step = 0
        self._num_ended = 0
        self._max_ended = max_ended
        self._most_pairs = self._max_pairs = most_pairs
        self._filled = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def put(self, handle: int, output: Output) -> None:
        """Any output; `end_step` follows."""
        if output.token_ids:
            self.tokens.append((handle, output.token_ids))
        if output.finish_reason is None and output.prompt is None and not output.logprobs:
            return
        more = self._more.get(handle)
        if more is None:
            more = self._more[handle] = _More()
        more.logprobs += output.logprobs
        if output.prompt is not None:
            more.prompt = output.prompt
        if output.finish_reason is not None:
            more.end = output
            self._count_end()

    def end_step(self, step: int) -> None:
        """All that the step brought is here."""
        self._step = step
        if len(self.tokens) > self._max_pairs:
            self.tokens[:] = _merged(self.tokens).items()
            self._max_pairs = max(self._most_pairs, 2 * len(self.tokens))

    def fail(self, handle: int, error: RpcError) -> None:
        self._failures[handle] = error
        self._count_end()
        self._filled.set()

    def ends(self, handle: int) -> bool:
        """True while the ending of this handle waits here: the gateway cannot know yet that it is free."""
        more = self._more.get(handle)
        return handle in self._failures or (more is not None and more.end is not None)

    def wake(self) -> None:
        """Lets `wait_filled` return: something waits, or the stream is to end."""
        self._filled.set()

    @property
    def empty(self) -> bool:
        return not self.tokens and not self._more and not self._failures

    async def wait_filled(self) -> None:
        """Returns once `wake` or `fail` was called since the last call; for the one writer."""
        await self._filled.wait()
        self._filled.clear()

    async def wait_room(self) -> None:
        await self._room.wait()

    def take(self) -> wire.StepOutputs:
        """Everything that waits, as one message."""
        outputs = wire.StepOutputs(step=self._step)
        _write_tokens(outputs, self.tokens)
        self.tokens.clear()
        self._max_pairs = self._most_pairs
        if self._more or self._failures:
            self._write_more(outputs)
        return outputs

    def _write_more(self, outputs: wire.StepOutputs) -> None:
        mores, self._more = self._more, {}
        failures, self._failures = self._failures, {}
        self._num_ended = 0
        self._room.set()
        for handle, more in mores.items():
            if more.logprobs:
                outputs.logprobs.add(handle=handle, logprobs=convert.to_logprobs(more.logprobs))
            if more.prompt is not None:
                outputs.started.add(handle=handle, prompt=convert.to_prompt_info(more.prompt))
            if more.end is not None:
                _write_end(outputs, handle, more.end)
        for handle, error in failures.items():
            outputs.failed.append(_to_failed(handle, error))

    def _count_end(self) -> None:
        self._num_ended += 1
        if self._num_ended >= self._max_ended:
            self._room.clear()


def _write_tokens(outputs: wire.StepOutputs, pairs: list[tuple[int, Sequence[int]]]) -> None:
    tokens = dict(pairs)
    if len(tokens) < len(pairs):
        tokens = _merged(pairs)
    token_ids = list(itertools.chain.from_iterable(tokens.values()))
    outputs.handles.extend(tokens)
    outputs.token_ids.extend(token_ids)
    if len(token_ids) != len(tokens):
        outputs.token_counts.extend(map(len, tokens.values()))


def _merged(pairs: list[tuple[int, Sequence[int]]]) -> dict[int, Sequence[int]]:
    """Everything of one handle in one place, in its order."""
    merged: dict[int, list[int]] = {}
    for handle, token_ids in pairs:
        if handle in merged:
            merged[handle] += token_ids
        else:
            merged[handle] = [*token_ids]
    return merged  # type: ignore[return-value]  # dict is invariant


def _write_end(outputs: wire.StepOutputs, handle: int, end: Output) -> None:
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
