"""JSON files of a checkpoint, read with a size limit."""

from __future__ import annotations

import json
from pathlib import Path

from engine.errors import CheckpointError

_MAX_SIZE = 256 << 20  # the largest real ones are tokenizers and shard indexes of some 30 MB


def read_json_object(path: Path) -> dict[str, object]:
    """The object in a JSON file. Raises CheckpointError when there is none."""
    try:
        size = path.stat().st_size
        if size > _MAX_SIZE:
            raise CheckpointError(f"{path}: has {size} bytes; at most {_MAX_SIZE} are read")
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: does not hold a JSON object")
    return value
