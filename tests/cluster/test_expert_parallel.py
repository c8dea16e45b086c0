"""`muster serve --enable-expert-parallel`: a group of processes that answers on while it regroups."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.support.cluster import Cluster
from tests.support.tiny_model import tiny_config, write_huggingface_directory

PORTS = ("--port", "0", "--grpc-port", "0", "--data-parallel-rpc-port", "0")
NUM_TOKENS = 100


def _prompt(number: int) -> list[int]:
    return [(7 * number + 3 * position) % 256 for position in range(5 + number)]


def _ask(url: str, number: int, answers: dict[int, str], arrived: threading.Event | None = None) -> None:
    """Streams one answer; `arrived` is set with its tenth chunk."""
    body = {
        "model": "m", "prompt": _prompt(number), "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True,
        "stream": True,
    }  # fmt: skip
    text, num_chunks = "", 0
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                num_chunks += 1
                if num_chunks == 10 and arrived is not None:
                    arrived.set()
    answers[number] = text


def test_a_group_outlives_a_killed_rank(tmp_path: Path) -> None:
    directory = write_huggingface_directory(tmp_path / "m", tiny_config("mixtral"))
    flags = ("-dp", "2", "--enable-expert-parallel", "--dtype", "float32", "--max-model-len", "256")
    with Cluster(directory, *flags, *PORTS) as cluster:
        cluster.wait_until_ready()
        undisturbed: dict[int, str] = {}
        for number in range(4):
            _ask(cluster.url, number, undisturbed)
        answers: dict[int, str] = {}
        arrived = [threading.Event() for _ in range(4)]
        asking = [
            threading.Thread(target=_ask, args=(cluster.url, number, answers, arrived[number])) for number in range(4)
        ]
        for thread in asking:
            thread.start()
        for event in arrived:
            assert event.wait(60)
        epoch = cluster.roster().epoch
        cluster.engine(1).kill()
        for thread in asking:
            thread.join(60)
        assert answers == undisturbed
        assert cluster.roster().epoch > epoch
        metrics = cluster.wait_for(lambda: _metrics(cluster.url), "the ranks' counters")
        assert re.search(r'^muster:exchanged_bytes_total\{dp_rank="0"\} [1-9]', metrics, re.MULTILINE)
        assert cluster.stop() == 0


@pytest.mark.skipif(os.environ.get("MUSTER_NIGHTLY") != "1", reason="takes 18 s; `make nightly` runs it")
def test_a_group_goes_on_without_a_node_that_has_gone_and_takes_it_back(tmp_path: Path) -> None:
    directory = write_huggingface_directory(tmp_path / "m", tiny_config("qwen3_moe"))
    flags = ("-dp", "3", "--enable-expert-parallel", "--dtype", "float32", "--max-model-len", "256")
    here = (*flags, "-dpl", "2", "--shrink-expert-group-after", "1", *PORTS)
    with Cluster(directory, *here) as cluster, ExitStack() as elsewhere:
        port = cluster.head_target.rpartition(":")[2]
        there = (*flags, "--headless", "-dpr", "2", "-dpl", "1", "-dpa", "127.0.0.1", "--data-parallel-rpc-port", port)
        node = elsewhere.enter_context(Cluster(directory, *there))
        cluster.wait_until_ready()
        undisturbed: dict[int, str] = {}
        for number in range(3):
            _ask(cluster.url, number, undisturbed)
        answers: dict[int, str] = {}
        arrived = [threading.Event() for _ in range(3)]
        asking = [
            threading.Thread(target=_ask, args=(cluster.url, number, answers, arrived[number])) for number in range(3)
        ]
        for thread in asking:
            thread.start()
        for event in arrived:
            assert event.wait(60)
        node.send(signal.SIGKILL)
        for thread in asking:
            thread.join(60)
        assert answers == undisturbed
        assert cluster.state(2) == "LOST"
        assert "the lockstep group goes on without rank 2" in cluster.output
        epoch = cluster.roster().epoch
        elsewhere.enter_context(Cluster(directory, *there))
        cluster.wait_for(lambda: cluster.state(2) == "READY", "rank 2 back")
        assert cluster.roster().epoch > epoch
        answers.clear()
        for number in range(3):
            _ask(cluster.url, number, answers)
        assert answers == undisturbed


def _metrics(url: str) -> str:
    """Empty until the numbers of both ranks have come."""
    text = httpx.get(f"{url}/metrics").text
    return text if len(re.findall("^muster:group_steps_total", text, re.MULTILINE)) == 2 else ""
