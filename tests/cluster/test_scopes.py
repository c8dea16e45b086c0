"""Hybrid and external scope: each node's gateways serve that node's ranks."""

from __future__ import annotations

import pytest

from tests.cluster.answers import complete
from tests.cluster.conftest import Launch

pytestmark = pytest.mark.cluster


def test_hybrid_nodes_serve_their_own_ranks_under_global_numbers(launch: Launch) -> None:
    """T42: the header's number is the global rank at every gateway; one that does not serve it names those it does."""
    first = launch("-dp", "2", "-dpl", "1", "--data-parallel-hybrid-lb")
    port = first.head_target.rpartition(":")[2]
    join = ("-dp", "2", "-dpa", "127.0.0.1", "-dpp", port)
    second = launch(*join, "-dpl", "1", "-dpr", "1", "--data-parallel-hybrid-lb")
    first.wait_until_ready()
    second.wait_until_ready()
    assert complete(first, rank=0).status_code == 200
    assert complete(second, rank=1).status_code == 200
    refused = complete(second, rank=0)
    assert refused.status_code == 400
    assert "valid ranks are 1" in refused.json()["error"]["message"]
    assert [gateway["ranks"] for gateway in first.status()["roster"]["gateways"]] == [[0], [1]]
    assert second.stop() == 0
    assert complete(first).status_code == 200
    external = launch(*join, "--data-parallel-rank", "1")
    external.wait_until_ready()
    assert complete(external, rank=1).status_code == 200
    assert external.stop() == 0
    assert first.stop() == 0
