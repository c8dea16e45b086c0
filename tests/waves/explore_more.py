"""`python -m tests.waves.explore_more [MINUTES]`: several things go wrong in one run; a table line each."""

from __future__ import annotations

import sys
import time

from tests.waves.explore import explore
from tests.waves.group import Group
from tests.waves.state import Scenario

SCENARIOS = (
    Scenario(requests=(2, 2)),
    Scenario(requests=(2, 2), sync_interval=3),
    Scenario(requests=(1, 1), head_restarts=1),
    Scenario(requests=(1, 1), crashes=1),
    Scenario(requests=(1, 1), crashes=1, breaks_show=False),
    Scenario(requests=(1,), crashes=2),
    Scenario(requests=(1,), pauses=2),
    Scenario(requests=(1,), pauses=1, breaks=1),
    Scenario(requests=(1,), pauses=1, departures=1, sync_interval=2),
    Scenario(requests=(1,), pauses=1, crashes=1),
    Scenario(requests=(1,), breaks=2),
    Scenario(requests=(1,), crashes=1, breaks=1),
    Scenario(requests=(1,), crashes=1, head_restarts=1),
    Scenario(requests=(1,), head_restarts=1, breaks=1),
    Scenario(requests=(1,), crashes=1, failures=1),
    Scenario(requests=(1,), crashes=1, breaks=1, shrinks=True),
    Scenario(requests=(1,), crashes=1, head_restarts=1, shrinks=True),
    Scenario(requests=(1,), crashes=2, shrinks=True),
    Scenario(requests=(2, 1), pauses=1),
    Scenario(requests=(2, 1), breaks=1),
)


def main(limit_s: float) -> int:
    began, failed = time.monotonic(), False
    for scenario in SCENARIOS:
        if time.monotonic() - began > limit_s:
            print("the time is over")
            break
        group = Group(scenario)
        found = explore(group, group.start(), max_states=3_000_000)
        failed = failed or bool(found.problem)
        shown = {name: value for name, value in vars(scenario).items() if value != getattr(Scenario(), name)}
        shown["requests"] = scenario.requests
        words = ", ".join(f"{name} {value}" for name, value in shown.items())
        verdict = found.problem or "holds"
        print(f"| {words} | {found.num_states:,} | {found.num_moves:,} | {found.seconds:.0f} s | {verdict} |")
        sys.stdout.flush()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(60 * float(sys.argv[1]) if len(sys.argv) > 1 else float("inf")))
