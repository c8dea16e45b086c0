"""Whether a certificate file is valid today; without gRPC, for commands that only check flags."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

from services.rpc.security import SecurityError


def check_dates(cert: Path, *, flag: str) -> None:
    """Raises SecurityError naming the flag for a PEM certificate that has expired or is not valid yet."""
    # The one way of the standard library to parse a certificate that nobody has sent.
    try:
        decoded = ssl._ssl._test_decode_cert(str(cert))  # type: ignore[attr-defined]
    except (AttributeError, ssl.SSLError):  # pragma: no cover
        return
    now = datetime.now(UTC).timestamp()
    ends, begins = decoded.get("notAfter"), decoded.get("notBefore")
    if ends and ssl.cert_time_to_seconds(ends) < now:
        raise SecurityError(f"{flag} {cert} has expired on {ends}; nobody would accept it. Renew it")
    if begins and ssl.cert_time_to_seconds(begins) > now:
        raise SecurityError(f"{flag} {cert} is valid only from {begins}; check it and this machine's clock")
