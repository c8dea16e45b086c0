"""What operators do to a running deployment, and that its users do not notice."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.cluster.answers import complete, completion_body
from tests.cluster.conftest import Launch
from tests.support.cluster import Cluster

pytestmark = pytest.mark.cluster


def muster(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.cli", *arguments, "--head-target", cluster.head_target]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


class Load:
    """Clients that ask one completion after another; every answer must be the whole one."""

    def __init__(self, url: str, expected: str, num_tokens: int) -> None:
        self.failures: list[str] = []
        self.num_answers = 0
        self._url = url
        self._expected = expected
        self._body = completion_body(num_tokens=num_tokens)
        self._stop = threading.Event()
        self._lock = threading.Lock()

    @contextmanager
    def running(self, num_clients: int) -> Iterator[None]:
        threads = [threading.Thread(target=self._ask, name="load") for _ in range(num_clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(60)

    def _ask(self) -> None:
        with httpx.Client(timeout=60) as client:
            while not self._stop.is_set():
                failure = self._ask_once(client)
                with self._lock:
                    self.num_answers += 1
                    if failure:
                        self.failures.append(failure)

    def _ask_once(self, client: httpx.Client) -> str | None:
        try:
            response = client.post(f"{self._url}/v1/completions", json=self._body)
        except httpx.HTTPError as error:
            return repr(error)
        if response.status_code != 200:
            return f"{response.status_code} {response.text}"
        text = response.json()["choices"][0]["text"]
        return None if text == self._expected else f"another text: {text!r}"


def test_all_ranks_restart_one_after_another_without_a_failed_request(launch: Launch) -> None:
    cluster = launch("-dp", "2")
    cluster.wait_until_ready()
    expected = complete(cluster, num_tokens=60).json()["choices"][0]["text"]
    before = {cluster.engine(rank).pid for rank in range(2)}
    load = Load(cluster.url, expected, 60)
    with load.running(4):
        done = muster(cluster, "restart", "all")
        answers_meanwhile = load.num_answers
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["rank 0", "rank 1"]
    assert load.failures == []
    assert answers_meanwhile > 0
    assert before.isdisjoint({cluster.engine(rank).pid for rank in range(2)})
    cluster.wait_for_output("engine 0 was told to restart")
    assert [entry["state"] for entry in cluster.status()["roster"]["ranks"]] == ["RANK_STATE_READY"] * 2
    assert cluster.stop() == 0


def test_ranks_are_told_through_the_head_what_to_log_and_to_forget(launch: Launch) -> None:
    cluster = launch("-dp", "2")
    cluster.wait_until_ready()
    done = muster(cluster, "log-level", "debug", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"rank 1: log level DEBUG .*\nhead: log level debug", done.stdout)
    for rank in (0, 1):
        assert complete(cluster, rank=rank, num_tokens=3, prompt="Twenty tokens of a prompt").status_code == 200
    line = cluster.wait_for_output(r"\[engine \d\].* DEBUG +request \S+ on rank \d.*")[0]
    assert re.search(r"\[engine 1\].* on rank 1: 25 prompt tokens \(0 cached\), 3 generated, [\d.]+ s, length$", line)
    assert "on rank 0: 25" not in cluster.output
    done = muster(cluster, "reset-prefix-cache", "all")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"rank (\d): forgot [1-9]\d* cached blocks", done.stdout) == ["0", "1"]
    assert muster(cluster, "log-level", "loud").returncode == 2
    assert cluster.stop() == 0


def test_a_drained_rank_gets_nothing_until_it_is_undrained(launch: Launch) -> None:
    cluster = launch("-dp", "2")
    cluster.wait_until_ready()
    done = muster(cluster, "drain", "1", "--timeout", "10")
    assert (done.returncode, done.stdout.startswith("rank 1: drained")) == (0, True), done.stdout + done.stderr
    (_, drained) = cluster.status()["roster"]["ranks"]
    assert (drained["state"], drained["reason"]) == ("RANK_STATE_DRAINING", "drained")
    refused = complete(cluster, rank=1)
    assert refused.status_code == 503
    assert complete(cluster).status_code == 200
    done = muster(cluster, "undrain", "all")
    assert done.returncode == 0, done.stdout + done.stderr
    cluster.wait_for(lambda: complete(cluster, rank=1).status_code == 200, "an answer of rank 1")
    assert muster(cluster, "drain", "7").returncode == 1
    assert cluster.stop() == 0
