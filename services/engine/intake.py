"""The one door between callers and the engine thread; event loop only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster import v1 as wire

from services.engine import convert, errors
from services.engine.mailboxes import Mailboxes, Sink
from services.engine.state import EngineState

if TYPE_CHECKING:
    from engine.loop import EngineLoop, StepResult
    from engine.request import Request


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Running:
    loop: EngineLoop
    limits: convert.Limits


@dataclass(frozen=True, slots=True)
class _EmbeddingBuilder:
    """Makes the request of one input once its key is known."""

    message: wire.EmbedRequest
    index: int

    def __call__(self, key: str, limits: convert.Limits) -> Request:
        return convert.to_embedding_request(self.message, self.index, key)


class Intake:
    """Admits requests, aborts them, and hands the engine thread's outputs to their readers.

    Every admitted request ends exactly once: its sink gets a last output or an error, or its reader left.
    """

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._mailboxes = Mailboxes()
        self._running: _Running | None = None
        self._after_steps: set[Callable[[int], None]] = set()

    def open(self, loop: EngineLoop, limits: convert.Limits) -> None:
        """The engine thread runs; from now on requests are admitted."""
        self._running = _Running(loop, limits)

    @property
    def engine_loop(self) -> EngineLoop | None:
        return self._running.loop if self._running is not None else None

    @property
    def num_live(self) -> int:
        return len(self._mailboxes)

    def submit(self, message: wire.GenerateRequest, sink: Sink) -> str:
        """Starts a request and returns the key it is known by here.

        Raises RpcError and EngineError for what can be told at once; what the engine refuses later reaches the sink.
        """
        return self._submit(message.request_id, sink, lambda key, limits: convert.to_request(message, key, limits))

    def submit_embeddings(self, message: wire.EmbedRequest, sinks: Sequence[Sink]) -> list[str]:
        """The same for the inputs of an Embed call, one sink each; all of them or none."""
        convert.check_embed(message, self._admit().limits)
        keys: list[str] = []
        try:
            for index, sink in enumerate(sinks):
                keys.append(self._submit("", sink, _EmbeddingBuilder(message, index)))
        except BaseException:
            for key in keys:
                self.leave(key)
            raise
        return keys

    def _submit(self, request_id: str, sink: Sink, build: Callable[[str, convert.Limits], Request]) -> str:
        running = self._admit()
        key = self._mailboxes.open(request_id, sink)
        try:
            running.loop.submit(build(key, running.limits))
        except BaseException:
            self._mailboxes.close(key)
            raise
        return key

    def leave(self, key: str) -> None:
        """The reader is gone: ends the request before the engine's next step. Nothing happens once it ended."""
        if self._mailboxes.close(key) and self._running is not None:
            self._running.loop.abort(key)

    def abort(self, key: str) -> None:
        """Ends a request whose reader still waits for the finish."""
        if self._running is not None:
            self._running.loop.abort(key)

    def abort_ids(self, request_ids: Iterable[str]) -> int:
        """The same by the callers' ids; returns how many were live."""
        keys = [key for key in map(self._mailboxes.key_of, set(request_ids)) if key is not None]
        for key in keys:
            self.abort(key)
        return len(keys)

    def abort_all(self) -> None:
        """Ends every request; its reader gets the finish."""
        for key in self._mailboxes.live_keys():
            self.abort(key)

    async def wait_empty(self) -> None:
        """Returns once no request is live."""
        await self._mailboxes.wait_empty()

    def deliver(self, result: StepResult) -> None:
        """What one turn of the engine thread brought."""
        if _log.isEnabledFor(logging.DEBUG):
            self._tell_ends(result)
        self._mailboxes.deliver(result.outputs)
        for rejected in result.rejected:
            self._mailboxes.fail(rejected.request_id, rejected.error)
        for act in tuple(self._after_steps):
            act(result.stats.step)

    def after_steps(self, act: Callable[[int], None]) -> Callable[[], None]:
        """`act` is called with each step's number once its outputs lie in their sinks; returns what ends that."""
        self._after_steps.add(act)
        return lambda: self._after_steps.discard(act)

    def fail_all(self, message: str) -> None:
        """The engine thread died."""
        self._mailboxes.fail_all(errors.step_failed(message))

    def _tell_ends(self, result: StepResult) -> None:
        """A line per request that ended, for whoever looks for a slow one."""
        for output in result.outputs:
            if output.finish_reason is not None and (age_s := self._mailboxes.age_s(output.request_id)) is not None:
                usage = output.usage
                _log.debug(
                    "request %s on rank %s: %d prompt tokens (%d cached), %d generated, %.3f s, %s%s",
                    output.request_id,
                    self._state.now.rank,
                    usage.prompt_tokens if usage is not None else 0,
                    usage.cached_tokens if usage is not None else 0,
                    usage.completion_tokens if usage is not None else 0,
                    age_s,
                    output.finish_reason.value,
                    f": {output.error}" if output.error else "",
                )

    def _admit(self) -> _Running:
        snapshot = self._state.now
        if snapshot.stop_reason:
            raise errors.unavailable("ENGINE_STOPPING", f"this engine stops ({snapshot.stop_reason})")
        if snapshot.draining:
            name = "this engine" if snapshot.rank is None else f"rank {snapshot.rank}"
            raise errors.unavailable(
                "ENGINE_DRAINING", f"{name} is draining and takes no new requests; ask another one"
            )
        if self._running is None:
            raise errors.unavailable("ENGINE_LOADING", f"this engine is not ready yet: {snapshot.progress_text}")
        if self._running.loop.failed is not None:
            raise errors.unavailable("ENGINE_FAILED", f"the engine thread failed: {self._running.loop.failed}")
        return self._running
