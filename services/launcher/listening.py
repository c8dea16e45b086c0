"""Ports taken by the launcher before anything starts: HTTP sockets to hand on, the gRPC port to share."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from pathlib import Path

from services.rpc.listening import (
    AddressInUseError,
    ListenError,
    TcpAddress,
    is_absent,
    prepare_unix_path,
    resolve,
)

_BACKLOG = 2048


@dataclass(slots=True)
class HttpSockets:
    """Listening sockets that all gateways accept from, so that a restarted one misses no connection."""

    sockets: list[socket.socket]
    port: int  # 0 for a Unix socket
    path: Path | None = None  # of a Unix socket

    @property
    def fds(self) -> tuple[int, ...]:
        return tuple(each.fileno() for each in self.sockets)

    def close(self) -> None:
        for each in self.sockets:
            each.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def listen_unix(path: Path) -> HttpSockets:
    """Listens on a Unix socket; who may connect is for the directory and the umask to say. Raises ListenError."""
    try:
        prepare_unix_path(path)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            bound.bind(str(path))
            bound.listen(_BACKLOG)
        except BaseException:
            bound.close()
            raise
    except (ListenError, OSError) as error:
        raise ListenError(f"--uds {path}: {getattr(error, 'strerror', None) or error}") from None
    return HttpSockets([bound], 0, path)


def listen_http(host: str, port: int) -> HttpSockets:
    """Listens on every address of `host`. Raises ListenError, AddressInUseError naming the flags."""
    sockets: list[socket.socket] = []
    try:
        for address in _present(host, port, "--host/--port"):
            bound = _bind(address, port, host=host, flags="--host/--port", reuse_port=False)
            sockets.append(bound)
            bound.listen(_BACKLOG)
            port = bound.getsockname()[1]
    except BaseException:
        for each in sockets:
            each.close()
        raise
    return HttpSockets(sockets, port)


class ReservedPort:
    """A port kept for servers that share it by SO_REUSEPORT: bound, but never listening, so it gets no connection."""

    def __init__(self, host: str, port: int, *, flags: str) -> None:
        address = _present(host, port, flags)[0]
        # Sharing hides a clash with our own user's other programs, so the port must be free for one alone first.
        exclusive = _bind(address, port, host=host, flags=flags, reuse_port=False)
        self.port: int = exclusive.getsockname()[1]
        exclusive.close()
        self._socket = _bind(address, self.port, host=host, flags=flags, reuse_port=True)
        # It was needed to bind beside connections that are still closing; kept, it would let others bind here too.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)

    def close(self) -> None:
        self._socket.close()


def check_free(host: str, port: int, *, flags: str) -> None:
    """Says early, and with the flags' names, that a child could not listen there."""
    _bind(_present(host, port, flags)[0], port, host=host, flags=flags, reuse_port=False).close()


def address_towards(host: str, port: int) -> str:
    """This node's address on the way to `host`; no packet is sent."""
    try:
        ways = socket.getaddrinfo(host.removeprefix("[").removesuffix("]"), port, type=socket.SOCK_DGRAM)
    except (socket.gaierror, UnicodeError) as error:
        raise ListenError(f"cannot resolve {host!r} given by --data-parallel-address: {error}") from error
    for family, kind, protocol, _, address in ways:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(address)
            except OSError:
                continue
            return str(probe.getsockname()[0])
    raise ListenError(f"no way to {host!r} given by --data-parallel-address; check address and network")


def _present(host: str, port: int, flags: str) -> list[TcpAddress]:
    addresses = resolve(host, flags=flags)
    present = [address for address in addresses if not is_absent(address)]
    if not present:
        raise ListenError(
            f"cannot listen on {addresses[0].with_port(port)}: not an address of this host; change {flags}"
        )
    return present[:1] if port == 0 else present


def _bind(address: TcpAddress, port: int, *, host: str, flags: str, reuse_port: bool) -> socket.socket:
    bound = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if address.family == socket.AF_INET6:
            # "::" stands for IPv4 too, as it does for gRPC.
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if address.host == "::" else 1)
        bound.bind((address.host, port))
        if not reuse_port:
            bound.listen(1)  # two sockets with SO_REUSEADDR may bind one port; only one of them may listen
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUseError(host, port, flags) from None
        raise ListenError(f"cannot listen on {address.with_port(port)}: {error.strerror}; change {flags}") from None
    return bound
