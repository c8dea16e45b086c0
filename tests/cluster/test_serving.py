"""Two engines behind one URL; what a person types first."""

from __future__ import annotations

import signal
import subprocess
import sys

import grpc
import httpx
import psutil
import pytest
from muster import v1 as wire

from tests.cluster.answers import complete
from tests.cluster.conftest import Launch
from tests.support.cluster import Cluster

pytestmark = pytest.mark.cluster


def muster(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.cli", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)


def test_two_engines_answer_and_ctrl_c_stops_everything(launch: Launch) -> None:
    cluster = launch("-dp", "2")
    cluster.wait_until_ready()
    answers = [complete(cluster, rank=rank) for rank in (0, 1)]
    assert [answer.status_code for answer in answers] == [200, 200]
    texts = [answer.json()["choices"][0]["text"] for answer in answers]
    assert texts[0] == texts[1] != ""
    check_status(cluster)
    check_chat(cluster)
    check_grpc(cluster)
    assert cluster.stop(signal.SIGINT) == 0
    assert "curl http://" in cluster.output
    assert "grpcurl -plaintext" in cluster.output


def check_status(cluster: Cluster) -> None:
    roster = cluster.status()["roster"]
    assert [entry["state"] for entry in roster["ranks"]] == ["RANK_STATE_READY"] * 2
    assert [entry["pid"] for entry in roster["ranks"]] == [cluster.engine(rank).pid for rank in (0, 1)]
    assert len(roster["gateways"]) == 1
    shown = muster("status", "--head-target", cluster.head_target)
    assert shown.returncode == 0
    assert "2 of 2 ranks ready" in shown.stdout


def check_chat(cluster: Cluster) -> None:
    asked = muster("chat", "--url", cluster.url, "--max-tokens", "5", "--temperature", "0", "Hello")
    assert asked.returncode == 0, asked.stderr
    piped = muster("chat", "--url", cluster.url, "--max-tokens", "5", "--temperature", "0", stdin="Hello\n")
    assert piped.stdout == asked.stdout
    assert piped.stdout.strip()
    refused = muster("chat", "--url", cluster.url, "--model", "other", "Hello")
    assert refused.returncode == 1
    assert "'other'" in refused.stderr


def check_grpc(cluster: Cluster) -> None:
    with grpc.insecure_channel(cluster.grpc_target) as channel:
        stub = wire.InferenceServiceStub(channel)
        request = wire.CompleteRequest(text="The sky")
        request.options.conditions.max_tokens = 4
        responses = list(stub.Complete(request, timeout=30))
    assert responses[-1].usage.completion_tokens == 4


def test_a_key_is_asked_for_everywhere(launch: Launch) -> None:
    cluster = launch("--api-key", "secret")
    cluster.wait_until_ready()
    assert complete(cluster).status_code == 401
    with grpc.insecure_channel(cluster.grpc_target) as channel:
        stub = wire.InferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            stub.ListModels(wire.ListModelsRequest(), timeout=30)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        key = (("authorization", "Bearer secret"),)
        models = stub.ListModels(wire.ListModelsRequest(), timeout=30, metadata=key).models
    assert [list(model.served_model_names) for model in models] == [["tiny"]]
    assert muster("chat", "--url", cluster.url, "--api-key", "secret", "--max-tokens", "2", "Hi").returncode == 0
    assert "secret" not in " ".join(word for process in cluster.children("gateway") for word in process.cmdline())
    assert cluster.stop() == 0


def test_two_gateways_share_the_ports_and_one_may_die(launch: Launch) -> None:
    cluster = launch("--api-server-count", "2")
    cluster.wait_until_ready()
    cluster.wait_for(lambda: len(cluster.status()["roster"]["gateways"]) == 2, "two gateways in the roster")
    first, second = cluster.children("gateway")
    first.kill()
    # Each answer comes over a new connection; the one who is starting again takes none before it can serve.
    assert [complete(cluster).status_code for _ in range(10)] == [200] * 10
    cluster.wait_for_output(r"gateway \d ended \(killed by SIGKILL\)")
    cluster.wait_for(lambda: len(cluster.status()["roster"]["gateways"]) == 2, "the gateway's return")
    second.kill()
    assert [complete(cluster).status_code for _ in range(10)] == [200] * 10
    assert cluster.stop() == 0


def test_every_gateway_shows_the_totals_of_all(launch: Launch) -> None:
    """T53: with several gateways behind one port, a scrape reaches any of them and must not count that one alone."""
    cluster = launch("-dp", "2", "--api-server-count", "3")
    cluster.wait_until_ready()
    cluster.wait_for(lambda: len(cluster.status()["roster"]["gateways"]) == 3, "three gateways in the roster")
    num_requests = 12
    for number in range(num_requests):
        assert complete(cluster, num_tokens=3, rank=number % 2).status_code == 200
    first = cluster.children("gateway")[0]
    by_gateway = {process.pid: scrape(cluster, process) for process in cluster.children("gateway")}
    assert len(by_gateway) == 3
    for totals in by_gateway.values():
        assert total(totals, "muster:request_success_total") == num_requests
        assert total(totals, "muster:e2e_request_latency_seconds_count") == num_requests
        assert total(totals, 'muster:http_requests_total{method="POST"') == num_requests
        assert total(totals, "muster:gateway_requests_open") == 0
        assert sum(name.startswith("muster:rank_attached{") for name in totals) == 3 * 2
    # Engines report once a second at the latest.
    generated = "muster:generation_tokens_total"
    cluster.wait_for(lambda: total(scrape(cluster, first), generated) == 3 * num_requests, "the engines' totals")
    first.kill()
    cluster.wait_for_output(r"gateway 0 ended \(killed by SIGKILL\)")
    cluster.wait_for(lambda: len(cluster.status()["roster"]["gateways"]) == 3, "the gateway's return")
    for process in cluster.children("gateway"):
        totals = scrape(cluster, process)
        assert total(totals, "muster:request_success_total") == num_requests, "counts went back with their gateway"
        assert sum(name.startswith("muster:rank_attached{") for name in totals) == 3 * 2, "the dead one's gauges stayed"
    assert cluster.stop() == 0


def scrape(cluster: Cluster, gateway: psutil.Process) -> dict[str, float]:
    """What this gateway's /metrics says: the others are stopped meanwhile, so that it takes the connection."""
    others = [process for process in cluster.children("gateway") if process.pid != gateway.pid]
    for process in others:
        process.suspend()
    try:
        text = httpx.get(f"{cluster.url}/metrics", timeout=30).text
    finally:
        for process in others:
            process.resume()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def total(totals: dict[str, float], prefix: str) -> float:
    return sum(value for name, value in totals.items() if name.startswith(prefix))
