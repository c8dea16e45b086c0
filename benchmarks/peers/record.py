"""A race as JSON: written after every leg, read again to make tables and pictures."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.load.processes import ProcessUse, TreeUse
from benchmarks.load.summary import PointResult, Spread
from benchmarks.peers.contestant import Contestant
from benchmarks.peers.race import Course, Leg

_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Entrant:
    """What the reader of a table needs of a contestant."""

    key: str
    label: str
    family: str
    says: str
    is_default: bool
    limit_s: float | None

    @staticmethod
    def of(contestant: Contestant) -> Entrant:
        return Entrant(
            contestant.key,
            contestant.label,
            contestant.family,
            contestant.says,
            contestant.is_default,
            contestant.limit_s,
        )


@dataclass(slots=True)
class Record:
    """Everything about one race."""

    date: str
    machine: str
    commit: str
    model: str
    course: Course
    entrants: list[Entrant]
    legs: list[Leg] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Replaces the file as a whole, so that an interrupted race leaves the legs before."""
        being_written = path.with_suffix(".part")
        being_written.write_text(json.dumps(asdict(self), indent=1) + "\n")
        being_written.replace(path)

    @staticmethod
    def read(path: Path) -> Record:
        """Raises ValueError for a file that is no record."""
        try:
            raw = json.loads(path.read_text())
            course = raw.pop("course") | {}
            course = {name: tuple(value) if isinstance(value, list) else value for name, value in course.items()}
            entrants = [Entrant(**entrant) for entrant in raw.pop("entrants")]
            legs = [_leg(leg) for leg in raw.pop("legs")]
            return Record(**raw, course=Course(**course), entrants=entrants, legs=legs)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no record of this version of benchmarks.versus: {error}") from None

    def label(self, key: str) -> str:
        return next(entrant.label for entrant in self.entrants if entrant.key == key)


def describe_machine() -> str:
    memory_gib = psutil.virtual_memory().total / 2**30
    return f"{_processor()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()} {platform.machine()}"


def describe_commit() -> str:
    """Of this checkout; "" outside one."""
    done = subprocess.run(
        ["git", "-C", str(_REPOSITORY), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def _processor() -> str:
    """The model's name, and the instruction sets that matter here."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or "unknown processor"
    facts = dict(line.split(":", 1) for line in text.split("\n\n", 1)[0].splitlines() if ":" in line)
    facts = {name.strip(): value.strip() for name, value in facts.items()}
    flags = set(facts.get("flags", "").split())
    sets = {"AMX": "amx_bf16", "AVX-512": "avx512f", "AVX2": "avx2"}
    known = [name for name, flag in sets.items() if flag in flags]
    return " with ".join(part for part in (facts.get("model name", "unknown processor"), ", ".join(known)) if part)


def _leg(raw: dict[str, Any]) -> Leg:
    return Leg(**{**raw, "points": tuple(_point(point) for point in raw["points"])})


def _point(raw: Mapping[str, Any]) -> PointResult:
    spreads = {name: Spread(**value) for name, value in raw.items() if name.endswith("_ms")}
    server = raw["server"]
    if server is not None:
        server = TreeUse(**{**server, "processes": tuple(ProcessUse(**process) for process in server["processes"])})
    return PointResult(**{**raw, **spreads, "server": server})
