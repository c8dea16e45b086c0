"""Puts a race's tables and picture where the documentation has room for them."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.peers.record import Record
from benchmarks.peers.table import Report

BEGIN = "<!-- begin: written by python -m benchmarks.versus -->"
END = "<!-- end: written by python -m benchmarks.versus -->"


def publish(record: Record, picture: Path, repository: Path) -> None:
    """Rewrites what lies between the marks in docs/performance.md and README.md, and copies the picture.

    Raises ValueError when a page has no marks.
    """
    report = Report(record)
    shutil.copyfile(picture, repository / "docs" / "versus.png")
    _rewrite(repository / "docs" / "performance.md", f"![Muster beside its peers](versus.png)\n\n{report.full()}")
    _rewrite(repository / "README.md", f"![Muster beside its peers](docs/versus.png)\n\n{report.short()}")


def between_marks(page: str, text: str) -> str:
    """The page with the text in place of what was between the marks. Raises ValueError without them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for it, between the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{after}"


def _rewrite(path: Path, text: str) -> None:
    try:
        page = between_marks(path.read_text(), text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    path.write_text(page)
