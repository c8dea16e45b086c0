"""How a gateway introduces itself to the deployment."""

from __future__ import annotations

import pytest

from services.gateway.server import GatewayOptions, _roster_entry
from services.launcher.listening import HttpSockets
from services.rpc.identity import host_name


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("fd00::1", "[fd00::1]"),
        ("[fd00::1]", "[fd00::1]"),
        ("0.0.0.0", host_name()),
        ("::", host_name()),
        ("[::]", host_name()),
    ],
)
def test_a_gateway_tells_an_address_that_others_can_use(host: str, told: str) -> None:
    options = GatewayOptions(head_target="", host=host, name="g")
    entry = _roster_entry(options, http=HttpSockets([], 80), grpc_port=81)
    assert (entry.http_url, entry.grpc_target) == (f"http://{told}:80", f"{told}:81")
