"""TLS and mutual TLS: who gets in, what is said when not, and certificates that change."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from muster import v1 as wire

from services.rpc.certificates import Certificates
from services.rpc.channels import Dialer
from services.rpc.loop_channel import LoopChannel
from services.rpc.security import OPEN, Security, SecurityError, exposure_warning
from services.rpc.server import RpcServer, check_doors
from services.rpc.tls_trouble import tls_trouble
from tests.services.rpc.serving import Placeholder, serving
from tests.support.certificates import TestAuthority

TIMEOUT_S = 10.0


class Deployment(Placeholder):
    async def GetDeployment(self, request: Any, context: Any) -> wire.GetDeploymentResponse:
        return wire.GetDeploymentResponse(product_version="seen")


@pytest.fixture
def authority(tmp_path: Path) -> TestAuthority:
    return TestAuthority(tmp_path / "ours")


async def outcome(target: str, dialer: Dialer) -> str:
    async with dialer.dial(target) as channel:
        stub = wire.RendezvousServiceStub(channel)
        try:
            answer = await stub.GetDeployment(wire.GetDeploymentRequest(), timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return str(answer.product_version)


async def test_mutual_tls_lets_in_who_has_a_certificate_of_the_authority(
    authority: TestAuthority, tmp_path: Path
) -> None:
    strangers = TestAuthority(tmp_path / "theirs")
    own = replace(strangers.node(), tls_ca=authority.certificate)  # trusts us, shows a certificate of another authority
    expired = authority.expired()
    async with serving(Deployment(), security=authority.node("server")) as served:
        target = f"127.0.0.1:{served.port}"
        assert await outcome(target, Dialer(authority.node("client"))) == "seen"
        assert await outcome(target, Dialer(authority.caller())) == "UNAVAILABLE"
        assert await outcome(target, Dialer(own)) == "UNAVAILABLE"
        assert await outcome(target, Dialer(strangers.node("client"))) == "UNAVAILABLE"
        assert await outcome(target, Dialer()) == "UNAVAILABLE"
        late = grpc.ssl_channel_credentials(
            authority.certificate.read_bytes(), read(expired.tls_key), read(expired.tls_cert)
        )
        async with grpc.aio.secure_channel(target, late) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await wire.RendezvousServiceStub(channel).GetDeployment(wire.GetDeploymentRequest(), timeout=TIMEOUT_S)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def read(path: Path | None) -> bytes:
    assert path is not None
    return path.read_bytes()


async def test_without_client_authentication_the_authority_is_enough(authority: TestAuthority) -> None:
    async with serving(Deployment(), security=replace(authority.node("server"), tls_client_auth=False)) as served:
        assert await outcome(f"127.0.0.1:{served.port}", Dialer(authority.caller())) == "seen"


async def test_an_engine_behind_tls_is_dialled_by_grpc_itself(authority: TestAuthority, tmp_path: Path) -> None:
    """The gateway's own reader of Attach has no TLS: over TCP it is not used once there are certificates."""
    dialer = Dialer(authority.node("client"))
    security, dial_engine = authority.node("server"), dialer.dial_engine
    async with serving(Deployment(), security=security, make_channel=dial_engine) as served:
        assert not isinstance(served.channel, LoopChannel)
        answer = await served.stub.GetDeployment(wire.GetDeploymentRequest(), timeout=TIMEOUT_S)
        assert answer.product_version == "seen"
    for plain in (dialer.dial_engine(f"unix:{tmp_path}/s"), Dialer().dial_engine("127.0.0.1:1")):
        assert isinstance(plain, LoopChannel)
        await plain.close()


async def test_unix_sockets_stay_plain_beside_tls(authority: TestAuthority, tmp_path: Path) -> None:
    security = authority.node("server")
    server = RpcServer(security=security)
    server.add("muster.v1.RendezvousService", wire.add_RendezvousServiceServicer_to_server, Deployment())
    target = server.listen_unix(tmp_path / "s")
    await server.start()
    try:
        assert await outcome(target, Dialer(security)) == "seen"
    finally:
        await server.stop(0)


async def test_a_name_in_the_certificate_may_stand_for_every_address(authority: TestAuthority, tmp_path: Path) -> None:
    only_by_name = authority.node("server")
    async with serving(Deployment(), security=only_by_name) as served:
        client = authority.node("client")
        target = f"127.0.0.2:{served.port}"  # in no certificate
        server = RpcServer(security=only_by_name)
        server.add("muster.v1.RendezvousService", wire.add_RendezvousServiceServicer_to_server, Deployment())
        port = server.listen_tcp("127.0.0.2", 0, flags="--port")
        await server.start()
        try:
            target = f"127.0.0.2:{port}"
            assert await outcome(target, Dialer(client)) == "UNAVAILABLE"
            assert "IP address mismatch" in str(tls_trouble(target, client))
            assert await outcome(target, Dialer(replace(client, tls_server_name="server"))) == "seen"
            assert await outcome(target, Dialer(replace(client, tls_server_name="other"))) == "UNAVAILABLE"
        finally:
            await server.stop(0)


