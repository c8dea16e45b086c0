"""The screen of `muster top`: two answers of the head in, lines that fit the terminal out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from muster import v1 as wire

from services.cli.status_command import duration, state_name

_BOLD, _RED, _YELLOW, _GREEN, _DIM, _PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[2m", "\x1b[0m"
_COLOURS = {
    wire.RANK_STATE_READY: _GREEN,
    wire.RANK_STATE_LOST: _RED,
    wire.RANK_STATE_MISSING: _RED,
    wire.RANK_STATE_JOINING: _YELLOW,
    wire.RANK_STATE_DRAINING: _YELLOW,
}
_HEADER = ("RANK", "STATE", "FOR", "RUN", "WAIT", "KV", "HIT", "IN/S", "OUT/S", "AGE", "HOST")
# Digits to the right, words to the left; the last column takes what is left of the line.
_WIDTHS = (4, -17, 6, 4, 4, 4, 4, 6, 6, 5)


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer of the head; `at_s` is seconds since the epoch."""

    deployment: wire.GetDeploymentResponse
    at_s: float


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one rank or of all, between two samples; None when they cannot be told."""

    prompt_tokens: float | None = None  # per second
    generated_tokens: float | None = None  # per second
    hit_rate: float | None = None  # of the prompt tokens looked up in the prefix cache, 0 to 1


def rates(before: wire.RankLoad | None, after: wire.RankLoad, seconds: float) -> Rates:
    """Nothing for a process that was not there before, and the hit rate since its start when nothing was looked up."""
    stats = after.stats
    if before is None or before.incarnation != after.incarnation or seconds <= 0:
        return Rates(hit_rate=_share(stats.prefix_cache_hits_total, stats.prefix_cache_queries_total))
    old = before.stats
    queries = stats.prefix_cache_queries_total - old.prefix_cache_queries_total
    hits = stats.prefix_cache_hits_total - old.prefix_cache_hits_total
    return Rates(
        prompt_tokens=max(0, stats.prompt_tokens_total - old.prompt_tokens_total) / seconds,
        generated_tokens=max(0, stats.generated_tokens_total - old.generated_tokens_total) / seconds,
        hit_rate=_share(hits, queries)
        if queries > 0
        else _share(stats.prefix_cache_hits_total, stats.prefix_cache_queries_total),
    )


def screen_lines(
    before: Sample | None, now: Sample, *, width: int = 80, height: int | None = None, colour: bool = False
) -> list[str]:
    """At most `height` lines of at most `width` characters."""
    seconds = now.at_s - before.at_s if before is not None else 0.0
    old = {load.rank: load for load in before.deployment.loads} if before is not None else {}
    loads = {load.rank: load for load in now.deployment.loads}
    by_rank = {rank: rates(old.get(rank), load, seconds) for rank, load in loads.items()}
    roster = now.deployment.roster
    rows = [_row(entry, loads.get(entry.rank), by_rank.get(entry.rank, Rates()), now.at_s) for entry in roster.ranks]
    lines = [*_summary(now, by_rank), "", _paint(_line(_HEADER, width), _BOLD, colour)]
    room = len(rows) if height is None else max(1, height - len(lines) - 2)
    shown = _most_interesting(roster.ranks, room)
    lines += [_paint(_line(rows[index], width), _COLOURS.get(roster.ranks[index].state, ""), colour) for index in shown]
    if len(shown) < len(rows):
        lines.append(_paint(f"and {len(rows) - len(shown)} more ranks", _DIM, colour))
    return [line if colour else line[:width] for line in lines]


def _summary(now: Sample, by_rank: dict[int, Rates]) -> list[str]:
    roster, loads = now.deployment.roster, now.deployment.loads
    ready = sum(entry.state == wire.RANK_STATE_READY for entry in roster.ranks)
    up = duration(now.at_s - now.deployment.started_at.seconds)
    running, waiting = sum(load.stats.running for load in loads), sum(load.stats.waiting for load in loads)
    known = [rate for rate in by_rank.values() if rate.generated_tokens is not None]
    tokens = f"{sum(rate.generated_tokens or 0 for rate in known):.0f} tokens/s out, " if known else ""
    tokens += f"{sum(rate.prompt_tokens or 0 for rate in known):.0f} in" if known else "tokens/s with the next sample"
    return [
        f"{roster.deployment_id}: {ready} of {roster.data_parallel_size} ranks ready, "
        f"{_many(len(roster.gateways), 'gateway')}, head up {up}",
        f"{running} running, {waiting} waiting, {tokens}",
    ]


def _row(entry: wire.RankEntry, load: wire.RankLoad | None, rate: Rates, now_s: float) -> tuple[str, ...]:
    since = duration(now_s - entry.since.seconds) if entry.HasField("since") else "-"
    where = entry.host if entry.state in {wire.RANK_STATE_READY, wire.RANK_STATE_JOINING} else entry.reason
    if load is None:
        return (str(entry.rank), state_name(entry), since, *("-",) * 7, where)
    stats = load.stats
    usage = f"{stats.kv_usage:.0%}" if stats.HasField("kv_usage") else "-"
    hits = "-" if rate.hit_rate is None else f"{rate.hit_rate:.0%}"
    numbers = (str(stats.running), str(stats.waiting), usage, hits, _per_second(rate.prompt_tokens))
    age = f"{load.age_ms / 1000:.1f}s"
    return (str(entry.rank), state_name(entry), since, *numbers, _per_second(rate.generated_tokens), age, where)


def _line(cells: Sequence[str], width: int) -> str:
    parts = [
        cell[:-columns].ljust(-columns) if columns < 0 else cell.rjust(columns)
        for cell, columns in zip(cells, _WIDTHS, strict=False)
    ]
    return " ".join([*parts, cells[-1]])[:width].rstrip()


def _most_interesting(entries: Sequence[wire.RankEntry], room: int) -> list[int]:
    """Indices in order of rank; when not all fit, those that are not READY come first."""
    order = sorted(range(len(entries)), key=lambda index: (entries[index].state == wire.RANK_STATE_READY, index))
    return sorted(order[:room])


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole > 0 else None


def _per_second(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:.0f}" if rate < 100_000 else f"{rate / 1000:.0f}k"


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _paint(line: str, code: str, colour: bool) -> str:
    return f"{code}{line}{_PLAIN}" if colour and code else line
