"""`muster conformance` against a real deployment, as people who write servers run it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cluster.conftest import Launch

pytestmark = pytest.mark.cluster


def conformance(*arguments: str) -> tuple[int, list[dict[str, str]]]:
    command = [sys.executable, "-m", "services.cli", "conformance", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_our_own_processes_keep_the_contract(launch: Launch) -> None:
    cluster = launch("-dp", "1")
    cluster.wait_until_ready()
    (rank,) = cluster.status()["roster"]["ranks"]
    code, found = conformance(rank["targets"][0])
    assert [finding for finding in found if finding["verdict"] != "kept"] == []
    assert code == 0
    assert len(found) > 25
    code, found = conformance(cluster.head_target, "--service", "head")
    assert {finding["name"] for finding in found if finding["verdict"] != "kept"} == {"lease"}  # no rank is free
    assert code == 0
    assert cluster.stop() == 0
