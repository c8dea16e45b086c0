"""The engine thread: takes what others put into its inbox, steps while there is work, hands out results."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from engine.core import EngineCore, Rejected, StepResult
from engine.errors import DuplicateRequestError, EngineError, GroupBrokenError, QueueFullError
from engine.request import FinishReason, Output, Request, TokenOutput, Usage

if TYPE_CHECKING:
    from engine.grammar.matcher import Matcher
    from engine.parallel.lockstep import Lockstep

__all__ = ["EngineLoop", "Rejected", "StepResult"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

# How often an idle loop turns to show that it is alive.
_IDLE_TURN_S = 0.25
# A forward pass that fails so often in a row will not recover.
_MAX_FAILED_STEPS = 3
# Requests whose constraint is being compiled; each takes a thread some milliseconds at least.
_MAX_PREPARING = 256


@dataclass(frozen=True, slots=True)
class _Submit:
    request: Request


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The constraint of a request was compiled, or could not be."""

    request: Request
    matcher: Future[Matcher]


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[[EngineCore], Any]
    future: Future[Any]


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


class EngineLoop:
    """Owns an EngineCore and everything mutable behind it. All public methods may be called from any thread.

    `deliver` is called on the engine thread, at most once per turn, and must not block. Each submitted request is
    answered exactly once, by a last output or a rejection, also when the loop stops or fails.
    """

    def __init__(
        self,
        core: EngineCore,
        deliver: Callable[[StepResult], None],
        on_failure: Callable[[BaseException], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        lockstep: Lockstep | None = None,
    ) -> None:
        """`on_failure` is called once, on the engine thread after the last delivery, when an error ends the loop.

        With `lockstep` the core steps when its group does.
        """
        self._core = core
        self._lockstep = lockstep
        if lockstep is not None:
            core.lockstep_totals = lambda: lockstep.totals
        self._deliver = deliver
        self._on_failure = on_failure
        self._clock = clock
        self._inbox: queue.SimpleQueue[_Submit | _Prepared | _Abort | _Call | _Stop] = queue.SimpleQueue()
        self._gate = threading.Lock()  # orders puts against closing: nothing is put into an inbox that nobody reads
        self._closed = False
        self._failed: BaseException | None = None
        self._last_turn = clock()
        # Of this turn and not delivered yet.
        self._outputs: list[Output] = []
        self._rejected: list[Rejected] = []
        self._preparing: dict[str, Request] = {}  # submitted, not known to the core yet
        self._num_failed_steps = 0  # in a row
        # A daemon: a forward pass that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def last_turn(self) -> float:
        """time.monotonic() of the loop's last turn; it also turns while idle."""
        return self._last_turn

    @property
    def failed(self) -> BaseException | None:
        """The error that ended the loop, if one did."""
        return self._failed

    def start(self) -> None:
        self._last_turn = self._clock()
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Ends the loop; live requests are aborted. False when the thread still runs after `timeout_s`."""
        self._put(_Stop())
        if self._thread.ident is None:  # never started: nobody else answers what was submitted
            self._finish()
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def submit(self, request: Request) -> None:
        """Queues a request and returns at once; a refusal comes back in StepResult.rejected.

        Raises EngineError when the loop has ended.
        """
        if not self._put(_Submit(request)):
            raise EngineError("the engine has stopped and takes no more requests")

    def abort(self, request_id: str) -> None:
        """Ends a request before the next step; its last output is delivered. Unknown ids are ignored."""
        self._put(_Abort(request_id))

    def call(self, function: Callable[[EngineCore], T]) -> Future[T]:
        """Runs `function` on the engine thread between two steps."""
        future: Future[T] = Future()
        if not self._put(_Call(function, future)):
            future.set_exception(EngineError("the engine has stopped"))
        return future

    def _put(self, item: _Submit | _Prepared | _Abort | _Call | _Stop) -> bool:
        with self._gate:
            if self._closed:
                return False
            self._inbox.put(item)
            return True

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:
            _log.exception("the engine thread ends after an error")
            self._failed = error
        self._finish()
        if self._failed is not None and self._on_failure is not None:
            self._on_failure(self._failed)

    def _turn(self) -> bool:
        """One round: inbox, step, delivery. False ends the loop."""
        self._last_turn = self._clock()
        if not self._take_inbox():
            return False
        if self._lockstep is not None:
            self._lockstep.wake(self._core)
        if self._steps_now:
            result = self._step()
            if result is not None:
                self._hand_out(result)
            if self._num_failed_steps >= _MAX_FAILED_STEPS:
                raise RuntimeError(f"{_MAX_FAILED_STEPS} steps failed in a row; the last error is in the log")
        if self._outputs or self._rejected:
            self._hand_out(self._core.between_steps([]))
        return True

    @property
    def _steps_now(self) -> bool:
        return self._core.has_work if self._lockstep is None else self._lockstep.running

    def alive(self) -> None:
        """Says on the engine thread, within a long step, that it has not come to a stop."""
        self._last_turn = self._clock()

    def _take_inbox(self) -> bool:
        """Handles everything that waits; waits for something when there is nothing else to do. False: stop."""
        try:
            item = self._inbox.get_nowait() if self._steps_now else self._inbox.get(timeout=_IDLE_TURN_S)
            while True:
                match item:
                    case _Submit(request):
                        self._try(request, self._submit)
                    case _Prepared():
                        self._take_prepared(item)
                    case _Abort(request_id):
                        if (output := self._abort(request_id)) is not None:
                            self._outputs.append(output)
                    case _Call():
                        self._answer(item)
                    case _Stop():
                        return False
                item = self._inbox.get_nowait()
        except queue.Empty:
            return True

    def _submit(self, request: Request) -> None:
        """Hands a request to the core; one with a constraint first to its compiler, whose thread may take long."""
        if request.request_id in self._preparing:
            raise DuplicateRequestError(f"request_id: {request.request_id!r} is live already; choose another one")
        if request.constraint is None or self._core.grammars is None:
            self._core.add(request)
            return
        if len(self._preparing) >= _MAX_PREPARING:
            raise QueueFullError(f"the constraints of {_MAX_PREPARING} requests wait to be compiled; try again later")
        future = self._core.grammars.prepare(request.constraint, request.generated_token_ids)
        self._preparing[request.request_id] = request
        future.add_done_callback(lambda matcher: self._put(_Prepared(request, matcher)))

    def _take_prepared(self, prepared: _Prepared) -> None:
        request = prepared.request
        # Otherwise it was aborted meanwhile, and its id is perhaps in use again.
        if self._preparing.get(request.request_id) is request:
            del self._preparing[request.request_id]
            self._try(request, lambda request: self._core.add(request, prepared.matcher.result()))

    def _abort(self, request_id: str) -> TokenOutput | None:
        request = self._preparing.pop(request_id, None)
        if request is None:
            return self._core.abort(request_id)
        usage = Usage(len(request.prompt_token_ids), len(request.generated_token_ids), 0)
        return TokenOutput(request_id, finish_reason=FinishReason.ABORT, usage=usage)

    def _try(self, request: Request, accept: Callable[[Request], None]) -> None:
        try:
            accept(request)
        except EngineError as error:
            self._rejected.append(Rejected(request.request_id, error))
        except Exception as error:  # one malformed request must not end the others
            _log.exception("request %s was refused after an unexpected error", request.request_id)
            self._rejected.append(Rejected(request.request_id, EngineError(_text(error))))

    def _answer(self, call: _Call) -> None:
        if not call.future.set_running_or_notify_cancel():
            return
        try:
            result = call.function(self._core)
        except Exception as error:
            call.future.set_exception(error)
        else:
            call.future.set_result(result)

    def _step(self) -> StepResult | None:
        try:
            result = self._core.step() if self._lockstep is None else self._lockstep.step(self._core)
        except GroupBrokenError:
            raise
        except Exception as error:
            self._num_failed_steps += 1
            _log.exception("a step failed, %d in a row", self._num_failed_steps)
            return self._core.fail_step(f"the step failed: {_text(error)}")
        if result is not None and result.stats.num_sequences:
            self._num_failed_steps = 0
        return result

    def _hand_out(self, result: StepResult) -> None:
        """Delivers what the inbox brought together with what the step brought."""
        if self._outputs or self._rejected:
            result = StepResult([*self._outputs, *result.outputs], result.stats, self._rejected)
            self._outputs, self._rejected = [], []
        self._deliver(result)

    def _finish(self) -> None:
        """Ends what is live, refuses what came too late; from here on nothing can be put."""
        if self._failed is None:
            reason, message = FinishReason.ABORT, ""
        else:
            reason, message = FinishReason.ERROR, f"the engine failed: {_text(self._failed)}"
        with self._gate:
            self._closed = True
        self._refuse_inbox()
        try:
            self._outputs += self._core.end_all(reason, message)
            if self._outputs or self._rejected:
                self._hand_out(self._core.between_steps([]))
        except Exception as error:
            _log.exception("the last outputs could not be delivered")
            self._failed = self._failed or error

    def _refuse_inbox(self) -> None:
        for request_id in self._preparing:
            error = EngineError("the engine stopped before it took the request")
            self._rejected.append(Rejected(request_id, error))
        self._preparing.clear()
        while not self._inbox.empty():
            match self._inbox.get_nowait():
                case _Submit(request):
                    error = EngineError("the engine stopped before it took the request")
                    self._rejected.append(Rejected(request.request_id, error))
                case _Call(_, future):
                    if future.set_running_or_notify_cancel():
                        future.set_exception(EngineError("the engine has stopped"))


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
