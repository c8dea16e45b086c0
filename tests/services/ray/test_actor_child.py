"""An engine in an actor has the ways of a child process, whatever becomes of the actor; with actors of this process."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable

from services.launcher.plan import ChildSpec
from services.ray.actor_child import ActorChild
from services.ray.engine_actor import News, Whereabouts
from services.ray.errors import ActorGoneError, ActorUnreachableError, ClusterError
from services.ray.resources import RayNode
from services.version import __version__

NODE = RayNode("n1", "one", "192.0.2.7", 1, 1)
SPEC = ChildSpec("engine 1", ("engine", "MODEL"))
Answer = News | Exception


class Actor:
    """Tells what the test has written down, then waits for `stop` or for ever."""

    def __init__(self, *answers: Answer, placed: bool = True, start: Exception | None = None) -> None:
        self.answers = list(answers)
        self.placed = placed
        self.start_error = start
        self.version = __version__
        self.asked_after: list[int] = []
        self.arguments: tuple[str, ...] = ()
        self.stopped_with: list[float] = []
        self.num_dismissals = 0
        self._stopped = asyncio.Event()

    async def whereabouts(self) -> Whereabouts:
        if not self.placed:
            await asyncio.Event().wait()
        return Whereabouts("n1", "host-7", self.version)

    async def start(self, spec: ChildSpec, own_variables: frozenset[str]) -> int:
        if self.start_error is not None:
            raise self.start_error
        self.arguments = spec.arguments
        return 42

    async def news(self, after: int, wait_s: float) -> News:
        self.asked_after.append(after)
        if not self.answers:
            await self._stopped.wait()
            return News(after, ("bye",), 0)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stop(self, grace_s: float) -> None:
        self.stopped_with.append(grace_s)
        self._stopped.set()

    def dismiss(self) -> None:
        self.num_dismissals += 1


class Told:
    """A child, and everything it has told."""

    def __init__(self, actor: Actor, *, hire: Callable[[], Actor] | None = None) -> None:
        self.lines: list[str] = []
        self.errors: list[str] = []
        self.waits = threading.Event()
        self.placed_on: list[str] = []
        self.child = ActorChild(
            SPEC,
            hire or (lambda: actor),
            lambda node_id: NODE,
            frozenset(),
            on_line=self.lines.append,
            on_error=self.errors.append,
            on_waiting=self.waits.set,
            on_placed=lambda node: self.placed_on.append(node.name),
        )

    async def runs(self) -> None:
        async with asyncio.timeout(10):
            while self.child.process is None:  # noqa: ASYNC110  (it starts elsewhere)
                await asyncio.sleep(0.001)


async def test_lines_and_exit_code_are_those_of_the_engine() -> None:
    actor = Actor(News(0, ("a", "b"), None), News(2, (), None), News(2, ("c",), 3))
    told = Told(actor)
    assert await told.child.wait() == 3
    assert (told.lines, told.errors, told.placed_on) == (["a", "b", "c"], [], ["one"])
    assert actor.asked_after == [0, 2, 2]
    assert told.child.process == ("host-7", 42)
    assert actor.arguments == ("engine", "MODEL", "--host", "192.0.2.7", "--node-name", "one")
    assert actor.num_dismissals == 1, "the actor does not outlive its engine"


async def test_lines_that_the_actor_forgot_are_not_asked_for_again() -> None:
    actor = Actor(News(100, ("x",), None), News(101, (), 0))
    assert await Told(actor).child.wait() == 0
    assert actor.asked_after == [0, 101]


async def test_a_broken_connection_is_not_an_end() -> None:
    actor = Actor(News(0, ("a",), None), ActorUnreachableError("connection reset"), News(1, ("b",), 0))
    told = Told(actor)
    assert await told.child.wait() == 0
    assert (told.lines, told.errors) == (["a", "b"], [])


async def test_a_dead_actor_is_as_a_killed_process_and_says_why() -> None:
    actor = Actor(News(0, ("a",), None), ActorGoneError("The actor died because its node has died."))
    told = Told(actor)
    assert await told.child.wait() == -signal.SIGKILL
    assert told.errors == ["its Ray actor is gone: The actor died because its node has died."]
    assert actor.num_dismissals == 1


async def test_an_actor_that_could_never_come_is_a_failure() -> None:
    told = Told(Actor(start=ActorGoneError("No module named 'services'", can_come_again=False)))
    assert await told.child.wait() == 1


async def test_what_ray_cannot_do_is_tried_again_by_the_launcher() -> None:
    def hire() -> Actor:
        raise ClusterError("no connection")

    told = Told(Actor(), hire=hire)
    assert await told.child.wait() == -signal.SIGKILL
    assert told.errors == ["Ray could not run it: no connection"]


async def test_a_program_that_is_not_there_is_a_failure() -> None:
    told = Told(Actor(start=FileNotFoundError(2, "No such file or directory")))
    assert await told.child.wait() == 1
    assert "it could not be started on its Ray node" in told.errors[0]


async def test_stopping_lets_the_engine_say_goodbye() -> None:
    actor = Actor(News(0, ("a",), None))
    told = Told(actor)
    await told.runs()
    assert await told.child.stop(7.0) == 0
    assert (actor.stopped_with, told.lines) == ([7.0], ["a", "bye"])


async def test_what_waits_for_a_place_ends_at_once() -> None:
    actor = Actor(placed=False)
    told = Told(actor)
    assert await asyncio.to_thread(told.waits.wait, 20), "people are told that it waits"
    assert told.child.process is None
    assert await told.child.stop(3600.0) == -signal.SIGKILL
    assert (actor.stopped_with, actor.num_dismissals) == ([], 1)


async def test_killing_ends_one_that_never_answers() -> None:
    actor = Actor(News(0, ("a",), None))
    told = Told(actor)
    await told.runs()
    told.child.kill()
    assert await told.child.wait() == -signal.SIGKILL
    assert actor.num_dismissals == 1


async def test_another_version_on_the_node_is_said() -> None:
    actor = Actor(News(0, (), 0))
    actor.version = "0.0.1"
    told = Told(actor)
    assert await told.child.wait() == 0
    assert told.errors == [f"node one has Muster 0.0.1, this node {__version__}"]
