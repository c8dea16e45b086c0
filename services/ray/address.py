"""Whether a cluster answers at an address, asked before Ray is: Ray itself would try for minutes."""

from __future__ import annotations

import socket

from services.ray.installed import RayBackendError

_ANSWER_S = 5.0


def check_address(address: str, where: str) -> None:
    """`where` is the flag or variable that has the address. Raises RayBackendError."""
    if "://" in address:
        raise RayBackendError(
            f"{where} {address}: head and gateways run where this command does, so that this must be a node of the "
            "cluster; give the HOST:PORT of the cluster's head, and no Ray Client URL"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return  # "auto", "local": Ray's own words, which it understands or refuses at once
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise RayBackendError(not_joined_text(address, where, str(error))) from None


def not_joined_text(address: str, where: str, reason: str) -> str:
    return (
        f"{where} {address}: no Ray cluster can be joined there: {reason}; `ray status` on this node says whether it "
        "is part of one, `ray start --address HEAD:6379` makes it one"
    )
