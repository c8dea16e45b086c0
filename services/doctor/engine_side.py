"""The engine's own findings, from a process of its own: this side never imports torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from services.doctor.finding import Finding, Level, fail

# A first compilation on a slow machine, and torch's import after it.
_TIMEOUT_S = 300.0


def engine_findings(
    cache: Path, device: str, dtype: str, kernels: str, *, python: Sequence[str] = (sys.executable,)
) -> list[Finding]:
    """What `python -m engine.doctor` found, or one finding about why it could not tell."""
    command = [*python, "-m", "engine.doctor", "--cache", str(cache)]
    command += ["--device", device, "--dtype", dtype, "--kernels", kernels]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [fail("engine", f"its diagnosis could not be run: {error}", "install Muster again in a fresh venv")]
    try:
        return [
            Finding(each["name"], Level(each["level"]), each["text"], each["fix"]) for each in json.loads(done.stdout)
        ]
    except (ValueError, KeyError, TypeError):
        said = done.stderr.strip().splitlines()
        text = f"its diagnosis ended with exit code {done.returncode}: {said[-1] if said else 'it said nothing'}"
        return [fail("engine", text, "run `python -m engine.doctor --cache DIRECTORY` to see all of it")]