async def test_what_went_wrong_is_found_out_by_hand(authority: TestAuthority, tmp_path: Path) -> None:
    import asyncio

    strangers = TestAuthority(tmp_path / "theirs")
    client = authority.node("client")

    async def said(target: str, security: Security) -> str:
        return str(await asyncio.to_thread(tls_trouble, target, security))

    async with serving(Deployment(), security=authority.node("server")) as served:
        target = f"127.0.0.1:{served.port}"
        assert await said(target, client) == "None"
        assert "it asks for a certificate" in await said(target, authority.caller())
        assert "not accepted: unable to get local issuer certificate" in await said(target, strangers.node())
        assert "may speak TLS" in await said(target, OPEN)
    async with serving(Deployment()) as served:
        target = f"127.0.0.1:{served.port}"
        assert "does not speak TLS" in await said(target, client)
        assert await said(target, OPEN) == "None"
    assert await said(target, client) == "None"  # nobody there: not a matter of TLS


async def test_new_certificates_are_taken_without_a_restart(
    authority: TestAuthority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """From one authority to the next: first both are trusted, then the certificates change."""
    security = authority.node("server")
    successor = TestAuthority(tmp_path / "next")
    with caplog.at_level(logging.INFO, "services.rpc.certificates"):
        async with serving(Deployment(), security=security) as served:
            target = f"127.0.0.1:{served.port}"
            dialer = Dialer(security)
            held = dialer.dial(target)
            stub = wire.RendezvousServiceStub(held)
            assert (await stub.GetDeployment(wire.GetDeploymentRequest())).product_version == "seen"
            assert await outcome(target, Dialer(successor.node())) == "UNAVAILABLE"

            both = authority.certificate.read_bytes() + successor.certificate.read_bytes()
            replaced(security.tls_ca, both)
            assert await outcome(target, Dialer(replace(successor.node(), tls_ca=security.tls_ca))) == "seen"

            replaced(security.tls_cert, b"half a certif")
            assert await outcome(target, dialer) == "seen"
            assert "the last good ones are" in caplog.text

            fresh = successor.node("server")
            replaced(security.tls_key, read(fresh.tls_key))
            replaced(security.tls_cert, read(fresh.tls_cert))
            assert await outcome(target, Dialer(successor.node())) == "seen"  # trusts only the next authority
            assert await outcome(target, dialer) == "seen"
            assert (await stub.GetDeployment(wire.GetDeploymentRequest())).product_version == "seen"
            await held.close()


def replaced(path: Path | None, content: bytes) -> None:
    assert path is not None
    scratch = path.with_suffix(".new")
    scratch.write_bytes(content)
    os.replace(scratch, path)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda node: replace(node, tls_key=None), "--tls-cert without --tls-key"),
        (lambda node: replace(node, tls_cert=None), "--tls-key without --tls-cert"),
        (lambda node: replace(node, tls_cert=None, tls_key=None), "without --tls-cert and --tls-key"),
        (lambda node: replace(node, tls_cert=node.tls_key), "no PEM certificate with its private key"),
        (lambda node: replace(node, tls_ca=node.tls_key), "holds no PEM certificate"),
        (lambda node: replace(node, tls_ca=Path("/nowhere")), "--tls-ca /nowhere cannot be read: No such file"),
        (
            lambda node: replace(node, cluster_token_file=Path("/nowhere")),
            "--cluster-token-file /nowhere cannot be read",
        ),
    ],
)
def test_flags_that_cannot_be_honoured_are_refused(authority: TestAuthority, make: Any, said: str) -> None:
    with pytest.raises(SecurityError, match=said):
        check_doors(make(authority.node()))


def test_expired_and_foreign_pairs_are_refused(authority: TestAuthority) -> None:
    with pytest.raises(SecurityError, match="has expired on"):
        Certificates(authority.expired())
    with pytest.raises(SecurityError, match="are no PEM certificate with its private key"):
        Certificates(replace(authority.node("a"), tls_key=authority.node("b").tls_key))


def test_an_open_door_to_other_machines_is_named(authority: TestAuthority, tmp_path: Path) -> None:
    assert exposure_warning("127.0.0.1", OPEN) is None
    assert exposure_warning("[::1]", OPEN) is None
    assert exposure_warning("localhost", OPEN) is None
    assert "without TLS" in str(exposure_warning("0.0.0.0", OPEN))
    assert "without a cluster token" in str(exposure_warning("::", OPEN))
    node = authority.node()
    assert exposure_warning("0.0.0.0", node) is None
    assert "without TLS" in str(exposure_warning("10.0.0.1", Security(cluster_token_file=tmp_path)))
    assert "without a cluster token" in str(exposure_warning("0.0.0.0", replace(node, tls_client_auth=False)))
