"""Constrained answers, checked: `python -m benchmarks.structured [MODEL …]`.

Starts two ranks, has random JSON schemas, regexes and grammars answered at temperature 1, and checks every answer that
ended by itself: by the jsonschema library, by Python's regexes, by a recogniser of its own. Exit code 1 when not so.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from benchmarks.deployment import Deployment
from benchmarks.structured.survey import Plan, survey
from benchmarks.tiny_model import given_or_tiny

_FLAGS = ("-dp", "2", "--num-threads", "1", "--max-model-len", "1024")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.structured",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="model and flags of muster serve; absent: a tiny random one", nargs="*")
    parser.add_argument("--constraints", type=int, default=200, help="of each kind")
    parser.add_argument("--answers", type=int, default=5, help="of each constraint")
    parser.add_argument("--first-seed", type=int, default=0)
    given = parser.parse_args()
    plan = Plan(given.constraints, given.answers, first_seed=given.first_seed)
    with given_or_tiny(given.model) as arguments, Deployment(*arguments, *_FLAGS) as deployment:
        report = asyncio.run(survey(deployment.url, plan))
    print(report.text())
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
