"""What is asked, when, and how answers become figures."""

from __future__ import annotations

import itertools
import statistics

import pytest

from benchmarks.load.answer import Answer
from benchmarks.load.arrivals import poisson_schedule
from benchmarks.load.connection import Origin
from benchmarks.load.prompts import Prompts
from benchmarks.load.report import lines
from benchmarks.load.summary import Spread, percentile, summarize


def answer_of(times_s: list[float], num_tokens: int, *, due_s: float = 0.0, status: int = 200) -> Answer:
    """An answer whose text comes at these times; the clock is at the last one when it ends."""
    clock = itertools.chain(times_s, itertools.repeat(times_s[-1] if times_s else due_s))
    answer = Answer(due_s, lambda: next(clock))
    for _ in times_s:
        answer.receive(status, b'data: {"choices": [{"text": "x"}]}\n\n')
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": %d}}\n\n' % num_tokens
    answer.receive(status, usage + b"data: [DONE]\n\n")
    answer.finish(status)
    return answer


def test_percentiles_lie_between_their_neighbours() -> None:
    assert [percentile([1.0, 2.0, 3.0, 5.0], percent) for percent in (0, 50, 90, 100)] == [1.0, 2.5, 4.4, 5.0]
    assert percentile([7.0], 99) == 7.0
    assert Spread.of_seconds([0.003, 0.001, 0.002]) == Spread(2.0, 2.8, 2.98, 2.0)


def test_the_schedule_is_seeded_and_has_the_rate() -> None:
    schedule = poisson_schedule(20.0, 4000, "7")
    assert schedule == poisson_schedule(20.0, 4000, "7")
    assert schedule != poisson_schedule(20.0, 4000, "8")
    gaps = [later - sooner for sooner, later in itertools.pairwise(schedule)]
    assert schedule[0] == 0.0
    assert min(gaps) >= 0.0
    # An exponential distribution: its mean and its deviation are both 1 / rate.
    assert statistics.fmean(gaps) == pytest.approx(0.05, rel=0.05)
    assert statistics.pstdev(gaps) == pytest.approx(0.05, rel=0.05)


def test_prompts_share_nothing_unless_asked() -> None:
    prompts = Prompts("seed", 32)
    all_of_them = {prompts.prompt(point, index) for point in ("a", "b") for index in range(50)}
    others = {Prompts("seed 2", 32).prompt("a", index) for index in range(50)}
    begins = {" ".join(prompt.split()[:8]) for prompt in all_of_them | others}
    assert len(begins) == 150
    assert {len(prompt.split()) for prompt in all_of_them} == {32}
    assert prompts.prompt("a", 3) == Prompts("seed", 32).prompt("a", 3)


def test_prompts_share_the_beginning_that_was_asked_for() -> None:
    prompts = Prompts("seed", 32, num_shared_words=20)
    found = [prompts.prompt("a", index).split() for index in range(10)]
    assert len({tuple(words[:20]) for words in found}) == 1
    assert len({tuple(words[20:]) for words in found}) == 10


def test_latencies_count_from_when_a_request_was_due() -> None:
    answer = answer_of([1.5, 1.6, 2.0], 5, due_s=1.0)
    assert answer.error == ""
    assert answer.first_text_s == 0.5
    assert answer.gaps_s == pytest.approx([0.1, 0.4])
    assert answer.per_token_s == 0.125  # five tokens in three events
    assert answer.total_s == 1.0


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (b'{"error": {"message": "max_tokens"}}', 400, "HTTP 400"),
        (b'data: {"choices": [{"text": "x"}]}\n\n', 200, "truncated"),
        (b'data: {"choices": [{"text": "x"}]}\n\ndata: [DONE]\n\n', 200, "no usage"),
        (b'data: {"error": "engine lost"}\n\ndata: [DONE]\n\n', 200, "error event"),
        (b"data: nonsense\n\ndata: [DONE]\n\n", 200, "bad event"),
        (b'data: {"usage": {"prompt_tokens": 1, "completion_tokens": 4}}\n\ndata: [DONE]\n\n', 200, "no text"),
    ],
)
def test_what_is_no_complete_answer_is_an_error_of_its_kind(body: bytes, status: int, error: str) -> None:
    answer = Answer(0.0)
    answer.receive(status, body)
    answer.finish(status)
    assert answer.error == error


def test_a_point_counts_tokens_by_usage_and_errors_by_kind() -> None:
    good = [answer_of([1.0, 2.0], 64), answer_of([3.0, 4.0], 60)]
    bad = [answer_of([], 0, status=503), answer_of([], 0, status=503)]
    result = summarize(
        [*good, *bad], num_requests=5, num_tokens_wanted=64, elapsed_s=4.0, client_cpu_s=0.2, concurrency=2
    )
    assert (result.num_answers, result.num_unfinished, result.num_short) == (2, 1, 1)
    assert result.errors == {"HTTP 503": 2}
    assert result.output_tokens_per_s == 31.0
    assert result.requests_per_s == 0.5
    assert result.ttft_ms.p50 == 2000.0
    assert result.num_output_tokens == 124
    said = "\n".join(lines(result))
    assert "2 x HTTP 503" in said
    assert "1 answers have fewer tokens" in said


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://127.0.0.1:8000", Origin(False, "127.0.0.1", 8000, "/v1")),
        ("http://localhost/v1/", Origin(False, "localhost", 80, "/v1")),
        ("https://api.example.com/openai", Origin(True, "api.example.com", 443, "/openai/v1")),
        ("http://[::1]:9", Origin(False, "::1", 9, "/v1")),
    ],
)
def test_where_a_url_leads(url: str, origin: Origin) -> None:
    assert Origin.parse(url) == origin


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://"])
def test_what_is_no_url_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(ValueError, match=r"http://127\.0\.0\.1:8000"):
        Origin.parse(url)


def test_a_request_names_host_length_and_key() -> None:
    request = Origin.parse("http://[::1]:9/v1", "secret").request("POST", "/completions", b"{}")
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\nHost: [::1]:9\r\n")
    assert b"\r\nAuthorization: Bearer secret\r\n" in head
    assert b"\r\nContent-Length: 2" in head
    assert body == b"{}"
