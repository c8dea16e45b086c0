"""The check that people run on a GPU, in its short form, and with plain functions in place of flash attention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import device_check
from benchmarks.device import attention, equivalence
from benchmarks.device.answers import agreement, scored_difference
from benchmarks.device.engine import Answer, write_random_model
from benchmarks.device.place import CheckFailedError, CheckSkippedError, Place, shapes
from engine import build
from engine.request import TokenLogprobs
from tests.support.plain_flash_attn import PLAIN_FLASH

CPU = torch.device("cpu")


def test_the_short_form_passes_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report_path = tmp_path / "report.json"
    code = device_check.main(["--device", "cpu", "--json", str(report_path)])
    printed = capsys.readouterr().out
    assert code == 0, printed
    report = json.loads(report_path.read_text())
    statuses = {check["name"]: check["status"] for check in report["checks"]}
    skipped = {"flash_attention_alone", "flash_engine", "graphs_are_eager"}
    assert {name for name, status in statuses.items() if status == "skipped"} == skipped
    assert set(statuses.values()) == {"skipped", "passed"}
    assert "needs a CUDA device" in printed
    assert {row["what"] for row in report["throughput"]} == {"prefill", "decode"}
    assert report["environment"]["torch"] == torch.__version__
    assert report["passed"] is True


def test_a_failed_check_is_told_and_the_others_still_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(place: Place) -> str:
        raise CheckFailedError("logits differ")

    def broken(place: Place) -> str:
        raise RuntimeError("CUDA error")

    def right(place: Place) -> str:
        return "fine"

    monkeypatch.setattr(device_check, "CHECKS", (wrong, broken, right))
    assert device_check.main(["--device", "cpu", "--budget-s", "0"]) == 1
    printed = capsys.readouterr().out
    for line in ("wrong: logits differ", "broken: RuntimeError: CUDA error", "right: fine", "FAILED in"):
        assert line in printed


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert device_check.main(["--device", "cuda"]) == 1
    assert "device: cuda cannot be used" in capsys.readouterr().err


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A CPU that seems to have flash attention."""
    for module in (build, attention):
        monkeypatch.setattr(module, "find_flash", lambda *names, **values: PLAIN_FLASH)
    # By name flash is refused on a CPU; as what `auto` found it is not.
    settings = {"device": "auto", "num_blocks": 400, "max_model_len": 512, "max_num_seqs": 32}
    monkeypatch.setattr(Place, "base", settings)
    for name, shape in shapes(is_short=True).items():
        write_random_model(tmp_path / name, shape)
    return Place(CPU, tmp_path, is_short=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, which has its own")
def test_the_checks_of_flash_attention(place: Place) -> None:
    assert "24 batches" in attention.flash_attention_alone(place)
    assert "small: " in equivalence.flash_engine(place)
    with pytest.raises(CheckSkippedError, match="no graphs are captured on cpu"):
        equivalence.graphs_are_eager(place)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, which has its own")
def test_wrong_attention_is_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """An off-by-one window, as a misread parameter would be."""

    class Shifted:
        varlen = staticmethod(PLAIN_FLASH.varlen)

        @staticmethod
        def with_kvcache(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
            options["cache_seqlens"] = (options["cache_seqlens"] - 1).clamp(min=1)
            return PLAIN_FLASH.with_kvcache(*tensors, **options)

    for module in (build, attention):
        monkeypatch.setattr(module, "find_flash", lambda *names, **values: Shifted)
    with pytest.raises(CheckFailedError, match="outputs differ"):
        attention.flash_attention_alone(place)
    with pytest.raises(CheckFailedError, match="logprobs, largest difference"):
        equivalence.flash_engine(place)


def _answer(*tokens: tuple[int, float], rivals: tuple[tuple[int, float], ...] = ()) -> Answer:
    ids, values = tuple(i for i, _ in rivals), tuple(value for _, value in rivals)
    return Answer(
        [token for token, _ in tokens], [TokenLogprobs(token, logprob, 1, ids, values) for token, logprob in tokens]
    )


def test_answers_may_part_at_a_near_tie_only() -> None:
    mine = _answer((1, -0.5), (2, -0.9), rivals=((2, -0.9), (3, -1.0)))
    theirs = _answer((1, -0.6), (3, -0.9))
    assert "1 near-ties" in agreement([mine], [theirs], 0.2, exact=False)
    with pytest.raises(CheckFailedError, match=r"token 1 is another one, 0\.1000 less likely"):
        agreement([mine], [theirs], 0.2, exact=True)
    with pytest.raises(CheckFailedError, match="token 1 is another one"):
        agreement([mine], [theirs], 0.05, exact=False)
    with pytest.raises(CheckFailedError, match="inf less likely"):
        agreement([mine], [_answer((1, -0.5), (4, -0.9))], 0.2, exact=False)
    with pytest.raises(CheckFailedError, match=r"logprobs within 0\.30000; 0\.2 is allowed"):
        agreement([mine], [_answer((1, -0.8), (2, -0.9))], 0.2, exact=False)
    with pytest.raises(CheckFailedError, match="another number of tokens"):
        agreement([mine], [_answer((1, -0.5))], 0.2, exact=False)


def test_numbers_that_are_none_do_not_pass() -> None:
    scored = Answer(prompt_logprobs=(TokenLogprobs(0, None, 0), TokenLogprobs(1, float("nan"), 1)))
    with pytest.raises(CheckFailedError, match="nan"):
        scored_difference([_answer((0, -1.0), (1, -1.0))], [scored], 0.2)
