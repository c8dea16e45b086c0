"""`muster --help` and `muster status` are typed often: nothing heavy is imported for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Ends where the interpreter looks for grpc, which reads its variables when it is loaded.
_ENGINE_UNTIL_GRPC = """
import os, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print(os.environ.get("GRPC_POLL_STRATEGY"), flush=True)
            os._exit(0)

sys.meta_path.insert(0, Finder())
from services.cli.main import main
sys.exit(main(["engine", sys.argv[1], "--head-target", "unix:/none", "--data-parallel-size", "1", "--rank", "0"]))
"""


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


@pytest.mark.parametrize("chosen", [None, "epoll1"])
def test_an_engine_polls_only_for_what_it_awaits(chosen: str | None, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")  # looked at by its first letters only
    unset = {name: value for name, value in os.environ.items() if name != "GRPC_POLL_STRATEGY"}
    environment = unset | ({} if chosen is None else {"GRPC_POLL_STRATEGY": chosen})
    command = [sys.executable, "-c", _ENGINE_UNTIL_GRPC, str(model)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert done.stdout.split() == [chosen or "poll"]
