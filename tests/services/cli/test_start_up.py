"""`muster --help` and `muster status` are typed often: nothing heavy is imported for them."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("services.cli.parser", {"grpc", "httpx", "asyncio", "torch", "engine", "gateway"}),
        ("services.cli.main", {"grpc", "httpx", "torch", "engine", "gateway"}),
        ("services.cli.serve_command", {"torch", "engine", "gateway", "uvicorn", "tokenizers"}),
        ("services.cli.status_command", {"torch", "engine", "gateway", "uvicorn", "tokenizers", "httpx"}),
        ("services.cli.process_commands", {"torch", "engine", "gateway", "uvicorn", "tokenizers", "grpc"}),
    ],
)
def test_a_command_imports_only_its_own(module: str, absent: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted({absent!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []
