from __future__ import annotations

from pathlib import Path

import pytest

from services.models.checkpoint import ModelNotFoundError, resolve_model


def test_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "Some.Q4_1.gguf"
    path.write_bytes(b"GGUF....")
    assert resolve_model(str(path), tmp_path).path == path
    assert resolve_model(str(path), tmp_path).name == "Some.Q4_1"


def test_directories(tmp_path: Path) -> None:
    directory = tmp_path / "tiny"
    directory.mkdir()
    with pytest.raises(ModelNotFoundError, match=r"config\.json"):
        resolve_model(str(directory), tmp_path)
    (directory / "a.gguf").write_bytes(b"GGUF")
    assert resolve_model(str(directory), tmp_path).path == directory / "a.gguf"
    (directory / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFoundError, match=r"a\.gguf, b\.gguf"):
        resolve_model(str(directory), tmp_path)
    (directory / "config.json").write_text("{}")
    assert resolve_model(str(directory), tmp_path).name == "tiny"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x00" * 8])
def test_what_is_no_gguf_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelNotFoundError, match="not a GGUF file"):
        resolve_model(str(path), tmp_path)


def test_what_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file"):
        resolve_model(str(tmp_path / "nothing"), tmp_path)
