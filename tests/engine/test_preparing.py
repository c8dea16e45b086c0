"""While a constraint is compiled, the engine thread serves the others, and the request can still be ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import cast

import pytest
from llguidance import LLMatcher, LLTokenizer

from engine.errors import DuplicateRequestError, InvalidRequestError, QueueFullError
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.matcher import Matcher
from engine.request import Constraint, ConstraintKind, FinishReason, Request
from tests.engine.test_loop import TIMEOUT_S, Engine, request


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    engine.loop.start()
    yield engine
    assert engine.loop.stop(TIMEOUT_S)


class HeldCompiler:
    """Hands out futures that the test completes."""

    def __init__(self) -> None:
        self.futures: dict[Constraint, Future[Matcher]] = {}
        self.asked = threading.Semaphore(0)

    def prepare(self, constraint: Constraint, generated_token_ids: Sequence[int] = ()) -> Future[Matcher]:
        future = self.futures[constraint] = Future()
        self.asked.release()
        return future


def constrained(request_id: str, pattern: str) -> Request:
    return replace(request(request_id), constraint=Constraint(ConstraintKind.REGEX, pattern))


@pytest.fixture
def held(engine: Engine) -> HeldCompiler:
    compiler = HeldCompiler()
    engine.core.grammars = cast(GrammarCompiler, compiler)
    return compiler


def submit_constrained(engine: Engine, held: HeldCompiler, request_id: str) -> Future[Matcher]:
    engine.loop.submit(constrained(request_id, request_id))
    assert held.asked.acquire(timeout=TIMEOUT_S)
    return held.futures[Constraint(ConstraintKind.REGEX, request_id)]


def test_others_run_while_a_constraint_is_compiled(engine: Engine, held: HeldCompiler) -> None:
    slow = submit_constrained(engine, held, "slow")
    wrong = submit_constrained(engine, held, "wrong")
    engine.loop.submit(request("other"))
    assert engine.results.end("other") is FinishReason.LENGTH
    assert not engine.results.ends("slow")
    slow.set_result(Matcher(LLMatcher(LLTokenizer("byte"), "")))
    wrong.set_exception(InvalidRequestError("constraint.regex", "is wrong"))
    assert isinstance(engine.results.end("wrong"), InvalidRequestError)
    engine.results.wait(lambda: engine.results.ends("slow"))
    assert engine.call_check() == 0


def test_abort_while_a_constraint_is_compiled(engine: Engine, held: HeldCompiler) -> None:
    future = submit_constrained(engine, held, "r")
    engine.loop.submit(constrained("r", "again"))
    assert isinstance(engine.results.end("r"), DuplicateRequestError)
    engine.loop.abort("r")
    engine.results.wait(lambda: len(engine.results.ends("r")) == 2)
    assert engine.results.ends("r")[1] is FinishReason.ABORT
    future.set_exception(InvalidRequestError("constraint.regex", "is wrong"))
    engine.loop.submit(request("later"))
    engine.results.end("later")
    assert len(engine.results.ends("r")) == 2, "an aborted request ends once"


def test_stop_while_a_constraint_is_compiled(engine: Engine, held: HeldCompiler) -> None:
    future = submit_constrained(engine, held, "r")
    assert engine.loop.stop(TIMEOUT_S)
    assert "stopped before" in str(engine.results.end("r"))
    future.set_exception(InvalidRequestError("constraint.regex", "is wrong"))


def test_only_so_many_constraints_wait_to_be_compiled(engine: Engine, held: HeldCompiler) -> None:
    for number in range(257):
        engine.loop.submit(constrained(str(number), str(number)))
    assert isinstance(engine.results.end("256"), QueueFullError)
    assert len(held.futures) == 256


def test_without_a_compiler_a_constraint_is_refused(engine: Engine) -> None:
    engine.loop.submit(constrained("r", "a"))
    error = engine.results.end("r")
    assert isinstance(error, InvalidRequestError)
    assert error.field == "constraint"
