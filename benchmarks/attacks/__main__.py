"""One attacker as a process: `python -m benchmarks.attacks NAME --ports JSON --seconds N`; prints what it did."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
from collections.abc import Callable, Coroutine
from typing import Any

from benchmarks.attacks import calls, sockets
from benchmarks.attacks.targets import Attack, Port

ATTACKS: dict[str, Callable[[Attack], Coroutine[Any, Any, None]]] = {
    "random-bytes": sockets.random_bytes,
    "http1": sockets.http1,
    "broken-frames": sockets.broken_frames,
    "mutated-messages": calls.mutated_messages,
    "half-open": sockets.half_open,
    "never-reads": sockets.never_reads,
    "streams": sockets.streams,
    "watches": calls.watches,
    "huge": sockets.huge,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=ATTACKS)
    parser.add_argument("--ports", required=True, help="JSON: a list of Port")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    # An attacker's computing is another machine's: here it gets what nobody else wants.
    os.nice(19)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    ports = [
        Port(**{**port, "services": tuple(port["services"]), "methods": tuple(port["methods"])})
        for port in json.loads(given.ports)
    ]
    attack = Attack(ports, given.seconds, random.Random(f"{given.name} {given.seed}"))
    asyncio.run(ATTACKS[given.name](attack))
    print(json.dumps(attack.counts))


if __name__ == "__main__":
    main()
