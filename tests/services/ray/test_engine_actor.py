"""The actor's own side, without Ray: a piece of Python for an engine."""

from __future__ import annotations

import inspect
import signal
import sys
from collections.abc import Iterator

import pytest

from services.launcher.plan import ChildSpec
from services.ray.engine_actor import EngineActor, News
from tests.support.waiting import wait_until


class Python(ChildSpec):
    @property
    def command(self) -> tuple[str, ...]:
        return (sys.executable, "-c", self.arguments[0])


@pytest.fixture
def actor() -> Iterator[EngineActor]:
    actor = EngineActor()
    yield actor
    if actor._child is not None:
        actor._on_loop(actor._child.stop(0.0))
    actor._loop.call_soon_threadsafe(actor._loop.stop)
    wait_until(lambda: not actor._loop.is_running(), "the end of the actor's loop")
    actor._loop.close()


def all_news(actor: EngineActor) -> News:
    """Until the end."""
    lines: list[str] = []
    while True:
        news = actor.news(len(lines), 20.0)
        lines += news.lines
        if news.exit_code is not None:
            return News(0, tuple(lines), news.exit_code)
        assert news.lines, "20 s without a word"


def test_every_line_and_the_exit_code_are_told(actor: EngineActor) -> None:
    assert actor.start(Python("engine 0", ("print('a'); print('b'); raise SystemExit(3)",)), frozenset()) > 0
    assert all_news(actor) == News(0, ("a", "b"), 3)


def test_nothing_new_is_an_answer_too(actor: EngineActor) -> None:
    actor.start(Python("engine 0", ("import time; time.sleep(60)",)), frozenset())
    assert actor.news(0, 0.0) == News(0, (), None)


def test_a_stop_is_heard_while_somebody_waits_for_news(actor: EngineActor) -> None:
    actor.start(Python("engine 0", ("import time; print('up'); time.sleep(60)",)), frozenset())
    assert actor.news(0, 20.0).lines == ("up",)
    actor.stop(20.0)
    assert actor.news(1, 20.0) == News(1, (), -signal.SIGTERM)


def test_the_nodes_own_variables_are_not_the_engines(actor: EngineActor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_PORT", "1")
    code = "import os; print(os.environ.get('MUSTER_PORT'), os.environ['MUSTER_PARENT_PID'] == str(os.getppid()))"
    actor.start(Python("engine 0", (code,)), frozenset({"MUSTER_PORT"}))
    assert all_news(actor).lines == ("None True",)


def test_no_method_is_a_coroutine() -> None:
    """Ray would run all of them on one loop then, so that a stop would not be heard while somebody waits for news."""
    assert [name for name, _ in inspect.getmembers(EngineActor, inspect.iscoroutinefunction)] == []
