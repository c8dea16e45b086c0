"""Certificates for tests: an authority in a directory, and what is wrong with those of others."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from services.development_authority import Authority
from services.rpc.security import Security


class TestAuthority:
    """One authority; `node` makes the Security of one process."""

    __test__ = False

    def __init__(self, directory: Path) -> None:
        self._authority = Authority.in_directory(directory, days=30)

    @property
    def certificate(self) -> Path:
        return self._authority.certificate_path

    def node(self, name: str = "node", *, also: tuple[str, ...] = ()) -> Security:
        """Mutual TLS with a fresh certificate of this authority."""
        files = self._authority.issue(name, also=also, days=30)
        return Security(tls_cert=files.certificate, tls_key=files.key, tls_ca=self.certificate)

    def caller(self) -> Security:
        """TLS without a certificate of one's own."""
        return Security(tls_ca=self.certificate)

    def expired(self, name: str = "expired") -> Security:
        """A certificate whose last day was yesterday."""
        node = self.node(name)
        assert node.tls_cert is not None
        assert node.tls_key is not None
        issued = x509.load_pem_x509_certificate(node.tls_cert.read_bytes())
        authority_key = serialization.load_pem_private_key(self._authority.key_path.read_bytes(), password=None)
        assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(issued.subject)
            .issuer_name(issued.issuer)
            .public_key(issued.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=3))
            .not_valid_after(now - timedelta(days=1))
        )
        for extension in issued.extensions:
            builder = builder.add_extension(extension.value, critical=extension.critical)
        signed = builder.sign(authority_key, hashes.SHA256())
        node.tls_cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return node


def write_tokens(path: Path, text: str, security: Security | None = None) -> Security:
    """`security`, or open doors, with a token file of this text."""
    path.write_text(text)
    return replace(security or Security(), cluster_token_file=path)
