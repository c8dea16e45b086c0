"""One process of a run: `python -m benchmarks.wires.side engine|gateway --wire … …`; a gateway prints its figures."""

from __future__ import annotations

import argparse
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.wires.landing import Landing
from benchmarks.wires.stamps import Stamps
from services.rpc import runtime

WIRES = ("muster", "zmq", "zmq-packed")


def _engine(given: argparse.Namespace, stamps: Stamps) -> Coroutine[Any, Any, None]:
    shape = {"num_requests": given.requests, "steps_per_s": given.steps_per_s, "seconds": given.seconds}
    if given.wire == "muster":
        runtime.poll_for_what_is_awaited()  # as engines do
        from benchmarks.wires import muster_wire

        return muster_wire.send(given.socket, stamps, **shape)
    from benchmarks.wires import zmq_wire

    return zmq_wire.send(given.socket, stamps, packed=given.wire == "zmq-packed", **shape)


async def _gateway(given: argparse.Namespace, stamps: Stamps) -> None:
    landing = Landing(given.requests, stamps, warm_up_s=given.warm_up)
    if given.wire == "muster":
        from benchmarks.wires import muster_wire

        await muster_wire.receive(given.socket, landing)
    else:
        from benchmarks.wires import zmq_wire

        await zmq_wire.receive(given.socket, landing, packed=given.wire == "zmq-packed")
    print(json.dumps(landing.arrivals().to_json()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("engine", "gateway"))
    parser.add_argument("--wire", choices=WIRES, required=True)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--stamps", type=Path, required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--steps-per-s", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--warm-up", type=float, default=0.5)
    given = parser.parse_args()
    stamps = Stamps(given.stamps)
    runtime.spare_collector()  # as the product's processes do; for all wires
    uvloop.run(_engine(given, stamps) if given.role == "engine" else _gateway(given, stamps))


if __name__ == "__main__":
    main()
