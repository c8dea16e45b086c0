"""Mutated requests over all endpoints: `python -m benchmarks.fuzz MODEL [flags of muster serve]`.

Every request must be answered by a success or by an error that is the client's, in the shape of its API; no engine or
gateway may die, complain or grow. Exit code 1 when not.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from benchmarks.fuzz.campaign import Plan, run_campaign


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="model and flags of muster serve", nargs="+")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    report = asyncio.run(run_campaign(Plan(given.requests, given.concurrency, given.seed), *given.model))
    print(report.text())
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
