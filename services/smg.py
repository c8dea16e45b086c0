"""What has to hold before the smg router's protocol is served; imports nothing of it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from services.rpc.security import Security, SecurityError


def check_smg(security: Security, api_keys: Sequence[str]) -> None:
    """Raises SecurityError for doors that smg cannot pass, and without its stubs.

    The router dials in plaintext and shows no credentials. Its service could only stand beside locked doors, open.
    """
    locked = [
        flag
        for flag, given in (
            ("--tls-cert", security.tls_cert),
            ("--tls-ca", security.tls_ca),
            ("--cluster-token-file", security.cluster_token_file),
            ("--api-key", api_keys),
        )
        if given
    ]
    if locked:
        raise SecurityError(
            f"--smg with {locked[0]}: the smg router dials its workers in plaintext and shows neither token nor key, "
            "so its service would be a way around; leave one of the two out"
        )
    if find_spec("smg_grpc_proto") is None:
        raise SecurityError("--smg needs the package smg-grpc-proto: install muster[smg]")
