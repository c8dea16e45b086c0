"""Tokens, roles, and the interceptor that asks for them on every method of the contract."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from muster import v1 as wire
from muster.v1 import admin_pb2, coordinator_pb2, engine_pb2, inference_pb2, peer_pb2, rendezvous_pb2

from services.rpc.access import EVERYTHING, Role, TokenFile, parse_tokens, roles_for
from services.rpc.channels import Dialer
from services.rpc.errors import describe
from services.rpc.security import Security, SecurityError
from services.rpc.server import RpcServer
from tests.services.rpc.serving import Placeholder, serving
from tests.support.certificates import write_tokens

MEMBER, WATCHER, ASKER, ADMIN = (f"{name}-0123456789abcdef" for name in ("member", "watcher", "asker", "admin"))
TOKENS = f"{MEMBER}\nwatch {WATCHER}\ngenerate {ASKER}  # for clients\n\nadminister {ADMIN}\n"
TIMEOUT_S = 10.0

SERVICES = [
    service
    for module in (admin_pb2, coordinator_pb2, engine_pb2, inference_pb2, peer_pb2, rendezvous_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]
METHODS = [f"/{service.full_name}/{method.name}" for service in SERVICES for method in service.methods]


class Deployment(Placeholder):
    async def GetDeployment(self, request: Any, context: Any) -> wire.GetDeploymentResponse:
        return wire.GetDeploymentResponse(product_version="seen")


def test_every_method_of_the_contract_has_a_role_that_somebody_decided() -> None:
    assert len(METHODS) > 25
    for method in METHODS:
        roles = roles_for(method)
        assert roles is not None
        # A method nobody thought of is a member's alone, and so are these.
        if roles == Role.MEMBER:
            assert method.rpartition("/")[2] in {
                "Register", "ReportLoad", "SyncWave", "FetchResponse", "DropResponse",
            }, method  # fmt: skip


def test_health_is_open_and_the_unknown_is_not() -> None:
    assert roles_for("/grpc.health.v1.Health/Watch") is None
    assert roles_for("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo") == EVERYTHING
    assert roles_for("/muster.v2.NewService/Anything") == Role.MEMBER


def test_a_token_file_in_all_its_forms() -> None:
    grants = parse_tokens(f"# all\n{MEMBER}\n watch,generate\t{ASKER} # clients\n", origin="f")
    assert [(grant.token.decode(), grant.roles) for grant in grants] == [
        (MEMBER, Role.MEMBER),
        (ASKER, Role.WATCH | Role.GENERATE),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no token"),
        ("# only words\n\n", "holds no token"),
        ("short", "line 1 has a token of 5 characters"),
        (f"{MEMBER}\nroot {ASKER}", "line 2 names the role 'root'; the roles are watch, generate, administer, member"),
        (f"watch generate {ASKER}", "line 1 has 3 words"),
        ("schlüssel-0123456789abcdef", "beyond ASCII"),
    ],
)
def test_a_bad_token_file_is_named_without_its_tokens(text: str, said: str) -> None:
    with pytest.raises(SecurityError) as caught:
        parse_tokens(text, origin="--cluster-token-file t")
    assert said in str(caught.value)
    assert "--cluster-token-file t" in str(caught.value)
    assert "0123456789abcdef" not in str(caught.value)


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match=r"--cluster-token-file .*none cannot be read: No such file"):
        TokenFile(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SecurityError, match="is no text"):
        TokenFile(tmp_path / "binary")


def test_tokens_are_rotated_by_changing_the_file_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(MEMBER)
    now = [0.0]
    tokens = TokenFile(path, clock=lambda: now[0])
    assert tokens.own == MEMBER
    path.write_text(f"{ASKER}-new\n{MEMBER}\n")
    assert tokens.own == MEMBER  # not looked at again yet
    now[0] = 2.0
    assert tokens.own == f"{ASKER}-new"
    assert len(tokens.grants) == 2
    path.write_text("bad")
    now[0] = 4.0
    assert tokens.own == f"{ASKER}-new"
    os.unlink(path)
    now[0] = 6.0
    assert len(tokens.grants) == 2


async def status_of(channel: Any, method: str, token: str | None, key: str = "authorization") -> grpc.StatusCode:
    """Calls with no request at all: what is refused must be refused without one."""
    value = f"Bearer {token}" if key == "authorization" else token
    call = channel.stream_stream(method)(iter(()), metadata=((key, value),) if token else (), timeout=TIMEOUT_S)
    code: grpc.StatusCode = await call.code()
    return code


async def test_every_method_refuses_without_a_token_with_a_wrong_one_and_with_one_of_the_wrong_role(
    tmp_path: Path,
) -> None:
    security = write_tokens(tmp_path / "tokens", TOKENS)
    server = RpcServer(security=security)
    port = server.listen_tcp("127.0.0.1", 0, flags="--port")
    unix = server.listen_unix(tmp_path / "s")
    await server.start()
    try:
        for target in (f"127.0.0.1:{port}", unix):
            async with grpc.aio.insecure_channel(target) as channel:
                for method in METHODS:
                    assert await status_of(channel, method, None) is grpc.StatusCode.UNAUTHENTICATED, method
                    assert await status_of(channel, method, "x" * 32) is grpc.StatusCode.UNAUTHENTICATED, method
                    roles = roles_for(method)
                    assert roles is not None
                    for role, token in ((Role.WATCH, WATCHER), (Role.GENERATE, ASKER), (Role.ADMINISTER, ADMIN)):
                        # Nothing is served here: who is let through meets UNIMPLEMENTED.
                        allowed = grpc.StatusCode.UNIMPLEMENTED
                        expected = allowed if role & roles else grpc.StatusCode.PERMISSION_DENIED
                        assert await status_of(channel, method, token) is expected, (method, role)
                    assert await status_of(channel, method, MEMBER) is grpc.StatusCode.UNIMPLEMENTED, method
    finally:
        await server.stop(0)


async def test_a_refusal_says_what_to_send_and_which_role_is_missing(tmp_path: Path) -> None:
    security = write_tokens(tmp_path / "tokens", TOKENS)
    async with serving(Deployment(), security=security) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.stub.GetDeployment(wire.GetDeploymentRequest())
        error = describe(caught.value)
        assert error.code is grpc.StatusCode.UNAUTHENTICATED
        assert error.reason == "TOKEN_INVALID"
        assert "authorization: Bearer" in error.message
        metadata = (("authorization", f"Bearer {ASKER}"),)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.stub.GetDeployment(wire.GetDeploymentRequest(), metadata=metadata)
        error = describe(caught.value)
        assert error.code is grpc.StatusCode.PERMISSION_DENIED
        assert error.metadata == {"needed": "watch", "held": "generate"}


async def test_the_dialer_shows_the_first_token_and_health_needs_none(tmp_path: Path) -> None:
    security = write_tokens(tmp_path / "tokens", TOKENS)
    async with serving(Deployment(), security=security, make_channel=Dialer(security).dial) as served:
        answer = await served.stub.GetDeployment(wire.GetDeploymentRequest())
        assert answer.product_version == "seen"
        async with grpc.aio.insecure_channel(f"127.0.0.1:{served.port}") as channel:
            checked = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert checked.status == health_pb2.HealthCheckResponse.NOT_SERVING
        with Dialer(security).dial_blocking(f"127.0.0.1:{served.port}") as blocking:
            assert blocking is not None


async def test_an_api_key_is_as_good_as_a_token_that_may_generate(tmp_path: Path) -> None:
    security = write_tokens(tmp_path / "tokens", TOKENS)
    async with serving(Placeholder(), security=security, api_keys=["key"]) as served:
        complete, drain = "/muster.v1.InferenceService/Complete", "/muster.v1.AdminService/Drain"
        for header in ("authorization", "x-api-key"):
            assert await status_of(served.channel, complete, "key", header) is grpc.StatusCode.UNIMPLEMENTED
            assert await status_of(served.channel, drain, "key", header) is grpc.StatusCode.PERMISSION_DENIED


async def test_reflection_takes_any_token_and_can_be_switched_off(tmp_path: Path) -> None:
    security = write_tokens(tmp_path / "tokens", TOKENS)

    async def listed(channel: Any, token: str | None) -> list[str]:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        async for answer in stub.ServerReflectionInfo(requests, metadata=metadata):
            return [service.name for service in answer.list_services_response.service]
        return []

    async with serving(Placeholder(), security=security) as served:
        assert "muster.v1.RendezvousService" in await listed(served.channel, WATCHER)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await listed(served.channel, None)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    async with serving(Placeholder(), security=Security(reflection=False)) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await listed(served.channel, None)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
