"""Turns, medians, ratios, tables and pictures, from made-up legs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from benchmarks.load.processes import ProcessUse, TreeUse
from benchmarks.load.summary import PointResult, Spread
from benchmarks.peers.contestant import Contestant
from benchmarks.peers.documents import BEGIN, END, between_marks
from benchmarks.peers.picture import draw
from benchmarks.peers.race import Course, Leg, run_race, turn_order, untried
from benchmarks.peers.record import Entrant, Record
from benchmarks.peers.standings import START_UP, Figure, Standings, first_token, ratio, tokens_per_s
from benchmarks.peers.table import Report
from benchmarks.peers.venv import PeerError, Venv, run_step

COURSE = Course((1, 8), (4, 8))


def point(concurrency: int, tokens_per_s: float, ttft_ms: float, *, is_cut_off: bool = False) -> PointResult:
    return PointResult(
        concurrency=concurrency,
        rate_per_s=0.0,
        num_requests=4,
        num_answers=1 if is_cut_off else 4,
        num_short=0,
        num_unfinished=3 if is_cut_off else 0,
        is_cut_off=is_cut_off,
        errors={},
        first_errors={},
        elapsed_s=2.0,
        prompt_tokens_mean=128.0,
        output_tokens_per_s=tokens_per_s,
        requests_per_s=2.0,
        ttft_ms=Spread(ttft_ms, ttft_ms, ttft_ms, ttft_ms),
        gap_ms=Spread(),
        per_token_ms=Spread(),
        total_ms=Spread(),
        lateness_ms=Spread(),
        client_cpu_s=0.1,
        machine_cpu_s=2.5,
        server=TreeUse("PSS", 2.0, 100.0, (ProcessUse(1, "server", 2.0, 100.0),)),
    )


def leg(key: str, turn: int, *points: PointResult, start_up_s: float = 2.0, error: str = "") -> Leg:
    return Leg(key, turn, "12:00:00", start_up_s, "PSS", 500.0, points, error)


def entrant(key: str, label: str, family: str) -> Entrant:
    return Entrant(key, label, family, f"says {key}", key in ("muster", "vllm"), 60.0)


LEGS = [
    *(leg("muster", turn, point(1, 100.0 + turn, 50.0), point(8, 400.0, 200.0)) for turn in (1, 2, 3)),
    *(leg("vllm", turn, point(1, 25.0, 150.0), point(8, 200.0, 100.0), start_up_s=80.0) for turn in (1, 2, 3)),
    leg("llama-t1", 1, point(1, 20.0, 500.0), point(8, 40.0, 4000.0)),
    leg("llama-t2", 1, point(1, 60.0, 600.0), point(8, 5.0, 9000.0, is_cut_off=True)),
    leg("muster-avx2", 1, error="ended with code 1 before it answered:\nno such kernels"),
]
RECORD = Record(
    date="2026-01-01",
    machine="a machine",
    commit="abc",
    model="tiny.gguf",
    course=COURSE,
    entrants=[
        entrant("muster", "Muster", "muster"),
        entrant("vllm", "vLLM 0.1", "vllm"),
        entrant("llama-t1", "llama.cpp -t 1", "llama.cpp"),
        entrant("llama-t2", "llama.cpp -t 2", "llama.cpp"),
        entrant("muster-avx2", "Muster without AVX-512", "muster"),
    ],
    legs=LEGS,
)


def test_everybody_runs_once_before_anybody_runs_twice() -> None:
    assert turn_order({"a": 3, "b": 3, "c": 1}) == [
        (1, "a"),
        (1, "b"),
        (1, "c"),
        (2, "a"),
        (2, "b"),
        (3, "a"),
        (3, "b"),
    ]


def test_what_was_cut_off_is_not_tried_again() -> None:
    points = COURSE.points(60.0)
    assert untried(points, []) == points
    assert [point.concurrency for point in untried(points, [LEGS[-2]])] == [1]
    assert untried(points, [leg("x", 1, point(1, 1.0, 1.0, is_cut_off=True))]) == []


def test_medians_and_the_better_setting() -> None:
    standings = Standings(LEGS)
    assert standings.figure("muster", tokens_per_s(1)) == Figure(102.0, 101.0, 103.0, "muster")
    assert standings.best(["llama-t1", "llama-t2"], tokens_per_s(1)) == Figure(60.0, 60.0, 60.0, "llama-t2")
    assert standings.best(["llama-t1", "llama-t2"], first_token(1)) == Figure(500.0, 500.0, 500.0, "llama-t1")
    # A point that was cut off has no figures.
    assert standings.best(["llama-t1", "llama-t2"], tokens_per_s(8)) == Figure(40.0, 40.0, 40.0, "llama-t1")
    assert standings.figure("muster-avx2", START_UP) is None


def test_a_ratio_above_one_is_in_our_favour() -> None:
    four, two = Figure(4.0, 4.0, 4.0), Figure(2.0, 2.0, 2.0)
    assert ratio(four, two, is_more_better=True) == 2.0
    assert ratio(four, two, is_more_better=False) == 0.5
    assert ratio(four, None, is_more_better=True) is None
    assert ratio(four, Figure(0.0, 0.0, 0.0), is_more_better=True) is None


def test_the_table_has_figures_ratios_and_reservations() -> None:
    text = Report(RECORD).full()
    rows = [line.split(" | ") for line in text.splitlines()]
    (first,) = [row for row in rows if row[0] == "| output tokens/s, 1 at a time"]
    assert first[1:] == ["102.0 (101.0–103.0)", "25.0", "60.0, -t 2", "**4.1×**", "**1.7×** |"]
    (later,) = [row for row in rows if row[0] == "| time to first token, p50, 8 at a time"]
    assert later[1:] == ["200 ms", "100 ms", "4,000 ms, -t 1", "**0.5×**", "**20.0×** |"]
    assert "llama.cpp -t 2 was cut off at 8 at a time after 60 s, with 1 of 4 answers" in text
    assert "Muster without AVX-512 ended with code 1 before it answered:" in text
    assert "Turns: 3 of Muster, vLLM 0.1; 1 of llama.cpp -t 1, llama.cpp -t 2" in text
    assert "abc" in text
    assert "says vllm" in text
    assert "vs llama.cpp" in Report(RECORD).short()


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    RECORD.write(tmp_path / "versus.json")
    assert Record.read(tmp_path / "versus.json") == RECORD
    (tmp_path / "versus.json").write_text('{"course": {}}')
    with pytest.raises(ValueError, match="no record"):
        Record.read(tmp_path / "versus.json")


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    draw(RECORD, tmp_path / "versus.png")
    assert (tmp_path / "versus.png").read_bytes().startswith(b"\x89PNG")


def test_text_goes_between_the_marks_and_nowhere_else() -> None:
    page = f"# Title\n\n{BEGIN}\nold\n{END}\n\nmore\n"
    changed = between_marks(page, "new\n")
    assert changed == f"# Title\n\n{BEGIN}\n\nnew\n\n{END}\n\nmore\n"
    assert between_marks(changed, "new\n") == changed
    with pytest.raises(ValueError, match="no place"):
        between_marks("# Title\n", "new")


def test_a_server_that_ends_costs_its_leg_and_not_the_race(tmp_path: Path) -> None:
    code = "import sys; print('no such file'); sys.exit(3)"
    command = (sys.executable, "-c", code, "--port", "{port}")
    contestants = [Contestant(key, key, key, command, says="", start_limit_s=30.0) for key in ("a", "b")]
    said: list[str] = []
    legs = list(run_race(contestants, COURSE, {"a": 2, "b": 2}, tmp_path, said.append))
    assert [(leg.key, leg.turn) for leg in legs] == [("a", 1), ("b", 1)]  # no second try
    assert all("ended with code 3" in leg.error and "no such file" in leg.error for leg in legs)
    assert (tmp_path / "a-1.log").read_text() == "no such file\n"


def test_a_venv_is_complete_only_for_its_recipe(tmp_path: Path) -> None:
    venv = Venv(tmp_path)
    assert not venv.is_complete("one")
    venv.complete("one")
    assert venv.is_complete("one")
    assert not venv.is_complete("two")


def test_what_is_installed_already_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = Venv(tmp_path)
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(venv, "pip", lambda *arguments, environment=None: ran.append(arguments))
    metadata = venv.site_packages / "some_package-1.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.touch()
    venv.install("some-package", "1.0")
    venv.uninstall(("absent",))
    assert ran == []
    venv.install("some-package", "2.0")
    venv.uninstall(("absent", "some_package"))
    assert ran == [("install", "some-package==2.0"), ("uninstall", "-y", "some_package")]


def test_a_step_that_fails_says_what_it_said() -> None:
    with pytest.raises(PeerError, match=r"(?s)code 2.*wheel is missing"):
        run_step([sys.executable, "-c", "import sys; print('wheel is missing'); sys.exit(2)"], dict(os.environ))
