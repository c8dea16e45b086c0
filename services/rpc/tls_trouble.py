"""Finding out why a TLS connection fails; gRPC itself only says that the socket was closed."""

from __future__ import annotations

import socket
import ssl

from services.rpc.security import Security

_TIMEOUT_S = 2.0


def tls_trouble(target: str, security: Security) -> str | None:
    """One handshake by hand with `target` ("host:port", "[::1]:port" or "dns:///host:port").

    Returns what is wrong in words, or None when nothing about TLS is: also when nobody listens there. A peer that hangs
    is not taken for one that speaks TLS.
    """
    if target.startswith("unix:"):
        return None
    host, _, port = target.removeprefix("dns:///").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as plain:
            if not security.dials_tls:
                return _speaks_tls(plain)
            return _handshake(plain, host, security)
    except (OSError, ValueError):
        return None


def _speaks_tls(plain: socket.socket) -> str | None:
    # A TLS server answers an HTTP/2 preface with an alert or by closing; ours sends its settings at once.
    plain.settimeout(_TIMEOUT_S)
    try:
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        first = plain.recv(9)
    except TimeoutError:
        return "it takes connections and says nothing; it may hang"
    except OSError:
        first = b""
    if len(first) >= 4 and first[3] == 4:
        return None
    return "it may speak TLS, and this side was given no --tls-ca"


def _handshake(plain: socket.socket, host: str, security: Security) -> str | None:
    context = ssl.create_default_context(cafile=security.tls_ca)
    context.set_alpn_protocols(["h2"])
    if security.tls_cert is not None and security.tls_key is not None:
        context.load_cert_chain(security.tls_cert, security.tls_key)
    name = security.tls_server_name or host
    try:
        with context.wrap_socket(plain, server_hostname=name) as secure:
            secure.settimeout(_TIMEOUT_S)
            # With TLS 1.3 a refusal of our own certificate arrives after the handshake; a gRPC server that takes us
            # sends its settings at once.
            if secure.recv(1):
                return None
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not accepted: {error.verify_message}"
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).lower().replace("_", " ")
        if "wrong version number" in reason or "record layer" in reason:
            return "it does not speak TLS, and this side was given certificates"
        if "certificate required" in reason:
            return "it asks for a certificate; give --tls-cert and --tls-key"
        return f"the TLS handshake failed: {reason}"
    except ConnectionResetError:
        pass
    except TimeoutError:
        return None
    if security.tls_cert is None:
        return "it ended the TLS handshake: it asks for a certificate; give --tls-cert and --tls-key"
    return f"it ended the TLS handshake: it may not accept the certificate of --tls-cert {security.tls_cert}"
