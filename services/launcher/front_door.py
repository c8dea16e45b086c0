"""Whether a gateway behind the launcher's HTTP socket can serve yet."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FrontDoor:
    """Where the launcher itself listens for HTTP: on a Unix socket, or on a port."""

    host: str
    port: int
    uds: Path | None = None
    tls: bool = False


async def answers_ready(door: FrontDoor) -> bool:
    """Whether a gateway's /readyz says 200."""
    # Who answers on our own socket need not be proven; a certificate is made out to another name than this one.
    trust = ssl._create_unverified_context() if door.tls else None
    try:
        if door.uds is not None:
            reader, writer = await asyncio.open_unix_connection(str(door.uds), ssl=trust, server_hostname=_name(door))
        else:
            reader, writer = await asyncio.open_connection(door.host, door.port, ssl=trust)
    except OSError:
        return False
    try:
        host = _name(door) or "localhost"
        writer.write(f"GET /readyz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        status = await reader.readline()
        return b" 200 " in status
    except OSError:
        return False
    finally:
        writer.close()


def _name(door: FrontDoor) -> str | None:
    if door.uds is not None:
        return "localhost" if door.tls else None
    return door.host
