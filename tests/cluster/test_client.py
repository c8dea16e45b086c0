"""muster.client against a real deployment: text, token ids on a chosen rank, watching, operating."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from muster import v1 as wire
from muster.client import AsyncClient, Client, FailedPreconditionError, InvalidRequestError, UnavailableError

from tests.cluster.conftest import FLAGS
from tests.support.cluster import Cluster

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cluster(tiny_model: Path) -> Iterator[Cluster]:
    with Cluster(tiny_model, *FLAGS, "-dp", "2") as cluster:
        cluster.wait_until_ready()
        yield cluster
        cluster.stop()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.grpc_target, head=cluster.head_target, timeout_s=30) as client:
        yield client


def test_text_and_token_ids_are_the_same_answer(client: Client) -> None:
    prompt = client.tokenize("What is gravity?")
    text = client.complete(prompt, max_tokens=12, temperature=0, ignore_eos=True, return_token_ids=True)
    tokens = client.generate(prompt, rank=1, max_tokens=12, temperature=0, ignore_eos=True, logprobs=2)
    assert tokens.token_ids == text.choices[0].token_ids
    assert (tokens.finish_reason, tokens.usage.completion_tokens, tokens.prompt.num_tokens) == ("length", 12, 16)
    assert [len(entry.top_token_ids) for entry in tokens.logprobs] == [2] * 12
    assert client.engine(1).status().rank == 1


def test_an_address_of_another_rank_is_noticed(client: Client, cluster: Cluster) -> None:
    engine = client.engine(1)
    engine._rank = 0  # as if rank 0 had been there when its address was asked for
    with pytest.raises(FailedPreconditionError) as caught:
        engine.generate([1, 2])
    assert (caught.value.reason, caught.value.metadata) == ("WRONG_RANK", {"rank": "1"})


def test_a_stream_that_is_left_ends_in_the_engine(client: Client, cluster: Cluster) -> None:
    engine = client.engine(0)
    with engine.generate_stream([1, 2, 3], max_tokens=900, ignore_eos=True) as stream:
        next(iter(stream))
    cluster.wait_for(lambda: engine.status().load.running == 0, "an idle engine")
    with pytest.raises(InvalidRequestError) as caught:
        engine.generate([10_000])
    assert caught.value.violations[0].field == "prompt_token_ids[0]"


def test_watching_and_operating(client: Client, cluster: Cluster) -> None:
    with client.watch_load(heartbeat_interval_s=0.1) as loads:
        assert any(snapshot.heartbeat for snapshot in loads)
    with client.watch_roster() as rosters:
        states = (roster.ranks[0].state for roster in rosters)
        assert next(states) == wire.RANK_STATE_READY
        (result,) = client.drain([0], timeout_s=10)
        assert (result.rank, result.code) == (0, 0)
        while next(states) != wire.RANK_STATE_DRAINING:
            pass
        hasty = Client(head=cluster.head_target, retries=False)
        with hasty, pytest.raises(UnavailableError) as caught:
            hasty.generate([1], rank=0)
        assert caught.value.reason == "ENGINE_DRAINING"
        client.undrain()
        while next(states) != wire.RANK_STATE_READY:
            pass
    assert set(client.load()) == {0, 1}
    assert [result.code for result in client.reset_prefix_cache()] == [0, 0]


def test_the_asynchronous_client_does_the_same(cluster: Cluster) -> None:
    async def talk() -> None:
        async with AsyncClient(cluster.grpc_target, head=cluster.head_target, timeout_s=30) as client:
            engine = await client.engine(1)
            one = await engine.generate([1, 2, 3], max_tokens=5, seed=3, ignore_eos=True)
            pieces = engine.generate_stream([1, 2, 3], max_tokens=5, seed=3, ignore_eos=True)
            assert one.token_ids == tuple([i async for piece in pieces for i in piece.token_ids])
            answers = await asyncio.gather(*(client.chat("Hi", max_tokens=4, ignore_eos=True) for _ in range(8)))
            assert {answer.usage.completion_tokens for answer in answers} == {4}
            async with client.watch_roster() as rosters:
                async for roster in rosters:
                    assert len(roster.ranks) == 2
                    break

    asyncio.run(talk())


def test_the_programs_of_the_page_run(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "client.md").read_text()
    text, tokens, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    program = (text + tokens).replace("127.0.0.1:8001", cluster.grpc_target)
    exec(program.replace("127.0.0.1:29550", cluster.head_target), {})
    said = capsys.readouterr().out
    # A load that was taken just before the answer ended still counts it.
    assert re.search(r"^\{0: [01], 1: [01]\}$", said, re.MULTILINE)
    assert "1 0 " in said
    cluster.wait_for(lambda: cluster.state(1) == "READY", "an undrained rank")


NIGHTLY = os.environ.get("MUSTER_NIGHTLY") == "1"


@pytest.mark.skipif(not NIGHTLY, reason="installs from the package index: make nightly")
def test_a_fresh_environment_with_nothing_but_the_client(cluster: Cluster, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", f"{ROOT}[client]"], check=True)
    listed = subprocess.run(
        [str(python), "-m", "pip", "list", "--format", "freeze"], check=True, stdout=subprocess.PIPE
    )
    names = {line.partition("==")[0].lower().replace("_", "-") for line in listed.stdout.decode().splitlines()}
    needed = {"muster", "grpcio", "protobuf", "googleapis-common-protos", "typing-extensions"}
    assert names - {"pip", "setuptools"} == needed
    program = f"""
from muster.client import Client
with Client({cluster.grpc_target!r}, head={cluster.head_target!r}) as client:
    print(client.chat("Hi", max_tokens=3, ignore_eos=True).usage.completion_tokens, sorted(client.load()))
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["3", "[0,", "1]"], done.stderr
    muster = subprocess.run(
        [str(python.parent / "muster"), "gateway"], env=environment, capture_output=True, text=True, check=False
    )
    assert muster.returncode == 2
    assert "install muster[cpu]" in muster.stderr
