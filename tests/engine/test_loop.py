"""The engine thread: everything submitted is answered once, whatever happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from engine.config import SchedulerLimits
from engine.core import EngineCore
from engine.errors import DuplicateRequestError, EngineError, InvalidRequestError
from engine.loop import EngineLoop, StepResult
from engine.request import FinishReason, Request, StopConditions
from tests.support.scripted_runner import VOCAB_SIZE, ScriptedRunner, continuation

TIMEOUT_S = 20.0
PROMPT = (1, 2, 3)


class Results:
    """What a loop delivered, to wait for."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.results: list[StepResult] = []
        self.threads: set[int] = set()
        self.failures: list[BaseException] = []
        self.on_deliver: Callable[[StepResult], None] | None = None

    def deliver(self, result: StepResult) -> None:
        with self._changed:
            self.threads.add(threading.get_ident())
            self.results.append(result)
            self._changed.notify_all()
        if self.on_deliver is not None:
            self.on_deliver(result)

    def on_failure(self, error: BaseException) -> None:
        with self._changed:
            self.failures.append(error)
            self._changed.notify_all()

    def wait(self, condition: Callable[[], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, TIMEOUT_S), "nothing came in time"

    def tokens(self, request_id: str) -> list[int]:
        return [
            token_id
            for result in self.results
            for output in result.outputs
            if output.request_id == request_id
            for token_id in output.token_ids
        ]

    def ends(self, request_id: str) -> list[FinishReason | EngineError]:
        """How it ended; more than one entry is an error."""
        ends: list[FinishReason | EngineError] = []
        for result in self.results:
            ends += [rejected.error for rejected in result.rejected if rejected.request_id == request_id]
            ends += [
                output.finish_reason
                for output in result.outputs
                if output.request_id == request_id and output.finish_reason is not None
            ]
        return ends

    def end(self, request_id: str) -> FinishReason | EngineError:
        self.wait(lambda: self.ends(request_id))
        [end] = self.ends(request_id)
        return end


class Engine:
    """A loop over a scripted core. `gate` holds the steps while it is clear."""

    def __init__(self, max_num_seqs: int = 4) -> None:
        self.runner = ScriptedRunner(num_blocks=64, block_size=4)
        self.core = EngineCore(
            self.runner,
            num_blocks=64,
            block_size=4,
            vocab_size=VOCAB_SIZE,
            max_model_len=200,
            eos_token_ids=(0,),
            limits=SchedulerLimits(max_num_seqs, 16, 100),
        )
        self.results = Results()
        self.loop = EngineLoop(self.core, self.results.deliver, on_failure=self.results.on_failure)
        self.gate = threading.Event()
        self.gate.set()
        self.stepping = threading.Event()
        self.error: Exception | None = None
        self.runner.on_execute = self._on_execute

    def _on_execute(self, _: object) -> None:
        self.stepping.set()
        assert self.gate.wait(TIMEOUT_S)
        if self.error is not None:
            raise self.error

    def hold(self) -> None:
        """Returns while a step is in progress, which ends when `gate` is set."""
        self.gate.clear()
        self.stepping.clear()
        self.loop.submit(request("held", max_tokens=150))
        assert self.stepping.wait(TIMEOUT_S)

    def wait_failed(self) -> BaseException:
        self.results.wait(lambda: self.results.failures)
        [failure] = self.results.failures
        assert self.loop.failed is failure
        assert self.loop.stop(TIMEOUT_S)
        return failure

    def call_check(self) -> int:
        """Live requests, after a check of the books on the engine thread."""

        def check(core: EngineCore) -> int:
            core.check()
            return core.num_live

        return self.loop.call(check).result(TIMEOUT_S)


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    engine.loop.start()
    yield engine
    engine.gate.set()
    assert engine.loop.stop(TIMEOUT_S)


def request(request_id: str, max_tokens: int = 5, prompt: tuple[int, ...] = PROMPT) -> Request:
    return Request(request_id, prompt, stop=StopConditions(max_tokens=max_tokens))


def test_a_request_is_answered(engine: Engine) -> None:
    engine.loop.submit(request("a"))
    assert engine.results.end("a") is FinishReason.LENGTH
    assert engine.results.tokens("a") == continuation(PROMPT, 5)


def test_one_delivery_per_step_on_the_engine_thread(engine: Engine) -> None:
    engine.hold()
    for index in range(3):
        engine.loop.submit(request(f"r{index}"))
    engine.gate.set()
    for index in range(3):
        engine.results.end(f"r{index}")
    steps = [result.stats.step for result in engine.results.results]
    assert steps == sorted(set(steps)), "each step is delivered once"
    assert engine.results.threads == engine.runner.threads
    assert threading.get_ident() not in engine.runner.threads


def test_many_threads_submit_and_abort(engine: Engine) -> None:
    names = [[f"{thread}-{index}" for index in range(20)] for thread in range(4)]

    def work(own: list[str]) -> None:
        for index, name in enumerate(own):
            engine.loop.submit(request(name))
            if index % 3 == 0:
                engine.loop.abort(name)

    threads = [threading.Thread(target=work, args=(own,)) for own in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    for name in (name for own in names for name in own):
        assert engine.results.end(name) in (FinishReason.LENGTH, FinishReason.ABORT)
        tokens = engine.results.tokens(name)
        assert tokens == continuation(PROMPT, 5)[: len(tokens)]
    assert engine.call_check() == 0


def test_refusals_come_through_the_same_door(engine: Engine) -> None:
    engine.loop.submit(request("wrong", prompt=()))
    assert isinstance(engine.results.end("wrong"), InvalidRequestError)
    engine.hold()
    engine.loop.submit(request("held"))
    engine.gate.set()
    engine.results.wait(lambda: any(isinstance(end, DuplicateRequestError) for end in engine.results.ends("held")))


def test_a_malformed_request_ends_nobody_else(engine: Engine) -> None:
    engine.loop.submit(request("strange", prompt=("x",)))  # type: ignore[arg-type]
    end = engine.results.end("strange")
    assert isinstance(end, EngineError)
    assert "TypeError" in str(end)
    engine.loop.submit(request("a"))
    assert engine.results.end("a") is FinishReason.LENGTH


def test_an_abort_is_applied_before_the_next_step(engine: Engine) -> None:
    engine.hold()
    engine.loop.abort("held")
    engine.loop.abort("unknown")
    engine.gate.set()
    assert engine.results.end("held") is FinishReason.ABORT
    assert len(engine.results.tokens("held")) == 1, "only the step that was in progress"
    assert engine.call_check() == 0


def test_a_request_that_is_aborted_before_it_was_taken_ends_too(engine: Engine) -> None:
    engine.hold()
    engine.loop.submit(request("a"))
    engine.loop.abort("a")
    engine.gate.set()
    assert engine.results.end("a") is FinishReason.ABORT
    assert engine.results.tokens("a") == []


def test_calls_run_between_steps_on_the_engine_thread(engine: Engine) -> None:
    assert engine.loop.call(lambda core: core.load().total_blocks).result(TIMEOUT_S) == 64
    thread_id = engine.loop.call(lambda core: threading.get_ident()).result(TIMEOUT_S)
    engine.loop.submit(request("a"))
    engine.results.end("a")
    assert engine.runner.threads == {thread_id}


def test_a_call_that_raises_harms_only_its_caller(engine: Engine) -> None:
    future = engine.loop.call(lambda core: core.abort(1 / 0))  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        future.result(TIMEOUT_S)
    engine.loop.submit(request("a"))
    assert engine.results.end("a") is FinishReason.LENGTH


def test_a_cancelled_call_is_not_run(engine: Engine) -> None:
    engine.hold()
    ran: list[int] = []
    future = engine.loop.call(lambda core: ran.append(1))
    assert future.cancel()
    engine.gate.set()
    engine.call_check()
    assert ran == []


def test_an_idle_loop_turns_and_delivers_nothing(engine: Engine) -> None:
    first = engine.loop.last_turn
    deadline = time.monotonic() + TIMEOUT_S
    while engine.loop.last_turn == first and time.monotonic() < deadline:
        time.sleep(0.01)
    assert engine.loop.last_turn > first
    assert engine.results.results == []


def test_a_step_that_hangs_shows_in_last_turn(engine: Engine) -> None:
    engine.hold()
    turn = engine.loop.last_turn
    engine.loop.submit(request("a"))
    assert engine.loop.last_turn == turn


def test_a_failed_step_ends_its_requests_and_the_loop_goes_on(engine: Engine) -> None:
    engine.hold()
    engine.error = RuntimeError("bad luck")
    engine.gate.set()
    assert engine.results.end("held") is FinishReason.ERROR
    [output] = [output for result in engine.results.results for output in result.outputs if output.finish_reason]
    assert output.error == "the step failed: RuntimeError: bad luck"
    engine.error = None
    engine.loop.submit(request("a"))
    assert engine.results.end("a") is FinishReason.LENGTH
    assert engine.loop.failed is None


def test_failures_must_be_in_a_row_to_end_the_loop(engine: Engine) -> None:
    for index in range(6):
        engine.error = RuntimeError("bad luck") if index % 2 else None
        engine.loop.submit(request(f"r{index}"))
        assert engine.results.end(f"r{index}") is (FinishReason.ERROR if index % 2 else FinishReason.LENGTH)
    assert engine.loop.failed is None


def test_three_failed_steps_in_a_row_end_the_loop() -> None:
    engine = Engine(max_num_seqs=1)
    engine.error = RuntimeError("broken for good")
    for index in range(6):
        engine.loop.submit(request(f"r{index}"))
    engine.loop.start()
    failure = engine.wait_failed()
    assert "3 steps failed" in str(failure)
    assert [engine.results.end(f"r{index}") for index in range(6)] == [FinishReason.ERROR] * 6
    with pytest.raises(EngineError, match="has stopped"):
        engine.loop.submit(request("late"))
    with pytest.raises(EngineError, match="has stopped"):
        engine.loop.call(lambda core: core.load()).result(TIMEOUT_S)
    engine.core.check()


def test_a_receiver_that_fails_ends_the_loop() -> None:
    engine = Engine()

    def fail(result: StepResult) -> None:
        engine.results.on_deliver = None
        raise RuntimeError("nobody listens")

    engine.results.on_deliver = fail
    engine.loop.start()
    engine.loop.submit(request("a", max_tokens=100))
    assert "nobody listens" in str(engine.wait_failed())
    assert engine.results.end("a") is FinishReason.ERROR


def test_a_receiver_that_is_gone_does_not_keep_the_loop_from_ending() -> None:
    engine = Engine()

    def fail(result: StepResult) -> None:
        raise RuntimeError("nobody listens")

    engine.results.on_deliver = fail
    engine.loop.start()
    engine.loop.submit(request("a"))
    assert "nobody listens" in str(engine.wait_failed())


def test_stopping_aborts_what_is_live(engine: Engine) -> None:
    engine.hold()
    engine.loop.submit(request("waiting"))
    pending = engine.loop.call(lambda core: core.num_live)
    stopper = threading.Thread(target=engine.loop.stop, args=(TIMEOUT_S,))
    stopper.start()
    engine.gate.set()
    stopper.join(TIMEOUT_S)
    assert engine.results.end("held") is FinishReason.ABORT
    assert engine.results.end("waiting") is FinishReason.ABORT
    assert pending.result(TIMEOUT_S) == 2
    assert engine.loop.failed is None
    assert engine.results.failures == []
    engine.core.check()
    assert engine.core.load().free_blocks == 64


def test_what_comes_after_a_stop_is_refused_visibly(engine: Engine) -> None:
    engine.hold()
    stopper = threading.Thread(target=engine.loop.stop, args=(TIMEOUT_S,))
    stopper.start()
    # Until the thread closes its inbox, requests are queued and then rejected; afterwards submit raises.
    num_queued = 0
    try:
        for index in range(1_000_000):
            engine.loop.submit(request(f"late{index}"))
            num_queued += 1
            if index == 10:
                engine.gate.set()
                stopper.join(TIMEOUT_S)
    except EngineError:
        pass
    stopper.join(TIMEOUT_S)
    assert 10 <= num_queued <= 11
    for index in range(num_queued):
        end = engine.results.end(f"late{index}")
        assert end is FinishReason.ABORT or isinstance(end, EngineError)
    assert engine.loop.call(lambda core: 1).exception(TIMEOUT_S) is not None
    engine.loop.abort("late0")


def test_stop_says_when_the_thread_still_runs(engine: Engine) -> None:
    engine.hold()
    assert not engine.loop.stop(0.01)
    engine.gate.set()
    assert engine.loop.stop(TIMEOUT_S)


def test_a_loop_that_never_started_answers_what_it_was_given() -> None:
    engine = Engine()
    engine.loop.submit(request("a"))
    future = engine.loop.call(lambda core: 1)
    assert engine.loop.stop(TIMEOUT_S)
    assert isinstance(engine.results.end("a"), EngineError)
    assert future.exception(TIMEOUT_S) is not None
    assert engine.loop.stop(TIMEOUT_S)
