"""The engine's diagnosis: the decision, and each finding on machines that lack something."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.doctor import packages, processor
from engine.doctor.diagnosis import computes_with, diagnose
from engine.doctor.finding import Finding, Level
from engine.doctor.kernels import compiler, kernels
from engine.native.compiler import library_path
from engine.native.self_test import largest_error
from tests.support.native_kernels import instruction_sets, native_library


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with the kernels that this machine has already compiled."""
    built = library_path()
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / built.name).symlink_to(built)
    return tmp_path


def _named(findings: list[Finding], name: str) -> Finding:
    return next(finding for finding in findings if finding.name == name)


@pytest.mark.parametrize("isa", instruction_sets())
def test_the_kernels_pass_their_own_trial(isa: str) -> None:
    assert 0 < largest_error(native_library(), isa) < 0.02


def test_a_machine_that_has_all(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_CPU_ISA", raising=False)
    findings = diagnose(cache, "cpu", "auto", "auto")
    assert "trial products are right" in _named(findings, "kernels").text
    assert "from the cache" in _named(findings, "kernels").text
    assert findings[0].text == f"native kernels for {instruction_sets()[0]}, on the checkpoint's own blocks"
    assert all(finding.fix == "" for finding in findings if finding.level is Level.OK)
    assert all(finding.fix for finding in findings if finding.level is not Level.OK)


@pytest.mark.parametrize(("names", "text"), [([], "native kernels"), (["A GPU"], "torch on cuda")])
def test_auto_takes_a_gpu_where_there_is_one(
    names: list[str], text: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "_gpu_names", lambda: names)
    assert text in diagnose(cache, "auto", "auto", "auto")[0].text


@pytest.mark.parametrize("isa", instruction_sets())
def test_masked_instructions(isa: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_CPU_ISA", isa)
    findings = diagnose(cache, "cpu", "auto", "auto")
    assert _named(findings, "kernels").text.startswith(f"{isa}, ")
    assert _named(findings, "processor").level is Level.WARN
    assert f"MUSTER_CPU_ISA={isa}" in _named(findings, "processor").text


@pytest.mark.parametrize(("mask", "said"), [("none", "MUSTER_CPU_ISA=none hides"), ("sse9", "'sse9' is unknown")])
def test_a_mask_that_leaves_nothing(mask: str, said: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_CPU_ISA", mask)
    findings = diagnose(cache, "cpu", "auto", "auto")
    assert said in _named(findings, "kernels").text
    assert findings[0].level is Level.WARN
    assert findings[0].text == "torch, because the native kernels cannot be had"
    assert diagnose(cache, "cpu", "auto", "native")[0].level is Level.FAIL


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compiler().level is Level.WARN
    assert "apt-get install" in compiler().fix
    diagnosis = kernels(tmp_path / "empty", has_torch=True)
    assert diagnosis.instruction_set is None
    assert "C++ compiler" in diagnosis.findings[0].text


def test_no_compiler_but_kernels_in_the_cache(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert kernels(cache, has_torch=True).instruction_set is not None


def test_a_broken_cache(tmp_path: Path) -> None:
    path = tmp_path / "native" / library_path().name
    path.parent.mkdir()
    path.write_bytes(b"not a library")
    diagnosis = kernels(tmp_path, has_torch=True)
    assert diagnosis.instruction_set is None
    assert diagnosis.findings[0].level is Level.WARN
    assert f"delete {path}" in diagnosis.findings[0].fix


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    finding = kernels(tmp_path / "file", has_torch=True).findings[0]
    assert "--model-cache" in finding.text


def test_without_torch(cache: Path) -> None:
    code = "import runpy, sys; sys.modules['torch'] = None; runpy.run_module('engine.doctor', run_name='__main__')"
    command = [sys.executable, "-c", code, "--cache", str(cache)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = {each["name"]: each for each in json.loads(done.stdout)}
    assert found["torch"]["text"] == "torch not installed: this installation serves gateway and head only"
    assert "not tried" in found["kernels"]["text"]
    assert {each["level"] for each in found.values()} <= {"ok", "warn"}
    assert found["computes with"]["text"] == "nothing: there is no torch that imports"


@pytest.mark.parametrize(
    ("device", "dtype", "wanted", "native", "level", "said"),
    [
        ("cpu", "auto", "auto", "amx", Level.OK, "native kernels for amx"),
        ("cpu", "float32", "auto", "amx", Level.OK, "torch in float32"),
        ("cpu", "auto", "torch", "amx", Level.OK, "torch, as --kernels says"),
        ("cpu", "auto", "auto", None, Level.WARN, "torch, because"),
        ("cpu", "auto", "native", None, Level.FAIL, "--kernels native cannot be had"),
        ("cuda", "auto", "auto", "amx", Level.OK, "torch on cuda"),
    ],
)
def test_the_path(device: str, dtype: str, wanted: str, native: str | None, level: Level, said: str) -> None:
    finding = computes_with(device, dtype, wanted, native, has_torch=True)
    assert finding.level is level
    assert said in finding.text


def test_a_gpu_that_is_asked_for_and_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_gpu_names", list)
    assert packages.gpu("cpu").level is Level.OK
    assert packages.gpu("cuda").level is Level.FAIL


@pytest.mark.parametrize(
    ("modes", "level"),
    [("always [madvise] never", Level.OK), ("always madvise [never]", Level.WARN), (None, Level.WARN)],
)
def test_huge_pages(modes: str | None, level: Level, tmp_path: Path) -> None:
    folder = tmp_path / "kernel/mm/transparent_hugepage"
    folder.mkdir(parents=True)
    if modes is not None:
        (folder / "enabled").write_text(modes + "\n")
    assert processor.huge_pages(tmp_path).level is level


def test_two_memory_nodes(tmp_path: Path) -> None:
    for node, cores in (("node0", "0-15"), ("node1", "16-31")):
        (tmp_path / "devices/system/node" / node).mkdir(parents=True)
        (tmp_path / "devices/system/node" / node / "cpulist").write_text(cores + "\n")
    finding = processor.memory_nodes(tmp_path)
    assert finding.level is Level.WARN
    assert "0: 0-15; 1: 16-31" in finding.text
    assert "numactl" in finding.fix


def test_a_processor_of_another_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_CPU_ISA", raising=False)
    (tmp_path / "cpuinfo").write_text("processor : 0\nFeatures : fp asimd asimddp bf16\n")
    assert processor.processor(tmp_path).text.endswith("NEON, dot products, BF16")
