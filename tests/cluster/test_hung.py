"""Heads and gateways that hang: stopped, they neither answer nor die. Nightly, for a launcher waits at least 10 s."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import grpc
import psutil
import pytest
from muster import v1 as wire

from tests.cluster.answers import StreamedAnswer, complete
from tests.cluster.conftest import Launch
from tests.support.cluster import Cluster

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("MUSTER_NIGHTLY") != "1", reason="nightly"),
]

NUM_CONNECTIONS = 24


def test_a_hung_gateway_is_replaced(launch: Launch) -> None:
    cluster = launch("-dp", "2", "--api-server-count", "2")
    cluster.wait_until_ready()
    with ExitStack() as asking:
        answers = [asking.enter_context(StreamedAnswer(cluster, num_tokens=900)) for _ in range(8)]
        for answer in answers:
            assert answer.started.wait(30)
        hung = _with_fewest_clients(cluster)
        num_lost = len(_clients(hung))
        hung.suspend()
        for answer in answers:
            answer.join()
    # Those of the other one did not notice; those of the hung one were cut when it was ended, not kept for ever.
    assert sum(answer.finish_reason == "length" for answer in answers) >= len(answers) - num_lost
    cluster.wait_for_output(rf"WARNING gateway \d \(pid {hung.pid}\) hangs: no answer to \d+ health checks")
    cluster.wait_for_output(r"gateway \d ended \(killed by SIGKILL\); starting it again")
    cluster.wait_for(lambda: len(cluster.children("gateway")) == 2, "another gateway")
    with ThreadPoolExecutor(NUM_CONNECTIONS) as clients:
        assert list(clients.map(lambda _: _asks_rest(cluster), range(NUM_CONNECTIONS))) == [200] * NUM_CONNECTIONS
        assert list(clients.map(lambda _: _asks_grpc(cluster), range(NUM_CONNECTIONS))) == ["tiny"] * NUM_CONNECTIONS
    assert cluster.stop() == 0


def test_a_hung_head_is_replaced_while_serving_goes_on(launch: Launch) -> None:
    cluster = launch("-dp", "2")
    cluster.wait_until_ready()
    (head,) = cluster.children("head")
    head.suspend()
    while "head (pid" not in cluster.output:
        assert complete(cluster).status_code == 200
    cluster.wait_for_output(rf"WARNING head \(pid {head.pid}\) hangs")
    assert complete(cluster).status_code == 200
    cluster.wait_for(lambda: [cluster.state(rank) for rank in range(2)] == ["READY"] * 2, "both ranks registered again")
    assert complete(cluster).status_code == 200
    assert cluster.stop() == 0


def _clients(gateway: psutil.Process) -> list[int]:
    """The ports of those whose HTTP connections it has accepted."""
    return [c.raddr.port for c in gateway.net_connections("tcp") if c.raddr and c.status == psutil.CONN_ESTABLISHED]


def _with_fewest_clients(cluster: Cluster) -> psutil.Process:
    """But some: a gateway without any would prove nothing."""
    return min((each for each in cluster.children("gateway") if _clients(each)), key=lambda each: len(_clients(each)))


def _asks_rest(cluster: Cluster) -> int:
    return complete(cluster).status_code


def _asks_grpc(cluster: Cluster) -> str:
    options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
    with grpc.insecure_channel(cluster.grpc_target, options=options) as channel:
        models = wire.InferenceServiceStub(channel).ListModels(wire.ListModelsRequest(), timeout=30).models
    return models[0].served_model_names[0]
