"""An engine that is written in another language, beside two of ours: it keeps the contract, serves, and may die."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import httpx
import pytest
from muster import v1 as wire

from tests.cluster.answers import StreamedAnswer, complete
from tests.cluster.conftest import FLAGS
from tests.cluster.test_conformance import conformance
from tests.support.cluster import Cluster
from tests.support.examples import ForeignEngine, build

pytestmark = pytest.mark.cluster

FOREIGN = 2
TIMEOUT_S = 30.0


class Deployment:
    """Ranks 0 and 1 are ours, rank 2 is foreign."""

    def __init__(self, cluster: Cluster, running: ExitStack) -> None:
        self.cluster = cluster
        self._running = running
        self.start_foreign()
        cluster.wait_until_ready()

    def start_foreign(self) -> None:
        self.foreign = self._running.enter_context(ForeignEngine(self.cluster.head_target, FOREIGN))
        self.foreign.wait_for_output(f"serving as rank {FOREIGN}")

    def wait_for_state(self, state: str) -> None:
        self.cluster.wait_for(lambda: self.cluster.state(FOREIGN) == state, f"rank {FOREIGN} {state}")

    def entry(self) -> wire.RankEntry:
        return self.cluster.roster().ranks[FOREIGN]

    def num_running(self) -> int:
        with grpc.insecure_channel(self.foreign.target) as channel:
            status = wire.EngineServiceStub(channel).GetStatus(wire.GetStatusRequest(), timeout=TIMEOUT_S)
        return int(status.load.running)

    def ids_after(self, prompt: list[int], num_tokens: int) -> list[int]:
        """What rank 2 says, asked through the gateway."""
        options = wire.GenerationOptions(
            sampling=wire.SamplingParams(temperature=0),
            conditions=wire.StopConditions(max_tokens=num_tokens, ignore_eos=True),
            rank=FOREIGN,
            return_token_ids=True,
        )
        request = wire.CompleteRequest(token_ids=wire.TokenSequence(token_ids=prompt), options=options)
        with grpc.insecure_channel(self.cluster.grpc_target) as channel:
            answers = wire.InferenceServiceStub(channel).Complete(request, timeout=TIMEOUT_S)
            return [token_id for answer in answers for token_id in answer.delta.token_ids]

    def num_continued(self) -> float:
        """Answers that a loss of rank 2 interrupted and another rank went on with."""
        lines = httpx.get(f"{self.cluster.url}/metrics", timeout=TIMEOUT_S).text.splitlines()
        counts = [line for line in lines if line.startswith("muster:request_continued_total{")]
        return sum(float(line.rpartition(" ")[2]) for line in counts if f'rank="{FOREIGN}"' in line)


@pytest.fixture(scope="module")
def deployment(tiny_model: Path) -> Iterator[Deployment]:
    build("foreign-engine-node")
    with ExitStack() as running:
        cluster = running.enter_context(Cluster(tiny_model, *FLAGS, "-dp", "3", "-dpl", "2"))
        yield Deployment(cluster, running)
        assert cluster.stop() == 0


def test_it_keeps_the_contract(deployment: Deployment) -> None:
    code, found = conformance(deployment.foreign.target)
    assert {finding["name"]: finding["seen"] for finding in found if finding["verdict"] == "broken"} == {}
    assert {finding["name"] for finding in found if finding["verdict"] == "not offered"} == {"logprobs", "stats"}
    assert code == 0
    assert len(found) > 25


def test_it_says_what_it_is_and_serves_through_our_gateway(deployment: Deployment) -> None:
    assert deployment.entry().model.architecture == "bigram"
    assert deployment.ids_after([5, 6, 7, 5], 6) == [6, 7, 5, 6, 7, 5]
    for rank in range(3):
        assert complete(deployment.cluster, rank=rank).status_code == 200
    refused = complete(deployment.cluster, rank=FOREIGN, logprobs=1)
    assert refused.status_code == 400
    assert "logprobs" in refused.json()["error"]["message"]


def test_its_load_is_seen(deployment: Deployment) -> None:
    before = deployment.ids_after([5, 6], 3)

    def load() -> wire.LoadStats | None:
        with grpc.insecure_channel(deployment.cluster.head_target) as channel:
            answer = wire.RendezvousServiceStub(channel).GetDeployment(wire.GetDeploymentRequest(), timeout=TIMEOUT_S)
        found = [load.stats for load in answer.loads if load.rank == FOREIGN]
        return found[0] if found and found[0].generated_tokens_total >= len(before) else None

    stats = deployment.cluster.wait_for(load, "load reports of rank 2")
    assert not stats.HasField("kv_usage")  # it has no KV cache: "cannot say", not zero


def test_it_drains_and_comes_back(deployment: Deployment) -> None:
    def operate(command: str) -> None:
        arguments = [command, str(FOREIGN), "--head-target", deployment.cluster.head_target]
        done = subprocess.run(
            [sys.executable, "-m", "services.cli", *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    with StreamedAnswer(deployment.cluster, num_tokens=400, rank=FOREIGN) as running:
        running.started.wait(TIMEOUT_S)
        operate("drain")
        assert running.join().finish_reason == "length"
    deployment.wait_for_state("DRAINING")
    assert complete(deployment.cluster).status_code == 200
    operate("undrain")
    deployment.wait_for_state("READY")
    assert len(deployment.ids_after([5, 6], 3)) == 3


def test_it_registers_again_after_the_head_died(deployment: Deployment) -> None:
    cluster, before = deployment.cluster, deployment.entry().incarnation
    (head,) = cluster.children("head")
    head.kill()
    assert len(deployment.ids_after([5, 6], 3)) == 3  # it serves on meanwhile
    cluster.wait_for(lambda: cluster.children("head") and cluster.state(FOREIGN) == "READY", "rank 2 READY again")
    assert deployment.entry().incarnation == before


def test_its_death_is_survived_and_it_comes_back(deployment: Deployment) -> None:
    """kill -9: answers that it gave go on from our ranks, or from its next process if they asked for it."""
    before = deployment.num_continued()
    with StreamedAnswer(deployment.cluster, num_tokens=900, rank=FOREIGN) as pinned, ExitStack() as answers:
        streams = [
            answers.enter_context(StreamedAnswer(deployment.cluster, num_tokens=900, prompt=f"Number {number}"))
            for number in range(9)
        ]
        pinned.started.wait(TIMEOUT_S)
        deployment.cluster.wait_for(lambda: deployment.num_running() > 1, "a request on rank 2 that may go elsewhere")
        deployment.foreign.kill()
        for stream in streams:
            stream.join()
        assert [(stream.error, stream.finish_reason) for stream in streams] == [(None, "length")] * len(streams)
        assert deployment.num_continued() > before
        deployment.wait_for_state("LOST")
        assert [deployment.cluster.state(rank) for rank in range(2)] == ["READY"] * 2
        old = deployment.entry().incarnation
        deployment.start_foreign()
        deployment.wait_for_state("READY")
    assert (pinned.error, pinned.finish_reason) == (None, "length")
    assert deployment.entry().incarnation > old
    assert deployment.ids_after([5, 6, 7, 5], 3) == [6, 7, 5]


def test_it_leaves_in_order(deployment: Deployment) -> None:
    assert deployment.foreign.terminate() == 0
    deployment.wait_for_state("MISSING")
    assert complete(deployment.cluster).status_code == 200
