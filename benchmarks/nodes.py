"""How long it takes until the loss of a node is noticed, and what clients see meanwhile.

    python -m benchmarks.nodes

Three nodes (network namespaces; root and iproute2 are needed) with one rank each of a tiny model, sixteen clients that
ask without a pause, heartbeats as `muster serve` has them by default. Every answer is compared with an undisturbed one.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.cluster.load import NUM_CLIENTS
from tests.cluster.trio import Trio
from tests.support.nodes import Nodes, unavailable
from tests.support.tiny_model import write_huggingface_directory

_HEADINGS = ("event", "rank LOST after", "longest pause of a client", "rank READY again after", "failed or different")


def measure(trio: Trio, name: str, happen: Callable[[], object], undo: Callable[[], object]) -> str:
    """One line of the table."""
    with trio.load() as load:
        started_s = time.monotonic()
        happen()
        trio.wait_for_state(1, "LOST")
        lost_s = time.monotonic() - started_s
        load.wait_for_answers(2 * NUM_CLIENTS)
        started_s = time.monotonic()
        undo()
        trio.wait_for_state(1, "READY")
        ready_s = time.monotonic() - started_s
        load.wait_for_answers(NUM_CLIENTS)
    failed = f"{len(load.problems)} of {load.num_answers}"
    return f"| {name} | {lost_s:.1f} s | {load.longest_pause_s:.1f} s | {ready_s:.1f} s | {failed} |"


def main() -> int:
    if reason := unavailable():
        print(f"no nodes: {reason}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as directory, Nodes("head", "left", "right") as nodes, ExitStack() as running:
        trio = Trio(write_huggingface_directory(Path(directory) / "tiny"), nodes, running, heartbeats=())
        left = nodes["left"]
        lines = [
            measure(trio, "cable pulled", left.cut, left.mend),
            measure(trio, "frames dropped in silence", left.silence, left.mend),
            measure(trio, "frozen", lambda: left.send(signal.SIGSTOP), lambda: left.send(signal.SIGCONT)),
            measure(trio, "all processes killed", lambda: left.send(signal.SIGKILL), trio.start_left),
        ]
    print("\n".join((f"| {' | '.join(_HEADINGS)} |", "|---|--:|--:|--:|--:|", *lines)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
