"""Who this process is, as others tell processes and hosts apart."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import socket
import time
import uuid
from pathlib import Path

from services.rpc.listening import is_wildcard


def host_name() -> str:
    """The host's name, for people."""
    return socket.gethostname()


def host_id() -> str:
    """Equal exactly for processes that reach each other's Unix sockets and loopback addresses.

    Containers of one machine differ by their network and mount namespaces, machines by their boot id.
    """
    parts = [socket.gethostname(), _boot_id(), _namespace("net"), _namespace("mnt")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def new_incarnation() -> int:
    """Microseconds since the epoch: grows with every restart of a process on one host."""
    return time.time_ns() // 1000


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux: the hardware address tells machines apart
        return f"{uuid.getnode():x}"


def _namespace(kind: str) -> str:
    try:
        return str(os.stat(f"/proc/self/ns/{kind}").st_ino)
    except OSError:
        return ""


def tcp_target(host: str, port: int) -> str:
    """The gRPC target others dial for a bound or advertised host; wildcards become this host's name."""
    if is_wildcard(host):
        host = host_name()
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return f"dns:///{host}:{port}"
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
