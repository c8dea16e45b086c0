"""The HTTP server over TLS: whose certificate a handshake shows, before and after its files change."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from gateway.certificate import Certificate
from gateway.http_server import HttpServer
from tests.support.own_records import own_records
from tests.support.rest_api import RestApi
from tests.support.self_signed import self_signed


@asynccontextmanager
async def served(api: RestApi, cert: Path, key: Path | None) -> AsyncIterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(api.app(), [listener], shutdown_timeout_s=5, certificate=Certificate(cert, key))
    await server.start()
    try:
        yield listener.getsockname()[1]
    finally:
        await server.stop()


async def shown_by(port: int, server_name: str | None = "localhost") -> bytes:
    """The certificate that a new connection is shown."""
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    connection = socket.create_connection(("127.0.0.1", port))
    _, writer = await asyncio.open_connection(sock=connection, ssl=anybody, server_hostname=server_name or "")
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    assert isinstance(shown, bytes)
    return shown


def der_of(cert: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(cert.read_text())


def new_pair(tmp_path: Path, name: str) -> tuple[Path, Path]:
    (tmp_path / name).mkdir()
    return self_signed(tmp_path / name)


def replace_by(new: Path, old: Path) -> None:
    scratch = old.with_suffix(".new")
    shutil.copy(new, scratch)
    scratch.replace(old)


async def test_replaced_files_are_shown_from_the_next_handshake_on(
    api: RestApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = self_signed(tmp_path)
    first = der_of(cert)
    async with served(api, cert, key) as port:
        trust = ssl.create_default_context(cafile=cert)
        async with httpx.AsyncClient(base_url=f"https://localhost:{port}", verify=trust) as client:
            assert (await client.get("/livez")).status_code == 200
            assert await shown_by(port) == first
            new_cert, new_key = new_pair(tmp_path, "new")
            replace_by(new_key, key)
            # The new key does not fit the old certificate: the last good pair stays.
            with caplog.at_level(logging.ERROR, logger="gateway"):
                assert await shown_by(port) == first
                assert await shown_by(port) == first
            assert [record.levelno for record in own_records(caplog)] == [logging.ERROR], "told once"
            replace_by(new_cert, cert)
            assert await shown_by(port) == der_of(new_cert) != first
            assert await shown_by(port, None) == der_of(new_cert), "also to a client that names no server"
            assert (await client.get("/livez")).status_code == 200, "existing connections go on"


async def test_a_key_in_the_certificates_file(api: RestApi, tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path)
    both = tmp_path / "both.pem"
    both.write_bytes(cert.read_bytes() + key.read_bytes())
    async with served(api, both, None) as port:
        assert await shown_by(port) == der_of(cert)
