from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from services.cli.batch_command import Tally
from services.cli.batch_lines import BatchReader, BatchRequest, BatchResult
from services.cli.batch_run import BatchLimits, BatchRun
from services.cli.main import main


def request_line(custom_id: str, **fields: Any) -> str:
    body = {"model": "tiny", "prompt": custom_id}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body, **fields})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 7: is not JSON"),
        ("[" * 100_000, "line 7: is not JSON"),
        ("[]", "line 7: is not a JSON object"),
        ("{}", "line 7: custom_id"),
        (request_line("a", method="GET"), "method: is 'GET'; give POST"),
        (request_line("a", url="/v1/embeddings"), "url: is '/v1/embeddings'; give /v1/chat/completions or"),
        (request_line("a", body=[]), "body: is missing"),
        (request_line("a", body={"stream": True}), "body.stream"),
    ],
)
def test_lines_that_cannot_be_sent_say_why(text: str, said: str) -> None:
    result = BatchReader().read(text, 7)
    assert isinstance(result, BatchResult)
    assert (result.error_code, result.succeeded) == ("invalid_line", False)
    assert said in result.error_message


def test_an_id_is_used_once() -> None:
    reader = BatchReader()
    assert isinstance(reader.read(request_line("a"), 1), BatchRequest)
    again = reader.read(request_line("a"), 2)
    assert isinstance(again, BatchResult)
    assert "used in line 1 too" in again.error_message


Handler = Callable[[httpx.Request], Any]


async def results(handler: Handler, lines: list[str], max_concurrent: int = 4) -> list[dict[str, Any]]:
    limits = BatchLimits(max_concurrent=max_concurrent, max_tries=3, first_pause_s=0.0)
    async with httpx.AsyncClient(transport=httpx.MockTransport(handler), base_url="http://test") as client:
        return [json.loads(result.line(number)) async for number, result in BatchRun(client, limits).results(lines)]


async def test_results_keep_the_inputs_order_whatever_the_answers() -> None:
    in_flight, most = 0, 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        number = int(json.loads(request.content)["prompt"])
        for _ in range(50 if number % 7 == 0 else 1):
            await asyncio.sleep(0)
        in_flight -= 1
        status = 400 if number == 5 else 200
        return httpx.Response(status, json={"number": number}, headers={"x-request-id": f"r{number}"})

    lines = [request_line(str(number)) for number in range(40)]
    lines[3:3] = ["", "no json"]
    found = await results(answer, lines)
    assert [line["custom_id"] for line in found] == ["0", "1", "2", None, *map(str, range(3, 40))]
    assert most == 4
    assert found[0] == {
        "id": "batch_req_1",
        "custom_id": "0",
        "response": {"status_code": 200, "request_id": "r0", "body": {"number": 0}},
        "error": None,
    }
    assert found[3]["error"]["code"] == "invalid_line"
    assert found[6]["response"]["status_code"] == 400


async def test_an_overloaded_server_is_asked_again_and_a_broken_one_told() -> None:
    tries: dict[str, int] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        name = json.loads(request.content)["prompt"]
        tries[name] = tries.get(name, 0) + 1
        if name == "gone":
            raise httpx.ConnectError("refused")
        if name == "full" or tries[name] < 3:
            return httpx.Response(429, json={})
        return httpx.Response(200, json={})

    found = await results(answer, [request_line(name) for name in ("busy", "full", "gone")])
    assert tries == {"busy": 3, "full": 3, "gone": 3}
    assert [line["response"] and line["response"]["status_code"] for line in found] == [200, 429, None]
    assert found[2]["error"] == {"code": "connection_error", "message": "ConnectError: refused"}


def test_flags_that_cannot_be(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["run-batch", "-o", "-"]) == 2
    assert "--input-file is missing" in capsys.readouterr().err
    assert main(["run-batch", "-i", "/nowhere/in.jsonl", "-o", "-"]) == 2
    assert "/nowhere/in.jsonl: No such file" in capsys.readouterr().err
    assert main(["run-batch", "-i", "-", "-o", "-", "--url", "http://x", "--", "m", "-dp", "2"]) == 2
    assert "(m -dp 2)" in capsys.readouterr().err


def test_a_failure_says_why_whoever_found_it() -> None:
    broken = BatchResult("a", error_code="invalid_line", error_message="line 4: is not JSON")
    refused = BatchResult("b", status_code=400, body={"error": {"message": "temperature: below 0"}})
    strange = BatchResult("c", status_code=502, body="<html>")
    assert [each.failure for each in (broken, refused, strange)] == [
        "line 4: is not JSON",
        "HTTP 400: temperature: below 0",
        "HTTP 502",
    ]


def test_the_first_failure_is_told_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally()
    tally.count(1, BatchResult("a", status_code=200))
    tally.count(3, BatchResult("c", error_code="invalid_line", error_message="line 3: is not JSON"))
    tally.count(4, BatchResult("b", status_code=404, body={"error": {"message": "no such model"}}))
    tally.tell(last=True)
    said = capsys.readouterr().err
    assert said.startswith("3 requests, 2 failed in ")
    assert said.endswith("the first failure is line 3: is not JSON; all of them are in the output\n")
