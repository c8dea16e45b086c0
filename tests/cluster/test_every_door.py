"""Every method of every port, tried by everybody who should not get in."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool
from grpc_channelz.v1 import channelz_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from muster import v1 as wire

from services.rpc.channels import Dialer
from services.rpc.security import Security
from tests.cluster.conftest import FLAGS, Launch
from tests.support.certificates import TestAuthority, write_tokens
from tests.support.cluster import Cluster
from tests.support.loopback_capture import LoopbackCapture
from tests.support.nodes import Nodes

pytestmark = pytest.mark.cluster

TIMEOUT_S = 20.0
ROLES = ("member", "watch", "generate", "administer")
TOKENS = {role: f"{role}-0123456789abcdef" for role in ROLES}
SECRET = "the heron keeps its counsel"

# As docs/security.md says it: who but members may call what; the method's own line goes before its service's.
ALLOWED = {
    "grpc.health.v1.Health": "everybody",
    "grpc.reflection.v1.ServerReflection": "watch generate administer",
    "grpc.reflection.v1alpha.ServerReflection": "watch generate administer",
    "grpc.channelz.v1.Channelz": "watch generate administer",
    "muster.v1.RendezvousService": "watch",
    "muster.v1.RendezvousService/Register": "",
    "muster.v1.CoordinatorService": "",
    "muster.v1.CoordinatorService/WatchLoad": "watch",
    "muster.v1.EngineService": "generate",
    "muster.v1.EngineService/GetModel": "watch generate",
    "muster.v1.EngineService/GetStatus": "watch generate",
    "muster.v1.EngineService/WatchStats": "watch",
    "muster.v1.InferenceService": "generate",
    "muster.v1.InferenceService/ListModels": "watch generate",
    "muster.v1.PeerService": "",
    "muster.v1.AdminService": "administer",
}
# Their import is what makes their services known to the pool of descriptors.
DESCRIBED = (channelz_pb2, health_pb2)
# Of methods that reflection lists and Python has no descriptor of.
WITHOUT_DESCRIPTOR = {"grpc.reflection.v1.ServerReflection": ["ServerReflectionInfo"]}


@dataclass(frozen=True)
class Door:
    """One TCP port and the methods on it, "package.Service/Method"."""

    target: str
    methods: tuple[str, ...]


def test_every_method_refuses_whoever_should_not_call_it(launch: Launch, tmp_path: Path) -> None:
    authority, strangers = TestAuthority(tmp_path / "ours"), TestAuthority(tmp_path / "theirs")
    lines = "".join(f"{role} {token}\n" for role, token in TOKENS.items())
    security = write_tokens(tmp_path / "tokens", lines, authority.node("node"))
    cluster = launch("-dp", "1", *security.flags())
    cluster.wait_until_ready()
    doors = doors_of(cluster, Dialer(security))
    assert sum(len(door.methods) for door in doors) > 50
    wrong: list[str] = []
    for door in doors:
        with Dialer(authority.node("caller")).dial_blocking(door.target) as channel:
            for caller, token in {"nobody": "", "guesser": "x" * 20, **TOKENS}.items():
                for method in door.methods:
                    code = status(channel, method, token)
                    if code not in expected(method, caller):
                        wrong.append(f"{caller} calling {method}: {code.name}")
        for caller, stranger in {
            "certificate of another authority": strangers.node("stranger"),
            "expired certificate": authority.expired(),
            "no certificate": authority.caller(),
            "no TLS": Security(),
        }.items():
            with dial_as_it_is(stranger, authority, door.target) as channel:
                wrong += [
                    f"{caller} calling {method}: {code.name}"
                    for method in door.methods
                    if (code := status(channel, method, TOKENS["member"])) is not grpc.StatusCode.UNAVAILABLE
                ]
    assert not wrong
    assert cluster.stop() == 0


def expected(method: str, caller: str) -> set[grpc.StatusCode]:
    allowed = ALLOWED.get(method, ALLOWED[method.partition("/")[0]])
    refusals = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
    if allowed == "everybody" or caller == "member" or caller in allowed.split():
        return set(grpc.StatusCode) - refusals - {grpc.StatusCode.UNAVAILABLE}
    if caller in {"nobody", "guesser"}:
        return {grpc.StatusCode.UNAUTHENTICATED}
    return {grpc.StatusCode.PERMISSION_DENIED}


def doors_of(cluster: Cluster, dialer: Dialer) -> list[Door]:
    """The ports of head, gateway and engine, and what reflection lists there."""
    with dialer.dial_blocking(cluster.head_target) as channel:
        deployment = wire.RendezvousServiceStub(channel).GetDeployment(wire.GetDeploymentRequest(), timeout=TIMEOUT_S)
    engine = deployment.roster.ranks[0].targets[-1]
    doors = []
    for target in (cluster.head_target, cluster.grpc_target, engine):
        with dialer.dial_blocking(target) as channel:
            doors.append(Door(target, tuple(methods_on(channel))))
    return doors


def methods_on(channel: grpc.Channel) -> Iterator[str]:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=TIMEOUT_S)
    for service in answer.list_services_response.service:
        names = WITHOUT_DESCRIPTOR.get(service.name)
        if names is None:
            names = [each.name for each in descriptor_pool.Default().FindServiceByName(service.name).methods]
        yield from (f"{service.name}/{name}" for name in names)


def status(channel: grpc.Channel, method: str, token: str) -> grpc.StatusCode:
    """What a call without any message ends with: refusals come before messages are looked at, and no method runs."""
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    call: Any = channel.stream_stream(f"/{method}")(iter(()), timeout=TIMEOUT_S, metadata=metadata)
    try:
        next(call, None)
    except grpc.RpcError:
        pass
    finally:
        call.cancel()
    code: grpc.StatusCode = call.code()
    return code


def dial_as_it_is(caller: Security, authority: TestAuthority, target: str) -> grpc.Channel:
    """Without the checks by which our own processes refuse to start; the caller trusts the server."""
    options = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
    if caller.tls_cert is None and caller.tls_ca is None:
        return grpc.insecure_channel(target, options=options)
    key = None if caller.tls_key is None else caller.tls_key.read_bytes()
    chain = None if caller.tls_cert is None else caller.tls_cert.read_bytes()
    credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes(), key, chain)
    return grpc.secure_channel(target, credentials, options=options)


@pytest.mark.usefixtures("need_nodes")
@pytest.mark.parametrize("encrypted", [True, False], ids=["TLS", "plaintext"])
def test_what_a_packet_capture_shows_of_a_prompt(tiny_model: Path, tmp_path: Path, encrypted: bool) -> None:
    """With TLS nothing; without it the very same call is readable, so the capture sees what there is to see."""
    authority = TestAuthority(tmp_path / "authority")
    security = authority.node("node") if encrypted else Security()
    tools = Path(sys.executable).parent
    grpcurl = shutil.which("grpcurl", path=f"{tools}:/usr/bin:/usr/local/bin") or "grpcurl"
    with Nodes("alone") as nodes, Cluster(tiny_model, *FLAGS, *security.flags(), node=nodes["alone"]) as cluster:
        cluster.wait_until_ready()
        doors = ["-plaintext"]
        if encrypted:
            doors = ["-cacert", str(security.tls_ca), "-cert", str(security.tls_cert), "-key", str(security.tls_key)]
        request = f'{{"text": "{SECRET}", "options": {{"conditions": {{"max_tokens": 2, "ignore_eos": true}}}}}}'
        call = [grpcurl, *doors, "-d", request, cluster.grpc_target, "muster.v1.InferenceService/Complete"]
        with LoopbackCapture(nodes["alone"]) as capture:
            answered = subprocess.run(nodes["alone"].command(*call), capture_output=True, text=True, timeout=30)
        assert answered.returncode == 0, answered.stderr
        assert '"completionTokens": 2' in answered.stdout or '"completion_tokens": 2' in answered.stdout
        assert len(capture.content) > 1000
        assert (SECRET.encode() in capture.content) is not encrypted
        assert cluster.stop() == 0
