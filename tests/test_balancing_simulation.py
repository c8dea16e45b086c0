"""The benchmark that docs/balancing.md quotes: deterministic, and our choice is no worse than the others'."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmarks.balancing import SCENARIOS, Arrival, Scenario, simulate


def shortened(name: str) -> Scenario:
    (scenario,) = [scenario for scenario in SCENARIOS if scenario.name == name]

    def first_seconds(chance: random.Random) -> list[Arrival]:
        return [arrival for arrival in scenario.arrivals(chance) if arrival.at_s < 12.0]

    return replace(scenario, arrivals=first_seconds)


def test_equal_runs_are_equal() -> None:
    scenario = shortened("conversations")
    assert simulate(scenario, "Muster") == simulate(scenario, "Muster")


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("skewed lengths, snapshots 2 s old", ["power of two", "random"]),
        ("bursts of 240, eight gateways", ["power of two", "random"]),
        ("shared system prompts", ["4 × waiting + running", "power of two", "round-robin", "random"]),
        ("conversations", ["4 × waiting + running", "power of two", "round-robin", "random"]),
        ("skewed lengths, one rank at half speed", ["round-robin", "random"]),
    ],
)
def test_answers_come_sooner_than_with_the_others(name: str, others: list[str]) -> None:
    scenario = shortened(name)
    ours = simulate(scenario, "Muster")
    for other in others:
        assert ours.mean_total_s < simulate(scenario, other).mean_total_s, other


def test_affinity_finds_what_others_compute_again() -> None:
    scenario = shortened("conversations")
    assert simulate(scenario, "Muster").hit_rate > 1.5 * simulate(scenario, "Muster, no affinity").hit_rate
