"""Answers without a server, from real processes: no port is opened, and whatever dies costs no line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from services.offline.options import offline_run
from services.offline.runner import OfflineError, OfflineRunner
from services.offline.transport import OfflineTransport
from tests.cluster.answers import completion_body
from tests.support.naive_model import NaiveModel
from tests.support.tiny_model import TINY_CONFIG, tiny_state

pytestmark = pytest.mark.cluster

FLAGS = ("--dtype", "float32", "--max-model-len", "1024", "--num-blocks", "512", "--num-threads", "1")
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
DEADLINE_S = 60.0


def lines(numbers: Iterable[int], num_tokens: int = 8, **fields: Any) -> str:
    bodies = (
        (number, completion_body(num_tokens=num_tokens, prompt=f"Number {number}", **fields)) for number in numbers
    )
    return "".join(
        json.dumps({"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": body}) + "\n"
        for number, body in bodies
    )


def command(source: Path, target: Path, model: Path, *flags: str, resume: bool = False) -> list[str]:
    batch = [sys.executable, "-m", "services.cli", "run-batch", "-i", str(source), "-o", str(target)]
    return [*batch, *(["--resume"] if resume else []), "--", str(model), *FLAGS, *flags]


def results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def ranks_of(process: subprocess.Popen[Any]) -> list[psutil.Process]:
    return [child for child in psutil.Process(process.pid).children() if "offline-rank" in child.cmdline()]


def test_a_batch_runs_over_all_ranks_without_a_port(tiny_model: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(lines(range(8)) + lines([8], temperature=9) + "no json\n" + lines(range(9, 400), num_tokens=40))
    with subprocess.Popen(command(source, target, tiny_model, "-dp", "2"), stderr=subprocess.PIPE, text=True) as batch:
        wait_for(lambda: target.exists() and target.read_text().count("\n") > 20, "some results", batch)
        ranks = ranks_of(batch)
        assert len(ranks) == 2
        for process in (psutil.Process(batch.pid), *ranks):
            assert not process.net_connections("inet"), "a batch without a server has no sockets"
        ranks[0].kill()
        _, told = batch.communicate(timeout=DEADLINE_S)
    assert batch.returncode == 1, told  # two lines could not be answered
    assert "rank 0 ended (killed by SIGKILL)" in told
    assert "401 requests, 2 failed" in told
    found = results(target)
    ids = [*(f"r{number}" for number in range(9)), None, *(f"r{number}" for number in range(9, 400))]
    assert [result["custom_id"] for result in found] == ids
    assert found[8]["response"]["status_code"] == 400
    assert found[9]["error"]["code"] == "invalid_line"
    assert {r["response"]["status_code"] for number, r in enumerate(found) if number not in {8, 9}} == {200}
    assert not any(process.is_running() for process in ranks)


def test_an_interrupted_batch_ends_its_ranks_and_goes_on_later(tiny_model: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(lines(range(40), num_tokens=8) + lines(range(40, 80), num_tokens=900))
    with subprocess.Popen(command(source, target, tiny_model), stderr=subprocess.PIPE, text=True) as batch:
        wait_for(lambda: target.exists() and target.read_text().count("\n") >= 40, "the short answers", batch)
        ranks = ranks_of(batch)
        batch.send_signal(signal.SIGINT)
        _, told = batch.communicate(timeout=DEADLINE_S)
    assert batch.returncode == 130
    assert "interrupted; the same command with --resume goes on" in told
    assert not any(process.is_running() for process in ranks)
    before = results(target)
    assert [result["custom_id"] for result in before] == [f"r{number}" for number in range(len(before))]
    target.write_text(target.read_text() + '{"id":"batch_req_99","custom_id":"r7')  # as a killed run leaves it
    source.write_text(lines(range(40), num_tokens=8) + lines(range(40, 80), num_tokens=4))
    done = subprocess.run(command(source, target, tiny_model, resume=True), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"{80 - len(before)} requests in" in done.stderr
    after = results(target)
    assert after[: len(before)] == before
    assert [result["custom_id"] for result in after] == [f"r{number}" for number in range(80)]


def test_ranks_that_cannot_load_say_why(tiny_model: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(lines(range(2)))
    broken = command(source, target, tiny_model, "--device", "cuda")
    done = subprocess.run(broken, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "muster run-batch: rank 0 ended (exit code 1): cannot load the model: device: cuda" in done.stderr


def test_from_python(tiny_model: Path) -> None:
    naive = NaiveModel(TINY_CONFIG, tiny_state())
    prompts: list[str | list[int]] = ["The sky", list(b"is blue"), "x" * 5000, "Two"]
    flags: dict[str, Any] = {"dtype": "float32", "max_model_len": 1024, "num_blocks": 512, "num_threads": 1}
    with OfflineRunner(tiny_model, **flags) as runner:
        first, second, long, last = runner.complete(prompts, max_tokens=6, **GREEDY)
        for answer, prompt in ((first, b"The sky"), (second, b"is blue"), (last, b"Two")):
            assert answer.body["choices"][0]["token_ids"] == naive.generate(list(prompt), 6)
        assert long.status_code == 400
        with pytest.raises(ValueError, match="maximum context length is 1024"):
            _ = long.text
        (chat,) = runner.chat([[{"role": "user", "content": "Hello"}]], max_tokens=4, seed=1)
        assert chat.status_code == 200
        assert isinstance(chat.text, str)
        unfinished = runner.complete((f"{number}" for number in range(1000)), max_tokens=900, **GREEDY)
        del unfinished  # what is abandoned ends with the runner
    with pytest.raises(OfflineError):
        list(runner.complete(["after the end"]))
    with pytest.raises(ValueError, match="--max-model-len"):
        OfflineRunner(tiny_model, max_model_len=-1)


async def test_the_official_sdk_needs_no_server(tiny_model: Path) -> None:
    ranks = offline_run([str(tiny_model), *FLAGS], {}).ranks
    async with OfflineTransport(ranks, on_line=lambda name, line: None) as transport:
        http: Any = httpx.AsyncClient(transport=transport, base_url="http://offline/v1")
        client = openai.AsyncOpenAI(base_url="http://offline/v1", api_key="any", http_client=http, max_retries=0)
        assert [model.id async for model in client.models.list()] == ["tiny"]
        completion = await client.completions.create(model="tiny", prompt="The sky", max_tokens=3)
        assert completion.usage is not None
        assert completion.usage.prompt_tokens == 7
        with pytest.raises(openai.NotFoundError, match="'other'"):
            await client.completions.create(model="other", prompt="The sky")


def wait_for(condition: Any, what: str, process: subprocess.Popen[Any]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert process.poll() is None, f"ended before {what}: {process.stderr.read() if process.stderr else ''}"
        assert time.monotonic() < deadline, f"no {what} within {DEADLINE_S:g} s"
        time.sleep(0.02)
