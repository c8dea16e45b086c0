"""Certificates from files: checked before anything starts, read again when the files change."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from pathlib import Path

import grpc

from services.rpc.certificate_dates import check_dates
from services.rpc.security import Security, SecurityError

_log = logging.getLogger(__name__)

_Stamp = tuple[int, int, int]  # of one file: modification time in ns, size, inode


class Certificates:
    """What TLS needs of `security`, as gRPC takes it.

    A file that changed is used from the next handshake on, so that a certificate is rotated by replacing its files;
    files that make no sense meanwhile (half written, key without its certificate) are told once and the last good
    ones stay in use.
    """

    def __init__(self, security: Security) -> None:
        """Raises SecurityError when the files cannot be used."""
        self._security = security
        self._files = [path for path in (security.tls_cert, security.tls_key, security.tls_ca) if path is not None]
        check(security)
        self._stamps = self._stamp()
        self._material = _read(security)
        self._server_name = security.tls_server_name

    def server_credentials(self) -> grpc.ServerCredentials:
        """For ports; every handshake asks for the current files."""
        asks_callers = self._security.tls_ca is not None and self._security.tls_client_auth
        return grpc.dynamic_ssl_server_credentials(
            self._server_configuration(), self._server_configuration, asks_callers
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For one new channel."""
        cert, key, ca = self._current()
        return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=cert)

    def channel_options(self) -> tuple[tuple[str, str], ...]:
        return () if self._server_name is None else (("grpc.ssl_target_name_override", self._server_name),)

    def _server_configuration(self) -> grpc.ServerCertificateConfiguration:
        cert, key, ca = self._current()
        assert cert is not None
        assert key is not None
        return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=ca)

    def _current(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        stamps = self._stamp()
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                check(self._security)
                self._material = _read(self._security)
                _log.info("took the changed certificate files: %s", ", ".join(map(str, self._files)))
            except SecurityError as error:
                _log.error("the changed certificate files are not used, the last good ones are: %s", error)
        return self._material

    def _stamp(self) -> list[_Stamp | None]:
        stamps: list[_Stamp | None] = []
        for path in self._files:
            try:
                found = os.stat(path)
                stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
            except OSError:
                stamps.append(None)
        return stamps


def check(security: Security) -> None:
    """Raises SecurityError when the certificate files are missing, unreadable, not for each other, or out of date."""
    if (security.tls_cert is None) != (security.tls_key is None):
        given, missing = ("--tls-cert", "--tls-key") if security.tls_key is None else ("--tls-key", "--tls-cert")
        raise SecurityError(f"{given} without {missing}: TLS needs a certificate and its private key; give both")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if security.tls_cert is not None and security.tls_key is not None:
        _readable(security.tls_cert, "--tls-cert")
        _readable(security.tls_key, "--tls-key")
        try:
            context.load_cert_chain(security.tls_cert, security.tls_key, password=_no_passphrase(security.tls_key))
        except ssl.SSLError as error:
            raise SecurityError(
                f"--tls-cert {security.tls_cert} and --tls-key {security.tls_key} are no PEM certificate with its "
                f"private key ({error.reason or error}); give the two files of one pair"
            ) from error
        check_dates(security.tls_cert, flag="--tls-cert")
    if security.tls_ca is not None:
        _readable(security.tls_ca, "--tls-ca")
        try:
            context.load_verify_locations(security.tls_ca)
        except ssl.SSLError as error:
            raise SecurityError(
                f"--tls-ca {security.tls_ca} holds no PEM certificate ({error.reason or error}); give the file of "
                "the authority that signed the peers' certificates"
            ) from error


def _read(security: Security) -> tuple[bytes | None, bytes | None, bytes | None]:
    def content(path: Path | None) -> bytes | None:
        return None if path is None else path.read_bytes()

    try:
        return content(security.tls_cert), content(security.tls_key), content(security.tls_ca)
    except OSError as error:
        raise SecurityError(f"{error.filename}: {error.strerror}") from error


def _readable(path: Path, flag: str) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise SecurityError(
            f"{flag} {path} cannot be read: {error.strerror}; give a file this user may read"
        ) from error


def _no_passphrase(key: Path) -> Callable[[], str]:
    def refuse() -> str:
        raise SecurityError(f"--tls-key {key} is protected by a passphrase, which nobody could type; remove it first")

    return refuse
