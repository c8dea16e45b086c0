"""Which kernels an engine gets, and what it says where it gets others than one would wish."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.build import BuiltEngine, build_engine
from engine.config import EngineConfig
from engine.errors import CheckpointError
from engine.native.compiler import library_path
from engine.request import Request, SamplingParams, StopConditions
from tests.support.native_kernels import instruction_sets
from tests.support.tiny_model import write_huggingface_directory


@pytest.fixture(scope="module")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_huggingface_directory(tmp_path_factory.mktemp("tiny"))


def _build(directory: Path, **changes: Any) -> BuiltEngine:
    values: dict[str, Any] = {"num_threads": 1, "num_blocks": 64, "max_model_len": 256, "max_num_seqs": 8}
    return build_engine(EngineConfig(directory, **(values | changes)))


def _generate(built: BuiltEngine) -> int:
    """Runs three requests with everything that needs logits; returns how many tokens came."""
    for index in range(3):
        built.core.add(
            Request(
                str(index),
                tuple(range(10, 40 + index)),
                sampling=SamplingParams(temperature=0.0),
                stop=StopConditions(max_tokens=8, ignore_eos=True),
                logprobs=2,
                prompt_logprobs=1,
            )
        )
    count = 0
    while built.core.has_work:
        count += sum(len(output.token_ids) for output in built.core.step().outputs)
        built.core.check()
    return count


def test_cpus_get_the_native_kernels(tiny_directory: Path) -> None:
    built = _build(tiny_directory)
    assert built.attention_backend == f"native-{instruction_sets()[0]}"
    assert built.facts.dtype == "bfloat16"
    assert _generate(built) == 24


@pytest.mark.parametrize("isa", instruction_sets())
def test_the_environment_hides_instructions(tiny_directory: Path, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_CPU_ISA", isa)
    built = _build(tiny_directory)
    assert built.attention_backend == f"native-{isa}"
    assert _generate(built) == 24


@pytest.mark.parametrize("changes", [{"kernels": "torch"}, {"dtype": "float32"}, {"dtype": "bfloat16"}])
def test_an_explicit_dtype_or_torch_stays_on_torch(tiny_directory: Path, changes: dict[str, str]) -> None:
    assert _build(tiny_directory, **changes).attention_backend == "torch"


def test_no_instructions_means_torch_and_a_warning(
    tiny_directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MUSTER_CPU_ISA", "none")
    built = _build(tiny_directory)
    assert built.attention_backend == "torch"
    assert "MUSTER_CPU_ISA hides it" in caplog.text
    assert _generate(built) == 24


def test_no_compiler_means_torch_and_what_to_install(
    tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _hide_compiler(tmp_path, monkeypatch)
    assert _build(tiny_directory).attention_backend == "torch"
    assert "apt-get install g++" in caplog.text


def test_native_by_name_does_not_fall_back(
    tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hide_compiler(tmp_path, monkeypatch)
    with pytest.raises(CheckpointError, match="apt-get install g"):
        _build(tiny_directory, kernels="native")


def test_an_unknown_instruction_set_is_named(tiny_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_CPU_ISA", "sse")
    with pytest.raises(
        CheckpointError,
        match=r"MUSTER_CPU_ISA: 'sse' is unknown; choose one of amx, avx512bf16, avx512, avx2, portable, none",
    ):
        _build(tiny_directory, kernels="native")


def test_kernels_lie_where_the_configuration_says(
    tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment says something else, and nothing can be compiled."""
    built = library_path()
    (tmp_path / "cache" / "native").mkdir(parents=True)
    shutil.copy(built, tmp_path / "cache" / "native")
    _hide_compiler(tmp_path, monkeypatch)
    engine = _build(tiny_directory, kernels="native", cache_directory=tmp_path / "cache")
    assert engine.attention_backend.startswith("native")


@pytest.mark.parametrize("changes", [{"kernels": "fast"}, {"kernels": "native", "dtype": "float32"}])
def test_contradictions_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^kernels: "):
        EngineConfig(tmp_path, **changes)


def _hide_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("MUSTER_CACHE", str(folder))
