"""A model for what does not depend on one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def given_or_tiny(arguments: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Arguments of muster serve: those that are given, or the tests' tiny random model, for as long as the block."""
    if arguments:
        yield tuple(arguments)
        return
    from tests.support.tiny_model import write_huggingface_directory

    with tempfile.TemporaryDirectory(prefix="muster-tiny-") as directory:
        flags = ("--dtype", "float32")
        yield (str(write_huggingface_directory(Path(directory) / "tiny")), *flags)
