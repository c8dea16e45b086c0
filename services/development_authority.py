"""A certificate authority for development: one key in a directory that signs node certificates (X.509, RFC 5280)."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_CA_DAYS = 3650
# Clocks of nodes differ; a certificate that is valid from this second on is not yet valid elsewhere.
_BACKDATED = timedelta(hours=1)
_DNS_LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")


class AuthorityError(Exception):
    """The files in the directory are no authority that can sign."""


class InvalidNameError(ValueError):
    """Neither a DNS name nor an address."""


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """The two files of one node, PEM."""

    node: str
    certificate: Path
    key: Path


class Authority:
    """ca.crt and ca.key of a directory. Keys are P-256, readable by their owner only."""

    def __init__(self, directory: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._directory = directory
        self._certificate = certificate
        self._key = key

    @classmethod
    def in_directory(cls, directory: Path, *, days: int) -> Authority:
        """The one that lies there, or a new one, valid for ten years or `days` if that is more.

        Raises AuthorityError for files that are no authority, OSError when nothing can be written.
        """
        directory.mkdir(parents=True, exist_ok=True)
        certificate_path, key_path = directory / "ca.crt", directory / "ca.key"
        if certificate_path.exists() != key_path.exists():
            raise AuthorityError(f"{directory} has only one of ca.crt and ca.key; restore the other, or remove it")
        if not key_path.exists():
            return cls._new(directory, days=max(days, _CA_DAYS))
        try:
            certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
            key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
        except (ValueError, TypeError) as error:
            raise AuthorityError(f"ca.crt and ca.key in {directory} cannot be read as an authority: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise AuthorityError(f"ca.key in {directory} is not the key of ca.crt; choose another --directory")
        return cls(directory, certificate, key)

    @classmethod
    def _new(cls, directory: Path, *, days: int) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Muster development authority")])
        certificate = (
            _builder(name, name, key, days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        authority = cls(directory, certificate, key)
        _write_key(authority.key_path, key)
        _write(authority.certificate_path, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)
        return authority

    @property
    def certificate_path(self) -> Path:
        return self._directory / "ca.crt"

    @property
    def key_path(self) -> Path:
        return self._directory / "ca.key"

    def issue(self, node: str, *, also: Iterable[str] = (), days: int) -> NodeFiles:
        """A certificate for `node`, `also`, localhost and the loopback addresses, for both ends of a connection.

        Replaces the node's files. Raises InvalidNameError.
        """
        if node == "ca":
            raise InvalidNameError("'ca' would take the authority's own files; give the node another name")
        names = dict.fromkeys(_general_name(name) for name in (node, *also, "localhost", "127.0.0.1", "::1"))
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node[:64])])
        certificate = (
            _builder(subject, self._certificate.subject, key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName(list(names)), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        stem = re.sub(r"[^A-Za-z0-9.-]", "_", node)
        files = NodeFiles(node, self._directory / f"{stem}.crt", self._directory / f"{stem}.key")
        _write_key(files.key, key)
        _write(files.certificate, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)
        return files


def _general_name(text: str) -> x509.GeneralName:
    bare = text.removeprefix("[").removesuffix("]")
    try:
        return x509.IPAddress(ipaddress.ip_address(bare))
    except ValueError:
        pass
    labels = text.removeprefix("*.").rstrip(".").split(".")
    if len(text) > 253 or not all(_DNS_LABEL.fullmatch(label) for label in labels):
        raise InvalidNameError(f"{text!r} is neither a host name nor an address; give for example node-1 or 10.0.0.1")
    return x509.DNSName(text)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + timedelta(days=days))
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    content = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(path, content, mode=0o600)


def _write(path: Path, content: bytes, *, mode: int) -> None:
    """Atomically, so that a process that watches the file never reads half of it."""
    scratch = path.with_name(f".{path.name}.new")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    os.replace(scratch, path)
