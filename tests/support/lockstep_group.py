"""Ranks of an expert-parallel group, in threads or in processes, and a head that is only its pure part."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from engine.build import build_engine
from engine.config import EngineConfig
from engine.core import StepResult
from engine.loop import EngineLoop
from engine.parallel.group_member import GroupMember
from engine.parallel.lockstep import Lockstep
from engine.request import PlainOutput, Request, TokenOutput
from engine.stats import LoadSnapshot
from engine.waves import Ended, Frames, Standing, Started, WaveMember
from services.head.waves import Disband, Form, Pause, Start, Waves

TIMEOUT_S = 60.0


class Listening(NamedTuple):
    """The first member awaits the others."""

    epoch: int
    target: str


class EngineRank:
    """One engine in this process."""

    def __init__(
        self, directory: Path, rank: int, size: int, host: str, tell: Callable[[object], None], **changes: Any
    ) -> None:
        """`tell` gets frames for the head and outputs of requests, on the engine thread."""
        values: dict[str, Any] = {
            "dtype": "float32",
            "num_threads": 1,
            "num_blocks": 128,
            "max_model_len": 256,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 32,
            "expert_parallel": True,
            "group_size": size,
            "group_index": rank,
        }
        built = build_engine(EngineConfig(directory, **(values | changes)))
        assert built.spread is not None
        self._tell = tell
        self.core = built.core
        self.exchange = built.spread.exchange
        self.lockstep = Lockstep(WaveMember(), self.exchange, built.spread.layers, lambda frames: _each(tell, frames))
        self.loop = EngineLoop(built.core, lambda result: _outputs(tell, result), lockstep=self.lockstep)
        self._member = GroupMember(
            self.loop,
            self.lockstep,
            built.spread,
            rank=rank,
            host=host,
            on_listening=lambda epoch, target: tell(Listening(epoch, target)),
        )
        self.loop.start()
        self.connect()

    def connect(self) -> None:
        """A stream to the head was opened."""
        _each(self._tell, self._member.connected())

    def hear(self, message: object) -> None:
        """A frame of the head, or a request."""
        match message:
            case Form(epoch, members, target):
                self._member.form(epoch, members, target)
            case Start(epoch, wave):
                self._member.start(epoch, wave)
            case Pause(epoch, wave):
                self._member.pause(epoch, wave)
            case Disband(epoch, reason):
                self._member.disband(epoch, reason)
            case Request():
                self.loop.submit(message)

    def stop(self) -> None:
        assert self.loop.stop(TIMEOUT_S), "the engine thread still runs"


class Group:
    """The head's part, and the test's view. `hear[rank]` passes a message to a rank."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.hear: list[Callable[[object], None]] = []
        self.waves = Waves(range(size))
        self.ended: list[Ended] = []
        self.tokens: dict[str, list[int]] = {}
        self.finished: set[str] = set()
        self.loads: dict[int, LoadSnapshot] = {}
        self._unheard: set[int] = set()  # ranks whose streams have ended
        self._changed = threading.Condition()
        self._heard: queue.SimpleQueue[tuple[int, object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="head", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tell(self, rank: int, message: object) -> None:
        """Something a rank says; any thread."""
        self._heard.put((rank, message))

    def gone(self, rank: int) -> None:
        """The rank's lease has ended."""
        self._heard.put((rank, "gone"))

    def go_on_without(self, rank: int) -> None:
        """The rank's lease has ended, and the group is allowed to do without it. It is not heard until `open`."""
        self._heard.put((rank, "excused"))

    def open(self, rank: int) -> None:
        """A new stream of a rank; its `connect` comes next."""
        self._heard.put((rank, "opened"))

    def submit(self, rank: int, request: Request) -> None:
        with self._changed:
            self.tokens.setdefault(request.request_id, [])
        self.hear[rank](request)

    def forget_requests(self) -> None:
        """All have finished; their names may be used again."""
        with self._changed:
            self.tokens.clear()
            self.finished.clear()

    def replace(self, directory: Path, rank: int, host: str = "127.0.0.1") -> RankProcess:
        """A new process for a rank whose process has ended."""
        process = RankProcess(self, directory, rank, self.size, host)
        self.hear[rank] = process.hear
        return process

    def wait(self, condition: Callable[[], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, TIMEOUT_S), "it did not come about in time"

    def wait_formed(self, epoch: int = 1) -> None:
        self.wait(lambda: self.waves.is_formed and self.waves.epoch >= epoch)

    def wait_idle(self) -> None:
        self.wait(lambda: self.waves.is_idle)

    def close(self) -> None:
        self._heard.put(None)
        self._thread.join(TIMEOUT_S)

    def _run(self) -> None:
        while (item := self._heard.get()) is not None:
            with self._changed:
                for to, frame in self._take(*item):
                    self.hear[to](frame)
                self._changed.notify_all()

    def _take(self, rank: int, message: object) -> Any:
        waves = self.waves
        match message:
            case "gone":
                return waves.gone(rank)
            case "excused":
                self._unheard.add(rank)
                return (*waves.gone(rank), *waves.excuse(rank))
            case "opened":
                self._unheard.discard(rank)
            case Standing() | Listening() | Started() | Ended() if rank in self._unheard:
                return ()
            case Standing(epoch, wave, running, has_work):
                return waves.stands(rank, epoch, wave, running=running, has_work=has_work)
            case Listening(epoch, target):
                return waves.listens(rank, epoch, target)
            case Started(epoch, wave):
                return waves.started(rank, epoch, wave)
            case Ended(epoch, wave):
                self.ended.append(message)
                return waves.ended(rank, epoch, wave)
            case TokenOutput() | PlainOutput():
                self.tokens[message.request_id] += message.token_ids
                if message.finish_reason is not None:
                    self.finished.add(message.request_id)
            case LoadSnapshot():
                self.loads[rank] = message
        return ()


def _each(tell: Callable[[object], None], frames: Frames) -> None:
    for frame in frames:
        tell(frame)


def _outputs(tell: Callable[[object], None], result: StepResult) -> None:
    for output in result.outputs:
        tell(output)
    tell(result.stats.load)


@contextmanager
def group_of_threads(directory: Path, size: int, **changes: Any) -> Iterator[tuple[Group, list[EngineRank]]]:
    """All ranks in this process; the group is formed."""
    group = Group(size)
    ranks: list[EngineRank] = []
    try:
        for number in range(size):
            tell = partial(group.tell, number)
            ranks.append(EngineRank(directory, number, size, "127.0.0.1", tell, **changes))
        group.hear = [rank.hear for rank in ranks]
        group.start()
        group.wait_formed()
        yield group, ranks
    finally:
        for rank in ranks:
            rank.stop()
        group.close()


class RankProcess:
    """One rank in a process of its own."""

    def __init__(self, group: Group, directory: Path, rank: int, size: int, host: str) -> None:
        self._group, self._rank = group, rank
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, directory, rank, size, host), daemon=True)
        self.process.start()
        theirs.close()
        self._reader = threading.Thread(target=self._read, args=(group, rank), daemon=True)
        self._reader.start()

    def hear(self, message: object) -> None:
        try:
            self._ours.send(message)
        except OSError:  # it was killed
            return

    def end(self, signal_number: int) -> None:
        """By a signal: SIGKILL, or SIGSTOP, after which its lease expires and somebody kills it. Then it is gone."""
        pid = self.process.pid
        assert pid is not None
        os.kill(pid, signal_number)
        if signal_number == signal.SIGSTOP:
            self._group.gone(self._rank)
            self._group.wait(lambda: not self._group.waves.is_formed)
            self.process.kill()
        self.process.join()
        self._reader.join(TIMEOUT_S)
        self._group.wait(lambda: not self._group.waves.is_formed)

    def stop(self) -> None:
        self.hear("stop")
        self.process.join(TIMEOUT_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
            raise AssertionError("a rank did not stop")
        self._reader.join(TIMEOUT_S)
        self._ours.close()

    def _read(self, group: Group, rank: int) -> None:
        try:
            while True:
                group.tell(rank, self._ours.recv())
        except (EOFError, OSError):
            group.gone(rank)


def _serve(connection: Connection, directory: Path, rank: int, size: int, host: str) -> None:
    lock = threading.Lock()

    def tell(message: object) -> None:
        with lock:
            connection.send(message)

    engine = EngineRank(directory, rank, size, host, tell)
    try:
        while (message := connection.recv()) != "stop":
            engine.hear(message)
    except EOFError:  # the test has died
        pass
    engine.stop()


@contextmanager
def group_of_processes(
    directory: Path, size: int, host: str = "127.0.0.1"
) -> Iterator[tuple[Group, list[RankProcess]]]:
    """Each rank in its own process; the group is formed."""
    group = Group(size)
    processes = [RankProcess(group, directory, rank, size, host) for rank in range(size)]
    group.hear = [process.hear for process in processes]
    try:
        group.start()
        group.wait_formed()
        yield group, processes
    finally:
        for process in processes:
            process.stop()
        group.close()


def pause_between(generator: Any, longest_s: float) -> None:
    """A gap between two arrivals, as a part of what is tested and not to wait for anything."""
    time.sleep(generator.random() * longest_s)
