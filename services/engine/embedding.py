"""One Embed call: many inputs, each a request of the engine, answered together; event loop only."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from muster import v1 as wire

from engine.request import FinishReason, Output
from services.engine import errors
from services.engine.intake import Intake


class EmbeddingCall:
    """Gathers the vectors of one call. The first input that fails fails the call; `leave` ends what still runs."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._keys: list[str] = []
        self._vectors: list[tuple[float, ...]] = []
        self._num_missing = 0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, message: wire.EmbedRequest) -> wire.EmbedResponse:
        """Raises RpcError and EngineError, whichever input they are about."""
        num_inputs = len(message.inputs)
        self._vectors, self._num_missing = [()] * num_inputs, num_inputs
        self._keys = self._intake.submit_embeddings(message, [_Sink(self, index) for index in range(num_inputs)])
        await self._done
        return wire.EmbedResponse(embeddings=[wire.Embedding(values=vector) for vector in self._vectors])

    def leave(self) -> None:
        """Nobody waits any more. Nothing happens for inputs that were answered."""
        for key in self._keys:
            self._intake.leave(key)

    def put(self, index: int, output: Output) -> None:
        if output.finish_reason is None:
            return
        if output.embedding is None:
            self.fail(_ended_without(output))
            return
        self._vectors[index] = output.embedding
        self._num_missing -= 1
        if not self._num_missing and not self._done.done():
            self._done.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self._done.done():
            self._done.set_exception(error)


@dataclass(frozen=True, slots=True)
class _Sink:
    """Ties the output of one input to its place."""

    call: EmbeddingCall
    index: int

    def put(self, output: Output) -> None:
        self.call.put(self.index, output)

    def fail(self, error: Exception) -> None:
        self.call.fail(error)


def _ended_without(output: Output) -> Exception:
    if output.finish_reason is FinishReason.ABORT:
        return errors.unavailable("ENGINE_STOPPING", "this engine stops and ended the call before it was answered")
    return errors.step_failed(output.error)
