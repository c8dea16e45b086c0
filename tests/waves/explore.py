"""Every state that a group can get into, and what has to be true of all of them.

`explore` walks breadth first, so that the trace to a violation is a shortest one. Beyond what `Group` itself forbids it
proves, for every state reached:

- From it, a state can be reached in which every request was answered, all ranks sleep and nothing is under way. As
  every message that was sent arrives and every rank that can go on does, the group gets there: no request waits for
  ever, no rank waits alone in an exchange for ever, and an idle group goes to sleep.
- Once everything that was said is heard, the head knows of a group that runs.
- Where the group may go on without ranks that are gone, the same holds of those that are left, if nobody comes back.
- If the operator wants a pause, the group can get to stand still without the operator doing anything, and once it
  stands still it does so until the pause is taken back.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from tests.waves.group import REPLACED, RESUME, Group
from tests.waves.state import State, Violation

_NO_KIND, _OTHER, _RESUMES, _REPLACES = range(4)


def _kind(label: str) -> int:
    if label == RESUME:
        return _RESUMES
    return _REPLACES if label.startswith(REPLACED) else _OTHER


@dataclass(frozen=True)
class Found:
    """What was walked, and what was wrong; `problem` is empty when nothing was."""

    num_states: int
    num_moves: int
    seconds: float
    problem: str = ""


class _Walk:
    def __init__(self, group: Group, max_states: int) -> None:
        self.group = group
        self.max_states = max_states
        self.states: list[State] = []
        self.numbers: dict[State, int] = {}
        self.parents: list[tuple[int, str]] = []
        self.sources, self.targets = array("I"), array("I")
        self.kinds = bytearray()  # of the moves; see _kind

    def add(self, state: State, parent: int, label: str) -> int:
        number = self.numbers.get(state)
        if number is None:
            number = self.numbers[state] = len(self.states)
            self.states.append(state)
            self.parents.append((parent, label))
        return number

    def run(self, start: State) -> str:
        """What was wrong on the way, with its trace."""
        view = self.group.view
        self.add(start, -1, "start")
        number = 0
        while number < len(self.states):
            state = self.states[number]
            still = view.is_still(state)
            try:
                for label, after in self.group.successors(state):
                    target = self.add(after, number, label)
                    self.sources.append(number)
                    self.targets.append(target)
                    self.kinds.append(_kind(label))
                    if still and view.is_pausing(after) and not view.is_still(after):
                        return self.trace(target, "the group moves although it is paused")
            except Violation as violation:
                return self.trace(number, str(violation))
            if view.is_misjudged(state):
                return self.trace(number, "the head takes a group to be idle that runs")
            if len(self.states) > self.max_states:
                return self.trace(number, f"more than {self.max_states} states: something begins again and again")
            number += 1
        return ""

    def reach(self, goal: Callable[[State], bool], *, without: int = _NO_KIND) -> bytearray:
        """For each state, whether one for which `goal` holds can be reached from it, without moves of a kind."""
        before: list[list[int]] = [[] for _ in self.states]
        for source, target, kind in zip(self.sources, self.targets, self.kinds, strict=True):
            if kind != without:
                before[target].append(source)
        frontier = [number for number, state in enumerate(self.states) if goal(state)]
        reached = bytearray(len(self.states))
        for number in frontier:
            reached[number] = 1
        while frontier:
            for source in before[frontier.pop()]:
                if not reached[source]:
                    reached[source] = 1
                    frontier.append(source)
        return reached

    def trace(self, number: int, problem: str) -> str:
        labels, last = [], number
        while number >= 0:
            number, label = self.parents[number]
            labels.append(label)
        return f"{problem}\nafter: {', '.join(reversed(labels))}\n{self.group.view.describe(self.states[last])}"


def explore(group: Group, start: State, *, max_states: int = 2_000_000) -> Found:
    began = time.perf_counter()
    walk = _Walk(group, max_states)
    was_enabled = gc.isenabled()
    gc.disable()  # nothing here is in a cycle, and looking for some takes most of the time
    try:
        problem = walk.run(start) or _unreached(walk)
    finally:
        if was_enabled:
            gc.enable()
    return Found(len(walk.states), len(walk.sources), time.perf_counter() - began, problem)


def _unreached(walk: _Walk) -> str:
    view = walk.group.view
    good = walk.reach(view.is_good)
    for number, reached in enumerate(good):
        if not reached:
            return walk.trace(number, "the group never comes to rest with every request answered")
    if walk.group.scenario.shrinks:
        served = walk.reach(
            lambda state: view.is_good(state) or view.is_good_without_the_dead(state), without=_REPLACES
        )
        for number, reached in enumerate(served):
            if not reached:
                return walk.trace(number, "the group never serves without a rank that stays away")
    if any(view.is_pausing(state) for state in walk.states):
        still = walk.reach(view.is_still, without=_RESUMES)
        for number, state in enumerate(walk.states):
            if view.is_pausing(state) and not still[number]:
                return walk.trace(number, "the group never stands still although it is asked to")
    return ""
