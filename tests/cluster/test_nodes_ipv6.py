"""Two machines that know only IPv6: a head without ranks, and a headless node with two."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.answers import ask_rank
from tests.cluster.trio import HEARTBEATS, MODEL_FLAGS
from tests.support.cluster import Cluster
from tests.support.nodes import Nodes

pytestmark = pytest.mark.cluster


@pytest.fixture
def nodes(need_nodes: None) -> Iterator[Nodes]:
    with Nodes("head", "other", ipv6=True) as nodes:
        yield nodes


def test_a_head_without_ranks_serves_over_ipv6_and_its_engines_do_not_outlive_it_for_long(
    tiny_model: Path, nodes: Nodes
) -> None:
    address, other_address = nodes["head"].address, nodes["other"].address
    join = ("-dp", "2", "--data-parallel-address", f"[{address}]", *MODEL_FLAGS)
    with ExitStack() as running:
        head = running.enter_context(
            Cluster(tiny_model, *join, "-dpl", "0", "--host", address, *HEARTBEATS, node=nodes["head"])
        )
        # Without a start rank: the head gives the ranks out.
        other = running.enter_context(
            Cluster(tiny_model, *join, "-dpl", "2", "--headless", "--head-timeout", "1s", node=nodes["other"])
        )
        head.wait_until_ready()
        other.wait_for_output("all ranks of this node serve")
        assert head.url == f"http://[{address}]:8000"
        for rank in range(2):
            answer = nodes["head"].call(partial(ask_rank, head.url, rank))
            assert answer.status_code == 200, answer.text
        roster = head.roster()
        for entry in roster.ranks:
            assert entry.targets[-1].startswith(f"[{other_address}]:"), entry.targets
        (gateway,) = roster.gateways
        assert (gateway.http_url, gateway.grpc_target) == (f"http://[{address}]:8000", f"[{address}]:8001")
        status = [sys.executable, "-m", "services.cli", "status", "--head-target", f"[{address}]:29550"]
        shown = subprocess.run(nodes["other"].command(*status), capture_output=True, text=True, check=True).stdout
        assert "2 of 2" in shown, shown
        # The head's machine loses its power: nobody says goodbye.
        nodes["head"].cut()
        nodes["head"].send(signal.SIGKILL)
        assert other.wait() == 1
        assert "--head-timeout 1 s" in other.output
