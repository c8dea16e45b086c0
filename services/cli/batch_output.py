"""The file of a batch's results: whole lines only, and one that a later run can go on with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TextIO


def open_output(path: Path, *, resume: bool) -> tuple[TextIO, frozenset[str]]:
    """The file to write to, and the ids of the requests that are answered in it. Raises OSError.

    To resume, answers with status 200 are kept; failures, and the half line of a run that was killed, are removed.
    """
    if not resume or not path.exists():
        return path.open("w", encoding="utf-8"), frozenset()
    answered: set[str] = set()
    scratch = path.with_name(f"{path.name}.resuming")
    with path.open(encoding="utf-8", errors="replace") as old, scratch.open("w", encoding="utf-8") as kept:
        for line in old:
            custom_id = _answered_id(line)
            if custom_id is not None and custom_id not in answered:
                answered.add(custom_id)
                kept.write(line)
    os.replace(scratch, path)
    return path.open("a", encoding="utf-8"), frozenset(answered)


def _answered_id(line: str) -> str | None:
    if not line.endswith("\n"):
        return None
    try:
        result = json.loads(line)
        if result["response"]["status_code"] != 200:
            return None
        custom_id = result["custom_id"]
    except (ValueError, LookupError, TypeError):
        return None
    return custom_id if isinstance(custom_id, str) else None
