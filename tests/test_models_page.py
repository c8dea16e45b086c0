"""docs/models.md names what can be loaded, and the refusals as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.errors import CheckpointError
from engine.model.loading import open_checkpoint

PAGE = (Path(__file__).parent.parent / "docs" / "models.md").read_text()


def test_the_refusal_of_an_architecture_is_the_page_s(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["GPTNeoXForCausalLM"]}))
    with pytest.raises(CheckpointError) as refused:
        open_checkpoint(tmp_path)
    assert f"`{str(refused.value).replace(str(tmp_path), '…')}`" in PAGE
    for name in str(refused.value).rpartition("supported are ")[2].split(", "):
        assert f"| `{name}` |" in PAGE
