"""A race as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.peers.record import Record
from benchmarks.peers.standings import (
    PEAK_MEMORY,
    START_UP,
    Figure,
    Quantity,
    Row,
    Standings,
    cpu_per_thousand,
    first_token,
    per_token,
    tokens_per_s,
)

OURS = "muster"


class Report:
    """Tables of one record."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._standings = Standings(record.legs)
        ran = {leg.key for leg in record.legs if not leg.error}
        self._peers: dict[str, list[str]] = {}
        for entrant in record.entrants:
            if entrant.family != OURS and entrant.key in ran:
                self._peers.setdefault(entrant.family, []).append(entrant.key)

    def full(self) -> str:
        """Comparison, all settings, and what a reader has to know about both."""
        parts = [self.comparison(self._quantities()), self.settings(), self.notes()]
        return "\n\n".join(part for part in parts if part) + "\n"

    def short(self) -> str:
        """The comparison in its main rows."""
        concurrencies = self._record.course.concurrencies
        main = [*map(tokens_per_s, concurrencies), *map(first_token, concurrencies), START_UP, PEAK_MEMORY]
        return self.comparison(main) + "\n"

    def names(self) -> dict[str, str]:
        """Who is compared: the name by family, ours first."""
        return {OURS: "Muster", **{family: self._family_name(family) for family in self._peers}}

    def rows(self, quantities: Sequence[Quantity]) -> list[Row]:
        return [self._standings.row(quantity, OURS, self._peers) for quantity in quantities]

    def comparison(self, quantities: Sequence[Quantity]) -> str:
        """Ours, the peers' best, and how many times better ours is."""
        names = [self._family_name(family) for family in self._peers]
        head = ["", "Muster", *names, *(f"vs {name}" for name in names)]
        lines = [_line(head), _line(["---", *["--:"] * (len(head) - 1)])]
        for row in self.rows(quantities):
            theirs = [self._cell(figure, row.quantity, family) for family, figure in row.peers.items()]
            ratios = [f"**{ratio:.1f}×**" if ratio else "–" for ratio in row.ratios.values()]
            lines.append(_line([row.quantity.name, self._cell(row.ours, row.quantity, OURS), *theirs, *ratios]))
        return "\n".join(lines)

    def settings(self) -> str:
        """Everybody who ran, one line each: medians only."""
        concurrencies = self._record.course.concurrencies
        groups = [
            [tokens_per_s(c) for c in concurrencies],
            [first_token(c) for c in concurrencies],
            [cpu_per_thousand(c) for c in concurrencies],
        ]
        loads = "/".join(map(str, concurrencies))
        titles = [f"tokens/s at {loads}", f"TTFT p50 ms at {loads}", f"CPU s per 1,000 tokens at {loads}"]
        head = ["setting", *titles, "start s", "peak MiB"]
        lines = [_line(head), _line(["---", *["--:"] * (len(head) - 1)])]
        for entrant in self._record.entrants:
            cells = [" / ".join(_plain(self._standings.figure(entrant.key, q), q) for q in group) for group in groups]
            ends = [_plain(self._standings.figure(entrant.key, q), q) for q in (START_UP, PEAK_MEMORY)]
            lines.append(_line([entrant.label, *cells, *ends]))
        return "\n".join(lines)

    def notes(self) -> str:
        record, course = self._record, self._record.course
        work = ", ".join(
            f"{requests} requests at {concurrency} at a time"
            for concurrency, requests in zip(course.concurrencies, course.num_requests, strict=True)
        )
        kinds = sorted({leg.memory_kind for leg in record.legs if leg.memory_kind})
        notes = [
            f"Measured {record.date}, commit {record.commit or 'unknown'}: {record.machine}.",
            f"{record.model}; {course.num_words} words in ({self._prompt_tokens()} tokens), {course.num_tokens} tokens "
            f"out, greedy, streamed; {work}. Every turn has its own prompts, the same for all.",
            f"{self._turns()}, one server at a time, one after the other; median (smallest–largest).",
            "“vs”: how many times better Muster is; below 1 the other is better.",
            "Start: from the command to the end of the first answer, one token long; later turns find what earlier "
            "ones compiled and kept.",
            f"Memory: the largest sum of {' or '.join(kinds)} over all processes of the server, start included.",
            *self._conditions(),
            *(f"{entrant.label}: {entrant.says}." for entrant in record.entrants),
            *self._cut_offs(),
            *self._failures(),
        ]
        return "\n".join(f"- {note}" for note in notes)

    def _quantities(self) -> list[Quantity]:
        concurrencies = self._record.course.concurrencies
        kinds = (tokens_per_s, first_token, per_token, cpu_per_thousand)
        return [*(kind(c) for kind in kinds for c in concurrencies), START_UP, PEAK_MEMORY]

    def _cell(self, figure: Figure | None, quantity: Quantity, family: str) -> str:
        if figure is None:
            return "–"
        text = f"{figure.median:,.{quantity.digits}f}"
        if figure.low != figure.high:
            text += f" ({figure.low:,.{quantity.digits}f}–{figure.high:,.{quantity.digits}f})"
        unit = f" {quantity.unit}" if quantity.unit else ""
        several = len(self._peers.get(family, [])) > 1
        return text + unit + (f", {self._setting(figure.key)}" if several else "")

    def _setting(self, key: str) -> str:
        """The label without the family's name."""
        label = self._record.label(key)
        return label.removeprefix(self._family_name(self._family(key))).strip() or label

    def _family(self, key: str) -> str:
        return next(entrant.family for entrant in self._record.entrants if entrant.key == key)

    def _family_name(self, family: str) -> str:
        """The beginning that the labels of a family share."""
        labels = [self._record.label(key).split() for key in self._peers[family]]
        shared = [words[0] for words in zip(*labels, strict=False) if len(set(words)) == 1]
        return " ".join(word for word in shared if not word.startswith("-"))

    def _turns(self) -> str:
        """How many turns everybody had."""
        had: dict[int, list[str]] = {}
        for entrant in self._record.entrants:
            turns = sum(leg.key == entrant.key and not leg.error for leg in self._record.legs)
            had.setdefault(turns, []).append(entrant.label)
        if len(had) == 1:
            return f"Turns of each: {next(iter(had))}"
        return "Turns: " + "; ".join(f"{count} of {', '.join(labels)}" for count, labels in had.items())

    def _prompt_tokens(self) -> str:
        counts = [point.prompt_tokens_mean for point in self._standings.points() if point.num_answers]
        if not counts:
            return "?"
        low, high = min(counts), max(counts)
        return f"{low:.0f}" if round(low) == round(high) else f"{low:.0f}–{high:.0f} on average"

    def _conditions(self) -> list[str]:
        points = [point for point in self._standings.points() if point.elapsed_s and point.server]
        if not points:
            return []
        client = max(point.client_cpu_s / point.elapsed_s for point in points)
        other = [max(0.0, point.other_cpu_s) / point.elapsed_s for point in points]
        return [
            f"The client took at most {client:.0%} of a core; everything else on the machine "
            f"{statistics.median(other):.0%} (median), at most {max(other):.0%}."
        ]

    def _cut_offs(self) -> list[str]:
        found: dict[str, str] = {}
        for entrant in self._record.entrants:
            for point in self._standings.points(entrant.key):
                if point.is_cut_off:
                    found[f"{entrant.key} {point.concurrency}"] = (
                        f"{entrant.label} was cut off at {point.concurrency} at a time after {entrant.limit_s:g} s, "
                        f"with {point.num_answers} of {point.num_requests} answers; no more was tried there or above."
                    )
        return list(found.values())

    def _failures(self) -> list[str]:
        failed = {leg.key: leg for leg in self._record.legs if leg.error}
        notes = [f"{self._record.label(key)} {leg.error.splitlines()[0]}" for key, leg in failed.items()]
        for entrant in self._record.entrants:
            points = [point for point in self._standings.points(entrant.key) if not point.is_cut_off]
            lost = sum(point.num_requests - point.num_answers for point in points)
            short = sum(point.num_short for point in points)
            notes += [f"{entrant.label}: {lost} requests failed."] if lost else []
            notes += [f"{entrant.label}: {short} answers were shorter than asked for."] if short else []
        return notes


def _plain(figure: Figure | None, quantity: Quantity) -> str:
    return "–" if figure is None else f"{figure.median:,.{quantity.digits}f}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
