"""Where things are kept and listened on: the default model, sockets, ports."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from services.doctor.finding import Finding, fail, ok, warn
from services.launcher.listening import check_free
from services.launcher.runtime_directory import RuntimeDirectory, RuntimeDirectoryError
from services.models import default_model
from services.rpc.listening import MAX_UNIX_PATH_BYTES, AddressInUseError, ListenError

_LONGEST_SOCKET = "head.sock"


def model(cache: Path) -> Finding:
    """Whether the default model has been fetched; nothing is fetched here."""
    path = default_model.cached(cache)
    if path is not None:
        return ok("default model", str(path))
    if not _writable(cache):
        return warn("default model", f"not in {cache}, which cannot be written", "give another --model-cache, or MODEL")
    text = f"not in {cache} yet: the first start without MODEL fetches {default_model.SIZE_BYTES // 10**6} MB"
    return warn("default model", text, "muster fetch")


def sockets(base: Path | None) -> Finding:
    """Makes the launcher's private directory and a socket in it, and takes both away."""
    try:
        with RuntimeDirectory(base) as directory:
            path = directory / _LONGEST_SOCKET
            length = len(os.fsencode(path))
            if length > MAX_UNIX_PATH_BYTES:
                text = f"{path} has {length} bytes, a socket's path at most {MAX_UNIX_PATH_BYTES}"
                return fail("sockets", text, "give a shorter --runtime-dir")
            with socket.socket(socket.AF_UNIX) as probe:
                probe.bind(str(path))
            return ok("sockets", f"{directory.parent} is writable; paths of {length} bytes, {MAX_UNIX_PATH_BYTES} fit")
    except (RuntimeDirectoryError, OSError) as error:
        return fail("sockets", str(error), "give a short writable directory with --runtime-dir")


def port(name: str, host: str, number: int, flag: str) -> Finding:
    """Whether `muster serve` could listen there. `flag` names what chooses the port."""
    if number == 0:
        return ok(name, "0: a free one is taken and told")
    try:
        check_free(host, number, flags=flag)
    except AddressInUseError:
        fix = f"stop it (a Muster? muster status tells), or choose another with {flag}"
        return fail(name, f"{host}:{number} is in use by another process", fix)
    except ListenError as error:
        return fail(name, str(error), f"choose another with {flag}")
    return ok(name, f"{host}:{number} is free")


def _writable(path: Path) -> bool:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK)
