"""Mutated requests over all endpoints: `python -m benchmarks.fuzz [MODEL …]`.

Every request must be answered by a success or by an error that is the client's, in the shape of its API; no engine or
gateway may die, complain or grow. Exit code 1 when not.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from benchmarks.fuzz.campaign import Plan, run_campaign
from benchmarks.tiny_model import given_or_tiny


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="model and flags of muster serve; absent: a tiny random one", nargs="*")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    plan = Plan(given.requests, given.concurrency, given.seed)
    with given_or_tiny(given.model) as arguments:
        report = asyncio.run(run_campaign(plan, *arguments))
    print(report.text())
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
