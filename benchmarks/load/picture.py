"""A picture of throughput and latencies over the load. matplotlib is imported only here and in peers/picture.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.load.summary import PointResult, Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e5e5e5",
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.frameon": False,
}
_COLOURS = ("#1f5f8b", "#6aa3c8", "#b9d3e4")


def draw(results: Sequence[PointResult], title: str, path: Path) -> None:
    """Three panels a row: tokens/s, time to first token, gaps; a row for closed and one for open loops."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    closed = [result for result in results if result.concurrency]
    opened = [result for result in results if not result.concurrency]
    rows = [row for row in (closed, opened) if row]
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(len(rows), 3, figsize=(10, 3 * len(rows)), layout="constrained", squeeze=False)
        for panels, row in zip(axes, rows, strict=True):
            _draw_row(panels, row)
        figure.suptitle(title, x=0.01, ha="left")
        figure.savefig(path, dpi=110)
        pyplot.close(figure)


def _draw_row(panels: Sequence[Axes], row: Sequence[PointResult]) -> None:
    is_closed = bool(row[0].concurrency)
    loads = [result.concurrency or result.rate_per_s for result in row]
    names = [f"{load:g}" for load in loads]
    throughput, first, gaps = panels
    throughput.bar(names, [result.output_tokens_per_s for result in row], color=_COLOURS[0], width=0.6)
    throughput.set_title("output tokens per second")
    _draw_spreads(first, names, [result.ttft_ms for result in row])
    first.set_title("time to first token, ms")
    _draw_spreads(gaps, names, [result.gap_ms for result in row])
    gaps.set_title("between tokens, ms")
    for panel in panels:
        panel.set_xlabel("requests at a time" if is_closed else "requests per second")
        panel.set_ylim(bottom=0)
        panel.set_xlim(-0.6, len(row) - 0.4)
    first.legend()


def _draw_spreads(panel: Axes, names: Sequence[str], spreads: Sequence[Spread]) -> None:
    for label, colour in zip(("p50", "p90", "p99"), _COLOURS, strict=True):
        panel.plot(names, [getattr(spread, label) for spread in spreads], marker="o", color=colour, label=label)
