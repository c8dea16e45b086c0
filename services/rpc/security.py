"""The security flags of one process: which files they name, and whether they can be honoured.

The flags are the same for every process of a deployment. TCP ports speak TLS when there is a certificate, and ask
callers for one when there is an authority to check it against. Unix sockets lie in a private directory and speak
plaintext; tokens are asked for on both.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.rpc.listening import is_loopback


class SecurityError(Exception):
    """A security flag that cannot be honoured; the message names it and the fix. A process must not start without."""


@dataclass(frozen=True, slots=True)
class Security:
    """Paths and switches as given; None means "not given"."""

    tls_cert: Path | None = None  # PEM, the certificate of this process first, then its intermediates
    tls_key: Path | None = None  # PEM, without a passphrase
    tls_ca: Path | None = None  # PEM, the authorities that peers' certificates are checked against
    tls_client_auth: bool = True  # with tls_ca: callers must show a certificate
    tls_server_name: str | None = None  # the name in peers' certificates, when it is not the address dialled
    cluster_token_file: Path | None = None
    reflection: bool = True

    @property
    def serves_tls(self) -> bool:
        return self.tls_cert is not None

    @property
    def dials_tls(self) -> bool:
        return self.tls_cert is not None or self.tls_ca is not None

    def flags(self) -> tuple[str, ...]:
        """The flags that give a child process the same doors."""
        given: list[str] = []
        for flag, value in (
            ("--tls-cert", self.tls_cert),
            ("--tls-key", self.tls_key),
            ("--tls-ca", self.tls_ca),
            ("--tls-server-name", self.tls_server_name),
            ("--cluster-token-file", self.cluster_token_file),
        ):
            given += [] if value is None else [flag, str(value)]
        given += [] if self.tls_client_auth else ["--no-tls-client-auth"]
        given += [] if self.reflection else ["--no-grpc-reflection"]
        return tuple(given)


OPEN = Security()


def exposure_warning(host: str, security: Security) -> str | None:
    """What to say loudly about a port that other machines reach; None when nothing is open."""
    if is_loopback(host):
        return None
    missing = []
    if not security.serves_tls:
        missing.append("without TLS (--tls-cert, --tls-key, --tls-ca): prompts and answers can be read on the way")
    if security.cluster_token_file is None and not (
        security.serves_tls and security.tls_ca and security.tls_client_auth
    ):
        missing.append("without a cluster token (--cluster-token-file): whoever reaches the port may do everything")
    return f"gRPC on {host} is open to other machines {'; and '.join(missing)}" if missing else None
