"""HTTPS, a Unix socket and a key file, over real processes."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest

from tests.cluster.conftest import Launch
from tests.support.self_signed import self_signed

pytestmark = pytest.mark.cluster

BODY = {"prompt": "The sky", "max_tokens": 3}


def test_https_with_keys_of_a_file(launch: Launch, tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path)
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    flags = ("--ssl-certfile", str(cert), "--ssl-keyfile", str(key), "--api-key", "three", "--api-key-file", str(keys))
    cluster = launch(*flags)
    cluster.wait_until_ready()
    assert cluster.url.startswith("https://")
    trust = ssl.create_default_context(cafile=cert)
    with httpx.Client(base_url=cluster.url, verify=trust, timeout=30) as client:
        assert client.post("/v1/completions", json=BODY).status_code == 401
        for known in ("one", "two", "three"):
            response = client.post("/v1/completions", json=BODY, headers={"authorization": f"Bearer {known}"})
            assert response.status_code == 200, response.text
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{cluster.url.replace('https', 'http')}/livez")
    assert cluster.status()["roster"]["gateways"][0]["httpUrl"] == cluster.url
    assert cluster.stop() == 0


def test_a_unix_socket_shared_by_two_gateways(launch: Launch, tmp_path: Path) -> None:
    path = tmp_path / "muster.sock"
    cluster = launch("--uds", str(path), "--api-server-count", "2")
    cluster.wait_until_ready()
    assert f"curl --unix-socket {path} http://localhost/v1/chat/completions" in cluster.output
    transport = httpx.HTTPTransport(uds=str(path))
    with httpx.Client(base_url="http://localhost", transport=transport, timeout=30) as client:
        assert client.post("/v1/completions", json=BODY).status_code == 200
        with client.stream("POST", "/v1/completions", json={**BODY, "stream": True}) as response:
            assert "data: [DONE]" in list(response.iter_lines())
    assert cluster.stop() == 0
    assert not path.exists()
