"""A file of requests over all ranks, with a server of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.cluster.answers import completion_body
from tests.cluster.conftest import FLAGS

pytestmark = pytest.mark.cluster


def test_a_batch_starts_its_own_deployment_and_ends_it(tiny_model: Path, tmp_path: Path) -> None:
    lines = [
        {
            "custom_id": f"r{number}",
            "method": "POST",
            "url": "/v1/completions",
            "body": completion_body(num_tokens=8, prompt=f"Number {number}"),
        }
        for number in range(12)
    ]
    lines[4]["body"]["temperature"] = -1  # type: ignore[index]
    requests, results = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    requests.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, "-m", "services.cli", "run-batch", "-i", str(requests), "-o", str(results), "--"]
    serve = [str(tiny_model), *FLAGS, "-dp", "2", "--num-threads", "1", "--runtime-dir", str(tmp_path)]
    done = subprocess.run([*command, *serve], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr  # one line failed
    assert "12 requests, 1 failed" in done.stderr
    found = [json.loads(line) for line in results.read_text().splitlines()]
    assert [line["custom_id"] for line in found] == [f"r{number}" for number in range(12)]
    assert [line["response"]["status_code"] for line in found] == [200] * 4 + [400] + [200] * 7
    assert found[0]["response"]["body"]["usage"]["completion_tokens"] == 8
    assert not [process for process in psutil.process_iter() if _is_of(process, tmp_path)]


def _is_of(process: psutil.Process, directory: Path) -> bool:
    try:
        return any(str(directory) in argument for argument in process.cmdline())
    except psutil.Error:
        return False
