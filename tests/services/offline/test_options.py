from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.flag import FlagValueError
from services.offline.options import offline_run
from tests.support.tiny_model import write_huggingface_directory


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_huggingface_directory(tmp_path_factory.mktemp("model") / "tiny"))


def test_one_process_per_rank_with_the_flags_of_an_engine(model: str) -> None:
    run = offline_run([model, "-dp", "2", "--max-num-seqs", "8", "--dtype", "float32"], {"MUSTER_BLOCK_SIZE": "8"})
    assert [spec.name for spec in run.ranks] == ["rank 0", "rank 1"]
    arguments = run.ranks[1].arguments
    assert arguments[:2] == ("offline-rank", model)
    for flag, value in (("--rank", "1"), ("--dtype", "float32"), ("--block-size", "8"), ("--log-level", "warning")):
        assert arguments[arguments.index(flag) + 1] == value
    assert (run.served_model_name, run.max_running) == ("tiny", 16)


def test_variables_of_a_server_are_none_of_its_business(model: str) -> None:
    environment = {"MUSTER_HEADLESS": "1", "MUSTER_PORT": "nonsense", "MUSTER_LOG_LEVEL": "info"}
    arguments = offline_run([model], environment).ranks[0].arguments
    assert arguments[arguments.index("--log-level") + 1] == "info"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--port 0", "--port after --"),
        ("-dp 2 -dpl 1", "--data-parallel-size-local after --"),
        ("--headless", "--headless after --"),
        ("--speed 9", "--speed after --: there is no such flag"),
        ("--dtype int3", "--dtype: 'int3'"),
        ("--max-num-seqs 600", "--max-num-batched-tokens 512"),
    ],
)
def test_flags_that_mean_nothing_here_are_refused(model: str, flags: str, told: str) -> None:
    with pytest.raises(FlagValueError) as caught:
        offline_run([model, *flags.split()], {})
    assert told in str(caught.value)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FlagValueError, match="no such file"):
        offline_run([str(tmp_path / "nothing.gguf")], {})
