"""How HTTP is served, as the flags say: read by `muster serve`, handed on to the gateways, checked by both."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from services.rpc.certificate_dates import check_dates
from services.rpc.security import SecurityError

_FILE_FIX = "give a readable file"


class HttpFrontError(Exception):
    """Flags of the HTTP front that cannot work. The message names the flag, its value and the fix."""


@dataclass(frozen=True, slots=True)
class HttpFront:
    """Named as the flags are; None and empty mean "not given". `queue_timeout` is in seconds."""

    api_key_file: Path | None = None
    queue_timeout: float | None = None
    uds: Path | None = None
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    allowed_methods: tuple[str, ...] = ()
    allowed_headers: tuple[str, ...] = ()
    allow_credentials: bool = False
    reasoning_parser: str = "auto"
    tool_call_parser: str = "auto"
    otlp_traces_endpoint: str | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> HttpFront:
        """From values by the names of flags; others are left alone."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})

    @property
    def scheme(self) -> str:
        return "https" if self.ssl_certfile is not None else "http"

    def flags(self) -> list[str]:
        """The command line that says the same to a gateway, but for the socket, which it inherits."""
        arguments: list[str] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value == field.default or field.name == "uds":
                continue
            name = "--" + field.name.replace("_", "-")
            if isinstance(value, tuple):
                arguments += [name, *value]
            else:
                arguments += (
                    [name] if value is True else [name, f"{value:g}" if isinstance(value, float) else str(value)]
                )
        return arguments

    def check(self) -> None:
        """Raises HttpFrontError for files that cannot be used and flags that need others."""
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise HttpFrontError(f"--ssl-keyfile {self.ssl_keyfile} without --ssl-certfile: give the certificate too")
        if self.ssl_certfile is not None:
            self._check_certificate(self.ssl_certfile)
        if self.otlp_traces_endpoint is not None:
            _check_tracing()
        self.keys()

    def keys(self) -> tuple[str, ...]:
        """The keys of `api_key_file`: one a line; empty lines and those that begin with # are skipped."""
        if self.api_key_file is None:
            return ()
        try:
            lines = self.api_key_file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise HttpFrontError(f"--api-key-file {self.api_key_file}: {_reason(error)}; {_FILE_FIX}") from None
        keys = tuple(line.strip() for line in lines if line.strip() and not line.strip().startswith("#"))
        if not keys:
            raise HttpFrontError(
                f"--api-key-file {self.api_key_file} has no key, and would let nobody in: put one on a line"
            )
        return keys

    def _check_certificate(self, certfile: Path) -> None:
        for flag, path in (("--ssl-certfile", certfile), ("--ssl-keyfile", self.ssl_keyfile)):
            if path is not None:
                try:
                    path.open("rb").close()
                except OSError as error:
                    raise HttpFrontError(f"{flag} {path}: {_reason(error)}; {_FILE_FIX}") from None
        try:
            # An encrypted key would ask on a terminal that gateways don't have.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, self.ssl_keyfile, password="")
        except (OSError, ValueError) as error:
            key = f" and --ssl-keyfile {self.ssl_keyfile}" if self.ssl_keyfile else ""
            raise HttpFrontError(
                f"--ssl-certfile {certfile}{key}: {_reason(error)}; give a PEM certificate (with its chain) and its "
                "private key without a password"
            ) from None
        try:
            check_dates(certfile, flag="--ssl-certfile")
        except SecurityError as error:
            raise HttpFrontError(str(error)) from None


PLAIN = HttpFront()


def _check_tracing() -> None:
    from importlib.util import find_spec

    try:
        found = [find_spec(name) for name in ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.grpc")]
    except ModuleNotFoundError:
        found = [None]
    if None in found:
        raise HttpFrontError("--otlp-traces-endpoint needs OpenTelemetry: pip install '.[otel]', or leave it out")


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return str(text)[:1].lower() + str(text)[1:]
