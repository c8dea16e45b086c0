"""The engine as a library: token ids in, token ids out, in the caller's own thread; no server, no network.

    from engine.config import EngineConfig
    from engine.offline import OfflineEngine
    from engine.request import SamplingParams, StopConditions

    with OfflineEngine(EngineConfig(Path("model.gguf"))) as engine:
        for answer in engine.generate(prompts, SamplingParams(temperature=0), StopConditions(max_tokens=64)):
            print(answer.token_ids)

For text, and for several ranks, see `services.offline`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING

from engine.errors import EngineError, QueueFullError
from engine.request import FinishReason, Output, Request, SamplingParams, StopConditions, TokenLogprobs

if TYPE_CHECKING:
    from engine.build import BuiltEngine
    from engine.config import EngineConfig
    from engine.core import EngineCore

_log = logging.getLogger(__name__)

# A forward pass that fails so often in a row will not recover.
_MAX_FAILED_STEPS = 3
# Answers that wait for an earlier one; beyond it no request is taken, so that a long file needs no memory.
_MAX_AHEAD = 4096


@dataclass(slots=True)
class Answer:
    """What became of one request; complete when it is handed out. With FinishReason.ERROR, `error` says why."""

    request_id: str
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str = ""

    def add(self, output: Output) -> None:
        self.token_ids.extend(output.token_ids)
        self.logprobs.extend(output.logprobs)
        if output.prompt is not None:
            self.prompt_logprobs, self.cached_tokens = output.prompt.logprobs, output.prompt.cached_tokens
        if output.finish_reason is not None:
            self.finish_reason, self.stop_token_id, self.error = (
                output.finish_reason,
                output.stop_token_id,
                output.error,
            )


class OfflineEngine:
    """One rank. Requests are batched as a server would; answers come in the order of the requests."""

    def __init__(self, config: EngineConfig) -> None:
        """Loads the model. Raises what `engine.build.build_engine` does."""
        from engine.build import build_engine

        self._built: BuiltEngine | None = build_engine(config)

    def __enter__(self) -> OfflineEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def built(self) -> BuiltEngine:
        """The loaded model's facts and what start-up chose. Raises EngineError once closed."""
        if self._built is None:
            raise EngineError("this engine was closed; make another one")
        return self._built

    def close(self) -> None:
        """Lets the model and its cache go."""
        self._built = None

    def generate(
        self,
        prompts: Iterable[Sequence[int]],
        sampling: SamplingParams = SamplingParams(),  # noqa: B008  # frozen
        stop: StopConditions = StopConditions(),  # noqa: B008
    ) -> Iterator[Answer]:
        """One answer per prompt; prompt number i has the seed `sampling.seed + i`."""
        return self.run(
            Request(f"{index}", tuple(prompt), replace(sampling, seed=sampling.seed + index), stop)
            for index, prompt in enumerate(prompts)
        )

    def run(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """One answer per request, each as soon as it and all before it are complete.

        A request that cannot run is answered with its error, and the others go on. Closing the iterator aborts what
        is left. Raises EngineError when the engine itself is broken.
        """
        return _Run(self.built.core).answers(iter(requests))


class _Run:
    """One pass over requests on a core that nobody else uses meanwhile."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._pending: deque[Answer] = deque()
        self._live: dict[str, Answer] = {}
        self._refused: Request | None = None  # by a full queue; the first to be added when there is room
        self._num_failed_steps = 0

    def answers(self, requests: Iterator[Request]) -> Iterator[Answer]:
        try:
            while True:
                more = self._fill(requests)
                while self._pending and self._pending[0].finish_reason is not None:
                    yield self._pending.popleft()
                if self._core.has_work:
                    self._step()
                elif not more and not self._pending:
                    return
        finally:
            for request_id in list(self._live):
                self._core.abort(request_id)

    def _fill(self, requests: Iterator[Request]) -> bool:
        """Adds what there is room for; False once there are no more."""
        while len(self._pending) < _MAX_AHEAD:
            request = self._refused or next(requests, None)
            self._refused = None
            if request is None:
                return False
            answer = Answer(request.request_id)
            try:
                self._core.add(request)
            except QueueFullError:
                self._refused = request
                return True
            except EngineError as error:
                answer.finish_reason, answer.error = FinishReason.ERROR, str(error)
            else:
                self._live[request.request_id] = answer
            self._pending.append(answer)
        return True

    def _step(self) -> None:
        try:
            result = self._core.step()
            self._num_failed_steps = 0
        except Exception as error:
            self._num_failed_steps += 1
            _log.exception("a step failed, %d in a row", self._num_failed_steps)
            result = self._core.fail_step(f"the step failed: {type(error).__name__}: {error}")
            if self._num_failed_steps >= _MAX_FAILED_STEPS:
                raise EngineError(f"{_MAX_FAILED_STEPS} steps failed in a row, last with: {error}") from error
        for output in result.outputs:
            answer = self._live[output.request_id]
            answer.add(output)
            if output.finish_reason is not None:
                del self._live[output.request_id]
