"""The security flags of any command, read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from services.cli.flag import FlagValueError
from services.rpc.security import Security, SecurityError

if TYPE_CHECKING:
    from services.rpc.channels import Dialer


def security_of(values: Mapping[str, Any]) -> Security:
    """What a command does not have (only servers ask for certificates) keeps its default."""
    return Security(
        tls_cert=values["tls_cert"],
        tls_key=values["tls_key"],
        tls_ca=values["tls_ca"],
        tls_client_auth=values.get("tls_client_auth", True),
        tls_server_name=values["tls_server_name"],
        cluster_token_file=values["cluster_token_file"],
        reflection=values.get("grpc_reflection", True),
    )


def dialer_of(values: Mapping[str, Any]) -> Dialer:
    """For commands that only dial. Raises FlagValueError for files that cannot be used."""
    from services.rpc.channels import Dialer  # grpc takes a while to import

    try:
        return Dialer(security_of(values))
    except SecurityError as error:
        raise FlagValueError(str(error)) from None
