"""The wave logic of head and ranks in every interleaving, for three ranks and two gateways. See `tests.waves.group`."""

from __future__ import annotations

import pytest

from tests.waves.explore import explore
from tests.waves.group import Group
from tests.waves.state import Scenario

SCENARIOS = {
    "first requests to a group that forms": (Scenario(), False),
    "requests to a group that sleeps and wakes": (Scenario(requests=(2, 1)), True),
    "votes on every second step": (Scenario(requests=(2, 1), sync_interval=2), True),
    "a client leaves before its request is answered": (Scenario(departures=1), True),
    "an operator pauses and resumes": (Scenario(pauses=1), True),
    "a stream to the head breaks": (Scenario(breaks=1), True),
    "a stream breaks while the group forms": (Scenario(requests=(1,), breaks=1), False),
    "a rank cannot form the group": (Scenario(requests=(1,), failures=1), False),
    "a rank dies and is replaced": (Scenario(requests=(1,), crashes=1), True),
    "a rank freezes, which only the head notices": (Scenario(requests=(1,), crashes=1, breaks_show=False), True),
    "a rank dies and the others go on without it": (Scenario(requests=(1,), crashes=1, shrinks=True), True),
    "a rank freezes and the others go on without it": (
        Scenario(requests=(1,), crashes=1, breaks_show=False, shrinks=True),
        True,
    ),
    "the head is restarted": (Scenario(requests=(1,), head_restarts=1), True),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_request_waits_for_ever_no_rank_steps_alone_and_an_idle_group_sleeps(name: str) -> None:
    scenario, formed = SCENARIOS[name]
    group = Group(scenario)
    found = explore(group, group.start(formed=formed))
    print(f"{name}: {found.num_states} states, {found.num_moves} moves, {found.seconds:.1f} s")
    assert not found.problem, found.problem
    assert found.num_states > 500, "the scenario did not happen"
