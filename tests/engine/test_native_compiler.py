"""The compile cache, with a compiler that only writes down what it is asked."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from engine.native import compiler
from engine.native.compiler import NativeBuildError, compile_flags, find_compiler, library_path

FAKE = """#!/bin/sh
echo "$@" >> {log}
case "$*" in *--version*) echo "fake {version}"; exit 0;; esac
{extra}
while [ $# -gt 0 ]; do
  if [ "$1" = -o ]; then echo built > "$2"; fi
  shift
done
"""


class FakeCompiler:
    """A program that stands in for g++ through CXX."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = folder / "fake-c++"
        self._log = folder / "log"
        self.write()
        monkeypatch.setenv("CXX", str(self._path))

    def write(self, version: str = "1", extra: str = "") -> None:
        self._path.write_text(FAKE.format(log=self._log, version=version, extra=extra))
        self._path.chmod(0o755)

    @property
    def compiled(self) -> list[str]:
        """The command lines so far that compile or link."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line for line in lines if "--version" not in line]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    return FakeCompiler(tmp_path, monkeypatch)


def test_builds_once_and_leaves_nothing_else(fake: FakeCompiler, tmp_path: Path) -> None:
    path = library_path(tmp_path / "cache")
    assert path.read_text() == "built\n"
    num_sources = len(compiler.source_files(platform.machine()))
    assert len(fake.compiled) == num_sources + 1
    assert library_path(tmp_path / "cache") == path
    assert len(fake.compiled) == num_sources + 1
    assert {entry.suffix for entry in (tmp_path / "cache" / "native").iterdir()} == {".so", ".lock"}


def test_another_compiler_or_other_flags_are_another_build(
    fake: FakeCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {library_path(tmp_path / "cache")}
    fake.write(version="2")
    paths.add(library_path(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "_FLAGS", (*compiler._FLAGS, "-g"))
    paths.add(library_path(tmp_path / "cache"))
    assert len(paths) == 3


def test_other_sources_are_another_build(fake: FakeCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "source"
    sources.mkdir()
    for source in compiler.SOURCE_DIRECTORY.iterdir():
        (sources / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(compiler, "SOURCE_DIRECTORY", sources)
    before = library_path(tmp_path / "cache")
    (sources / "rows.h").write_text("// changed\n")
    assert library_path(tmp_path / "cache") != before


def test_processes_that_start_together_build_once(fake: FakeCompiler, tmp_path: Path) -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(library_path(tmp_path / "cache"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(set(paths)) == 1
    assert len(paths) == 4
    assert sum("-shared" in line for line in fake.compiled) == 1


def test_a_compiler_without_amx_still_builds(
    fake: FakeCompiler, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake.write(extra='case "$*" in *-mamx-tile*) echo "unknown option -mamx-tile" >&2; exit 1;; esac')
    assert library_path(tmp_path / "cache").is_file()
    assert "without amx: " in caplog.text
    interface = next(line for line in fake.compiled if "library.cpp" in line)
    assert "-DMUSTER_WITH_AVX512" in interface
    assert "-DMUSTER_WITH_AMX" not in interface


@pytest.mark.parametrize("name", sorted(compiler._OPTIONAL))
def test_a_compiler_that_knows_the_instructions_takes_their_kernels(name: str, tmp_path: Path) -> None:
    """A mistake in such a file must not pass for an older compiler, without whose kernels all else still works."""
    found = find_compiler()
    if found is None or platform.machine().lower() not in compiler._X86:
        pytest.skip("no compiler for this processor's instructions")
    source = compiler.SOURCE_DIRECTORY / name
    check = [found, *compile_flags(source), "-fsyntax-only"]
    empty = tmp_path / "empty.cpp"
    empty.write_text("")
    if subprocess.run([*check, empty], capture_output=True, timeout=60, check=False).returncode != 0:
        pytest.skip(f"{found} does not know the instructions of {name}")
    done = subprocess.run([*check, source], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_a_failing_compiler_is_named_with_its_first_line(fake: FakeCompiler, tmp_path: Path) -> None:
    fake.write(extra='echo "no space left" >&2; exit 1')
    with pytest.raises(NativeBuildError, match=r"fake-c\+\+ failed: no space left"):
        library_path(tmp_path / "cache")
    assert not list((tmp_path / "cache" / "native").glob("*.so"))


def test_no_compiler_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NativeBuildError, match="apt-get install"):
        library_path(tmp_path / "cache")


def test_a_library_built_before_needs_no_compiler(
    fake: FakeCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image may carry the cache and leave the compiler out."""
    path = library_path(tmp_path / "cache")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert library_path(tmp_path / "cache") == path


def test_a_cache_that_cannot_be_written(fake: FakeCompiler, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NativeBuildError, match="MUSTER_CACHE"):
        library_path(tmp_path / "file" / "cache")


def test_other_processors_have_no_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(NativeBuildError, match="riscv64"):
        library_path(tmp_path)
    assert not os.listdir(tmp_path)


def test_arm_gets_no_flag_and_no_file_of_x86(
    fake: FakeCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x86 = library_path(tmp_path / "cache")
    num_compiled = len(fake.compiled)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert library_path(tmp_path / "cache") != x86
    lines = fake.compiled[num_compiled:]
    assert any("kernels_portable.cpp" in line for line in lines)
    assert not any(word in line for line in lines for word in ("-mavx", "-mfma", "-mamx", "avx2.cpp", "MUSTER_WITH"))


def test_sources_for_arm_compile(tmp_path: Path) -> None:
    """With a compiler for ARM where there is one; elsewhere at least without any of x86's newer instructions."""
    command = shutil.which("aarch64-linux-gnu-g++") or compiler.find_compiler()
    assert command is not None
    for source in compiler.source_files("aarch64"):
        flags = (*compiler.compile_flags(source), "-O0", "-c", str(source), "-o", str(tmp_path / "object.o"))
        result = subprocess.run([command, *flags], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
