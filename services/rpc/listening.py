"""Where a server listens: resolving names, diagnosing failures, clearing stale sockets."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

# sockaddr_un holds 108 bytes on Linux and 104 on macOS, with a closing zero.
MAX_UNIX_PATH_BYTES = 100


class ListenError(Exception):
    """The process cannot listen where its flags say."""


class AddressInUseError(ListenError):
    """Somebody else listens there; `flags` names what chooses the address."""

    def __init__(self, host: str, port: int, flags: str) -> None:
        super().__init__(
            f"{host}:{port} is in use by another process; stop that process, or choose another port with {flags}"
            " (port 0 takes a free one)"
        )
        self.host = host
        self.port = port
        self.flags = flags


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A numeric address to bind."""

    family: int
    host: str

    def with_port(self, port: int) -> str:
        return f"[{self.host}]:{port}" if self.family == socket.AF_INET6 else f"{self.host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what is bound to `host`."""
    bare = host.removeprefix("[").removesuffix("]")
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return bare == "localhost"


def is_wildcard(host: str) -> bool:
    """Whether `host` stands for all addresses of whoever binds it, and so for none that others could dial."""
    return host.removeprefix("[").removesuffix("]") in ("", "*", "0.0.0.0", "::")


def resolve(host: str, *, flags: str) -> list[TcpAddress]:
    """The numeric addresses behind an IPv4 or IPv6 address (brackets allowed) or a name."""
    bare = host.removeprefix("[").removesuffix("]")
    try:
        infos = socket.getaddrinfo(bare, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ListenError(
            f"cannot resolve {host!r} given by {flags}: {error}; use an address of this host, for example 127.0.0.1"
        ) from error
    addresses = [
        TcpAddress(family, str(address[0]))
        for family, _, _, _, address in infos
        if family in (socket.AF_INET, socket.AF_INET6)
    ]
    return list(dict.fromkeys(addresses))


def check_can_bind(address: TcpAddress, port: int, *, host: str, flags: str, reuse_port: bool) -> None:
    """Binds for a moment; raises AddressInUseError, or ListenError with the system's words."""
    with socket.socket(address.family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            probe.bind((address.host, port))
            if not reuse_port:  # listening beside a sibling would take connections meant for it
                probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise AddressInUseError(host, port, flags) from error
            raise ListenError(
                f"cannot listen on {address.with_port(port)}: {error.strerror}; change {flags}"
            ) from error


def is_absent(address: TcpAddress) -> bool:
    """True when this host does not have the address, for example ::1 where IPv6 is switched off."""
    try:
        with socket.socket(address.family, socket.SOCK_STREAM) as probe:
            probe.bind((address.host, 0))
    except OSError as error:
        return error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return False


def prepare_unix_path(path: Path) -> str:
    """Checks a socket's path, removes what a dead process left there and returns the gRPC target."""
    absolute = path if path.is_absolute() else Path.cwd() / path
    num_bytes = len(os.fsencode(absolute))
    if num_bytes > MAX_UNIX_PATH_BYTES:
        raise ListenError(
            f"the Unix socket path {absolute} has {num_bytes} bytes; at most {MAX_UNIX_PATH_BYTES} are possible."
            " Choose a shorter runtime directory"
        )
    try:
        mode = os.lstat(absolute).st_mode
    except FileNotFoundError:
        if not absolute.parent.is_dir():
            raise ListenError(f"the directory of the Unix socket {absolute} does not exist; create it") from None
        return f"unix:{absolute}"
    if not stat.S_ISSOCK(mode):
        raise ListenError(f"{absolute} exists and is not a socket; remove it or choose another path")
    if _is_answering(absolute):
        raise ListenError(f"another process listens on the Unix socket {absolute}; stop it or choose another path")
    absolute.unlink(missing_ok=True)
    return f"unix:{absolute}"


def _is_answering(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fsencode(path))
        except TimeoutError:
            return True  # its backlog is full: busy, not dead
        except OSError:
            return False
    return True
