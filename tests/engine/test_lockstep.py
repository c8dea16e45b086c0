"""One rank that steps with its group: what a failing step, a broken group and its own failing experts do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from engine.core import EngineCore, StepResult
from engine.errors import GroupBrokenError
from engine.loop import EngineLoop
from engine.parallel.exchange import ExpertExchange
from engine.parallel.group_member import GroupMember
from engine.parallel.lockstep import Lockstep
from engine.parallel.placement import ExpertPlacement
from engine.parallel.spreading import SpreadExperts
from engine.request import FinishReason, Request, StopConditions
from engine.waves import Ended, Frame, Standing, Started, WaveMember
from tests.engine.test_loop import Results
from tests.support.scripted_runner import VOCAB_SIZE, ScriptedRunner, continuation

NUM_LAYERS = 3
PROMPT = (1, 2, 3)


@dataclass
class ScriptedGroup:
    """A group of two whose other member does what this one does. Breaks when told to."""

    epoch: int = 1
    index: int = 0
    size: int = 2
    breaks_after: int | None = None  # exchanges
    others_work: bool = False
    broken: str = ""
    num_exchanges: int = 0

    def all_to_all(self, out: Tensor, rows: Tensor, received: list[int], sent: list[int]) -> None:
        self._check()
        self.num_exchanges += 1
        out.zero_()

    def maximum(self, values: tuple[int, ...]) -> tuple[int, ...]:
        self._check()
        has_work, no_pause = values
        return (max(has_work, self.others_work), no_pause)

    def interrupt(self, reason: str) -> None:
        self.broken = self.broken or reason

    @property
    def is_broken(self) -> bool:
        return bool(self.broken)

    def _check(self) -> None:
        if self.breaks_after is not None and self.num_exchanges >= self.breaks_after:
            self.broken = "a member was lost"
        if self.broken:
            raise GroupBrokenError(self.broken)


@dataclass
class Layer:
    """An expert layer; `compute` is what its experts do with rows of others."""

    exchange: ExpertExchange
    compute: Callable[[Tensor, list[int]], Tensor] = lambda rows, counts: rows
    num_served: int = 0

    def place(self, placement: ExpertPlacement) -> None:
        raise NotImplementedError

    def run(self) -> None:
        self.exchange(torch.zeros(0, 4), torch.zeros(4, dtype=torch.int64), self.compute)

    def serve(self) -> None:
        self.num_served += 1
        self.run()


@dataclass
class PlacedLayer:
    """An expert layer that only notes its placement, and fails once to get it."""

    placement: ExpertPlacement
    fails: bool = False

    def place(self, placement: ExpertPlacement) -> None:
        if self.fails:
            self.fails = False
            raise MemoryError
        self.placement = placement

    def serve(self) -> None:
        raise NotImplementedError


@dataclass
class Rank:
    """A loop over a scripted core whose every forward pass goes through three expert layers."""

    told: list[Frame] = field(default_factory=list)
    results: Results = field(default_factory=Results)
    fails_at_layer: int | None = None  # once

    def __post_init__(self) -> None:
        self.exchange = ExpertExchange(ExpertPlacement(0, 2))
        self.layers = [Layer(self.exchange) for _ in range(NUM_LAYERS)]
        self.lockstep = Lockstep(WaveMember(), self.exchange, self.layers, self.told.extend)
        self.runner = ScriptedRunner(num_blocks=64, block_size=4)
        self.runner.on_execute = lambda _: self._forward()
        self.core = EngineCore(self.runner, num_blocks=64, block_size=4, vocab_size=VOCAB_SIZE, max_model_len=200)

    def join(self, group: ScriptedGroup) -> None:
        assert self.lockstep.form(group.epoch, is_first=True)
        self.lockstep.formed(self.core, group)

    def add(self, request_id: str, num_tokens: int = 5) -> None:
        self.core.add(Request(request_id, PROMPT, stop=StopConditions(max_tokens=num_tokens)))

    def step(self) -> StepResult | None:
        self.lockstep.wake(self.core)
        return self.lockstep.step(self.core) if self.lockstep.running else None

    def run(self) -> list[int]:
        """Steps while the wave goes on; returns the tokens."""
        tokens: list[int] = []
        while self.lockstep.running:
            if (result := self.step()) is not None:
                tokens += [token_id for output in result.outputs for token_id in output.token_ids]
        return tokens

    def _forward(self) -> None:
        for index, layer in enumerate(self.layers):
            if self.fails_at_layer == index:
                self.fails_at_layer = None
                raise ValueError("no memory for this batch")
            layer.run()


def test_work_says_so_and_waits_for_the_head() -> None:
    rank, group = Rank(), ScriptedGroup()
    rank.add("a")
    rank.lockstep.connected(rank.core)
    assert rank.told == [Standing(0, 0, running=False, has_work=True)]
    rank.join(group)
    assert rank.step() is None, "it stepped in a wave that nobody has started"
    rank.lockstep.start(1, 0)
    assert rank.run() == continuation(PROMPT, 5)
    assert rank.told[-1:] == [Ended(1, 0, 5, paused=False)]
    assert group.num_exchanges == 5 * NUM_LAYERS * 3
    totals = rank.lockstep.totals
    assert (totals.steps, totals.dummy_steps) == (5, 0)
    # Of every exchange: the counts of the other member's two experts, as eight bytes each.
    assert totals.bytes_sent == 5 * NUM_LAYERS * 2 * 8
    rank.add("b")
    rank.step()
    assert rank.told[-1:] == [Started(1, 1)]


def test_a_rank_without_work_takes_part_in_every_exchange() -> None:
    rank, group = Rank(), ScriptedGroup(others_work=True)
    rank.join(group)
    rank.lockstep.start(1, 0)
    for _ in range(7):
        assert rank.step() is None
    assert rank.lockstep.totals.dummy_steps == 7
    assert [layer.num_served for layer in rank.layers] == [7] * NUM_LAYERS
    group.others_work = False
    rank.step()
    assert not rank.lockstep.running
    assert rank.told[-1] == Ended(1, 0, 7, paused=False)


def test_a_step_that_fails_half_way_does_not_keep_the_others_waiting() -> None:
    rank, group = Rank(fails_at_layer=1), ScriptedGroup()
    rank.join(group)
    loop = EngineLoop(rank.core, rank.results.deliver, rank.results.on_failure, lockstep=rank.lockstep)
    loop.start()
    loop.submit(Request("victim", PROMPT, stop=StopConditions(max_tokens=5)))
    loop.call(lambda core: rank.lockstep.start(1, 0)).result(10)
    assert rank.results.end("victim") is FinishReason.ERROR
    rank.results.wait(lambda: not rank.lockstep.running)
    assert [layer.num_served for layer in rank.layers] == [0, 1, 1]
    assert group.num_exchanges == NUM_LAYERS * 3
    loop.submit(Request("next", PROMPT, stop=StopConditions(max_tokens=5)))
    loop.call(lambda core: rank.lockstep.start(1, 1)).result(10)
    assert rank.results.end("next") is FinishReason.LENGTH
    assert rank.results.tokens("next") == continuation(PROMPT, 5)
    assert loop.stop(10)
    assert rank.results.failures == []


def test_a_broken_group_costs_no_request_anything() -> None:
    """It breaks in the first, the second and the third exchange of a layer, and in the vote; always in mid-answer."""
    for breaks_after in range(9, 9 + 3 * NUM_LAYERS):
        rank = Rank()
        rank.join(ScriptedGroup(breaks_after=breaks_after))
        rank.add("a", num_tokens=8)
        rank.lockstep.start(1, 0)
        tokens = rank.run()
        assert 0 < len(tokens) < 8
        assert rank.told[-1] == Standing(0, 0, running=False, has_work=True)
        assert rank.step() is None
        rank.join(ScriptedGroup(epoch=2))
        rank.lockstep.start(2, 0)
        assert tokens + rank.run() == continuation(PROMPT, 8), breaks_after
        rank.core.check()


def test_a_rank_that_waits_in_an_exchange_tells_a_new_head_at_once() -> None:
    """The engine thread waits for a member that has missed its start, and cannot be asked."""
    rank, group = Rank(), ScriptedGroup()
    waits, goes_on = threading.Event(), threading.Event()

    def wait(values: tuple[int, ...]) -> tuple[int, ...]:
        waits.set()
        assert goes_on.wait(10)
        return values

    group.maximum = wait  # type: ignore[method-assign]
    rank.join(group)
    loop = EngineLoop(rank.core, rank.results.deliver, rank.results.on_failure, lockstep=rank.lockstep)
    spread = SpreadExperts(rank.exchange, (), 4, torch.device("cpu"), "m")
    member = GroupMember(loop, rank.lockstep, spread, rank=0, host="127.0.0.1", on_listening=lambda *_: None)
    loop.start()
    try:
        loop.submit(Request("a", PROMPT, stop=StopConditions(max_tokens=5)))
        member.start(1, 0)
        assert waits.wait(10)
        num_told = len(rank.told)
        assert member.connected() == (Standing(1, 0, running=True, has_work=True),)
        assert len(rank.told) == num_told, "the engine thread has said so too"
    finally:
        goes_on.set()
    rank.results.wait(lambda: not rank.lockstep.running)
    assert member.connected() == (), "the engine thread says so, which has nothing else to do"
    rank.results.wait(lambda: rank.told[-1] == Standing(1, 1, running=False, has_work=False))
    assert loop.stop(10)


def test_a_failed_placing_leaves_the_old_placement() -> None:
    """And the next one puts all layers right, also one to the placement that was."""
    exchange = ExpertExchange(ExpertPlacement(0, 3))
    layers = [PlacedLayer(exchange.placement), PlacedLayer(exchange.placement, fails=True)]
    spread = SpreadExperts(exchange, tuple(layers), 6, torch.device("cpu"), "m")
    with pytest.raises(MemoryError):
        spread.place(ExpertPlacement(0, 2))
    assert exchange.placement == ExpertPlacement(0, 3)
    spread.place(ExpertPlacement(0, 3))
    assert [layer.placement for layer in layers] == [exchange.placement] * 2 == [ExpertPlacement(0, 3)] * 2
    spread.place(ExpertPlacement(0, 2))
    assert [layer.placement for layer in layers] == [exchange.placement] * 2 == [ExpertPlacement(0, 2)] * 2


def test_a_group_that_the_head_ends_is_left_at_once() -> None:
    rank, group = Rank(), ScriptedGroup(others_work=True)
    rank.join(group)
    rank.lockstep.start(1, 0)
    rank.step()
    rank.lockstep.interrupt(2, "of another group")
    assert not group.is_broken
    rank.lockstep.interrupt(1, "a member has left it")
    assert group.is_broken
    rank.step()
    rank.lockstep.disband(rank.core, 1)
    assert rank.told[-1] == Standing(0, 0, running=False, has_work=False)
    assert rank.exchange.group is None


def test_a_group_that_was_formed_too_late_is_not_entered() -> None:
    rank = Rank()
    assert rank.lockstep.form(1, is_first=False)
    rank.lockstep.disband(rank.core, 1)
    rank.lockstep.formed(rank.core, ScriptedGroup(epoch=1))
    assert rank.exchange.group is None
    assert rank.lockstep.form(2, is_first=False)
    assert not rank.lockstep.form(1, is_first=False), "an older group in place of a newer one"
    rank.lockstep.failed(rank.core, 2)
    assert rank.told[-1] == Standing(0, 0, running=False, has_work=False)


def test_own_experts_that_fail_end_the_process() -> None:
    """It would break the next group in the same way; its requests go on elsewhere."""

    def fail(rows: Tensor, counts: list[int]) -> Tensor:
        raise RuntimeError("the device is lost")

    rank, group = Rank(), ScriptedGroup()
    rank.layers[1].compute = fail
    rank.join(group)
    loop = EngineLoop(rank.core, rank.results.deliver, rank.results.on_failure, lockstep=rank.lockstep)
    loop.start()
    loop.submit(Request("a", PROMPT, stop=StopConditions(max_tokens=5)))
    loop.call(lambda core: rank.lockstep.start(1, 0)).result(10)
    rank.results.wait(lambda: rank.results.failures)
    assert "the experts of this rank failed: RuntimeError: the device is lost" in str(rank.results.failures[0])
    assert group.broken
    assert rank.results.end("a") is FinishReason.ERROR


def test_a_pause_stops_the_group_with_work_left() -> None:
    rank, group = Rank(), ScriptedGroup()
    rank.join(group)
    rank.add("a", num_tokens=8)
    rank.lockstep.start(1, 0)
    first = rank.step()
    assert first is not None
    rank.lockstep.pause(1, 0)
    assert rank.step() is None
    assert not rank.lockstep.running
    assert rank.told[-2:] == [Ended(1, 0, 1, paused=True), Started(1, 1)]
    rank.lockstep.start(1, 1)
    assert [*first.outputs[0].token_ids, *rank.run()] == continuation(PROMPT, 8)
