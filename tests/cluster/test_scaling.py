"""Ranks come and go under load: nobody notices but the throughput."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.cluster.answers import complete
from tests.cluster.conftest import Launch
from tests.cluster.test_operations import Load, muster
from tests.support.cluster import Cluster

pytestmark = pytest.mark.cluster


def known_ranks(cluster: Cluster) -> list[int]:
    """Those that the gateway knows, in whatever state."""
    return sorted(rank["rank"] for rank in httpx.get(f"{cluster.url}/readyz", timeout=30).json()["ranks"])


def busy_ranks(cluster: Cluster) -> set[int]:
    """Those that have generated tokens."""
    loads = cluster.status()["loads"]
    return {load["rank"] for load in loads if int(load["stats"].get("generatedTokensTotal") or 0) > 0}


def test_one_rank_becomes_three_and_one_again_and_no_request_fails(launch: Launch) -> None:
    cluster = launch("-dp", "1", "--max-data-parallel-size", "3")
    cluster.wait_until_ready()
    load = Load(cluster.url, complete(cluster, num_tokens=60).json()["choices"][0]["text"], 60)
    with load.running(6):
        grown = muster(cluster, "scale", "3")
        assert grown.returncode == 0, grown.stdout + grown.stderr
        assert re.findall(r"^rank (\d): ready: pid \d+", grown.stdout, re.MULTILINE) == ["1", "2"]
        assert known_ranks(cluster) == [0, 1, 2]
        cluster.wait_for(lambda: busy_ranks(cluster) == {0, 1, 2}, "tokens of three ranks")
        shrunk = muster(cluster, "scale", "1")
        assert shrunk.returncode == 0, shrunk.stdout + shrunk.stderr
        assert shrunk.stdout.splitlines()[-1] == "1 rank now"
        cluster.wait_for(lambda: known_ranks(cluster) == [0], "a gateway that knows one rank")
        cluster.wait_for(lambda: len(cluster.children("engine")) == 1, "one engine process")
        num_answers = load.num_answers
        cluster.wait_for(lambda: load.num_answers > num_answers + 6, "answers of the rank that is left")
    assert load.failures == []
    a_head_that_dies_during_a_shrink_is_followed_by_one_that_knows_the_size(cluster)
    too_many = muster(cluster, "scale", "4")
    assert (too_many.returncode, "4 is not between 1 and 3" in too_many.stderr) == (1, True), too_many.stderr
    assert cluster.stop() == 0


def a_head_that_dies_during_a_shrink_is_followed_by_one_that_knows_the_size(cluster: Cluster) -> None:
    assert muster(cluster, "scale", "2").returncode == 0
    leaving, (head,) = cluster.engine(1), cluster.children("head")
    leaving.suspend()  # it gets the command and cannot obey yet
    with ThreadPoolExecutor(1) as pool:
        scaling = pool.submit(muster, cluster, "scale", "1")
        cluster.wait_for(lambda: cluster.roster().wanted_size == 1, "a head that wants one rank")
        head.kill()
        assert scaling.result().returncode == 1
    cluster.wait_for_output(r"head ended \(killed by SIGKILL\); starting it again")
    cluster.wait_for(lambda: [child for child in cluster.children("head") if child.pid != head.pid], "another head")
    leaving.resume()
    cluster.wait_for(lambda: len(cluster.children("engine")) == 1, "one engine process")
    again = muster(cluster, "scale", "1")
    assert (again.returncode, again.stdout) == (0, "1 rank now\n"), again.stdout + again.stderr


def test_a_rank_that_is_asked_for_during_the_start_comes_after_it(launch: Launch) -> None:
    cluster = launch("-dp", "1", "--max-data-parallel-size", "2")
    engine = cluster.wait_for(lambda: next(iter(cluster.children("engine")), None), "an engine process")
    engine.suspend()
    with ThreadPoolExecutor(1) as pool:
        scaling = pool.submit(muster, cluster, "scale", "2")
        assert cluster.head_target
        cluster.wait_for(lambda: cluster.roster().wanted_size == 2, "a head that wants two ranks")
        engine.resume()
        cluster.wait_until_ready()
        grown = scaling.result()
    assert grown.returncode == 0, grown.stdout + grown.stderr
    assert (cluster.state(0), cluster.state(1)) == ("READY", "READY")
    assert cluster.stop() == 0
