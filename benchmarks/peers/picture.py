"""A race as a picture: throughput, time to first token, start and memory of Muster and the peers' best settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.load.picture import STYLE
from benchmarks.peers.record import Record
from benchmarks.peers.standings import PEAK_MEMORY, START_UP, Quantity, first_token, tokens_per_s
from benchmarks.peers.table import OURS, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#1f5f8b", "#b5651d", "#8a8f94", "#6b8e4e")


def draw(record: Record, path: Path) -> None:
    """Peers that never ran are left out."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    report = Report(record)
    concurrencies = record.course.concurrencies
    loads = [str(concurrency) for concurrency in concurrencies]
    with pyplot.rc_context(STYLE):
        figure, panels = pyplot.subplots(1, 4, figsize=(11, 3.1), layout="constrained", width_ratios=(2.2, 2.2, 1, 1))
        bars = _Bars(report)
        bars.draw(panels[0], [tokens_per_s(c) for c in concurrencies], loads)
        panels[0].set_title("output tokens per second")
        bars.draw(panels[1], [first_token(c) for c in concurrencies], loads, is_logarithmic=True)
        panels[1].set_title("time to first token, ms (p50, log scale)")
        for panel in panels[:2]:
            panel.set_xlabel("requests at a time")
        bars.draw(panels[2], [START_UP], [""])
        panels[2].set_title("start to first answer, s")
        bars.draw(panels[3], [PEAK_MEMORY], [""])
        panels[3].set_title("peak memory, MiB")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=4)
        figure.savefig(path, dpi=110)
        pyplot.close(figure)


class _Bars:
    """Groups of bars, one bar for each server, always in the same order and colour."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._names = report.names()

    def draw(
        self, panel: Axes, quantities: Sequence[Quantity], groups: Sequence[str], *, is_logarithmic: bool = False
    ) -> None:
        rows = self._report.rows(quantities)
        width = 0.8 / len(self._names)
        for at, (family, name) in enumerate(self._names.items()):
            figures = [row.ours if family == OURS else row.peers[family] for row in rows]
            places = [group + (at - (len(self._names) - 1) / 2) * width for group in range(len(rows))]
            heights = [figure.median if figure else 0.0 for figure in figures]
            drawn = panel.bar(places, heights, width=width * 0.92, color=_COLOURS[at % len(_COLOURS)], label=name)
            panel.bar_label(drawn, [_label(height) for height in heights], fontsize=7, padding=1)
        panel.set_xticks(range(len(groups)), groups)
        panel.tick_params(axis="x", length=0)
        if is_logarithmic:
            panel.set_yscale("log")
            panel.set_ylim(top=panel.get_ylim()[1] * 1.5)
            panel.yaxis.set_major_formatter("{x:,.0f}")
        else:
            panel.margins(y=0.12)


def _label(height: float) -> str:
    if not height:
        return "–"
    return f"{height:.1f}" if height < 10 else f"{height:,.0f}"
