"""Deployments behind TLS and tokens: two nodes that talk over TCP, callers of every kind, certificates that change."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from muster import v1 as wire

from services.rpc.channels import Dialer
from services.rpc.security import Security
from tests.cluster.answers import complete
from tests.cluster.conftest import Launch
from tests.support.certificates import TestAuthority, write_tokens
from tests.support.cluster import Cluster
from tests.support.loopback_capture import LoopbackCapture

pytestmark = pytest.mark.cluster

MEMBER, WATCHER, ASKER = "member-0123456789abcdef", "watcher-0123456789abcdef", "asker-0123456789abcdef"
TIMEOUT_S = 30.0
SECRET = "the heron keeps its counsel"


@dataclass(frozen=True)
class Pair:
    """A head's node and a headless one, one rank each: head, gateway and rank 1 meet over TCP."""

    first: Cluster
    second: Cluster

    def ask(self, security: Security, text: str = "Hello", *, rank: int = 1) -> str:
        with Dialer(security).dial_blocking(self.first.grpc_target) as channel:
            conditions = wire.StopConditions(max_tokens=4, ignore_eos=True)
            options = wire.GenerationOptions(conditions=conditions, rank=rank)
            answers = wire.InferenceServiceStub(channel).Complete(
                wire.CompleteRequest(text=text, options=options), timeout=TIMEOUT_S
            )
            return "".join(answer.delta.text for answer in answers if answer.HasField("delta"))


def start_pair(launch: Launch, first: Security, second: Security) -> Pair:
    head = launch("-dp", "2", "-dpl", "1", *first.flags())
    port = head.head_target.rpartition(":")[2]
    headless = launch("--headless", "-dp", "2", "-dpl", "1", "-dpr", "1", "-dpa", "127.0.0.1", "-dpp", port,
                      *second.flags())  # fmt: skip
    head.wait_until_ready()
    return Pair(head, headless)


def refused(pair: Pair, security: Security) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        pair.ask(security)
    error = caught.value
    assert isinstance(error, grpc.Call)
    code: grpc.StatusCode = error.code()
    return code


@pytest.mark.skipif(os.geteuid() != 0, reason="reading packets needs root")
def test_nobody_reads_a_prompt_on_the_way_and_only_the_right_callers_get_in(launch: Launch, tmp_path: Path) -> None:
    """T24: callers without credentials are UNAUTHENTICATED, and a capture of the traffic shows no prompt."""
    authority, strangers = TestAuthority(tmp_path / "ours"), TestAuthority(tmp_path / "theirs")
    tokens = f"{MEMBER}\nwatch {WATCHER}\ngenerate {ASKER}\n"

    def with_token(name: str, security: Security, text: str) -> Security:
        return write_tokens(tmp_path / name, text, security)

    first = with_token("t1", authority.node("first"), tokens)
    second = with_token("t2", authority.node("second"), tokens)
    pair = start_pair(launch, first, second)
    asker = with_token("t3", authority.node("client"), ASKER)
    with LoopbackCapture() as capture:
        assert pair.ask(asker, SECRET)
    # Client to gateway and gateway to engine crossed the interface, and their text did not.
    assert len(capture.content) > 1000
    assert SECRET.encode() not in capture.content
    with LoopbackCapture() as capture:
        assert complete(pair.first, prompt=SECRET).status_code == 200
    assert SECRET.encode() in capture.content  # REST was given no certificate: the capture sees what can be seen

    assert refused(pair, authority.node("client")) is grpc.StatusCode.UNAUTHENTICATED
    assert refused(pair, with_token("t4", authority.node("c4"), "x" * 32)) is grpc.StatusCode.UNAUTHENTICATED
    assert refused(pair, with_token("t5", authority.node("c5"), WATCHER)) is grpc.StatusCode.PERMISSION_DENIED
    assert refused(pair, with_token("t6", authority.caller(), ASKER)) is grpc.StatusCode.UNAVAILABLE
    assert refused(pair, with_token("t7", strangers.node(), ASKER)) is grpc.StatusCode.UNAVAILABLE
    assert refused(pair, with_token("t8", Security(), ASKER)) is grpc.StatusCode.UNAVAILABLE
    assert complete(pair.first, rank=1).status_code == 200  # REST has keys of its own
    assert pair.second.stop() == 0
    assert pair.first.stop() == 0


def test_an_engine_without_a_token_is_told_so_and_disturbs_nobody(launch: Launch, tmp_path: Path) -> None:
    head = launch("-dp", "2", "-dpl", "1", *write_tokens(tmp_path / "t", MEMBER).flags())
    port = head.head_target.rpartition(":")[2]
    join = ("--headless", "-dp", "2", "-dpl", "1", "-dpr", "1", "-dpa", "127.0.0.1", "-dpp", port)
    for flags in ((), write_tokens(tmp_path / "w", f"watch {WATCHER}", Security()).flags()):
        stranger = launch(*join, *flags)
        stranger.wait_for_end(TIMEOUT_S)
        assert "rejected by the head" in stranger.output
        assert "/muster.v1.RendezvousService/Register needs a" in stranger.output
    member = launch(*join, *write_tokens(tmp_path / "m", MEMBER).flags())
    head.wait_until_ready()
    assert complete(head, rank=1).status_code == 200
    assert member.stop() == 0
    assert head.stop() == 0


def test_certificates_are_changed_under_load_without_a_failed_request(launch: Launch, tmp_path: Path) -> None:
    old, new = TestAuthority(tmp_path / "old"), TestAuthority(tmp_path / "new")
    security = old.node("node")
    pair = start_pair(launch, security, security)
    outcomes: list[int] = []
    ended = threading.Event()

    def load() -> None:
        while not ended.is_set():
            outcomes.append(complete(pair.first).status_code)

    clients = [threading.Thread(target=load) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        both = old.certificate.read_bytes() + new.certificate.read_bytes()
        replace_file(security.tls_ca, both)
        fresh = new.node("node")
        replace_file(security.tls_key, content(fresh.tls_key))
        replace_file(security.tls_cert, content(fresh.tls_cert))
        replace_file(security.tls_ca, new.certificate.read_bytes())
        # Every connection is made anew with the new ones: a restarted engine, and its gateway that dials it.
        pid = pair.second.engine(1).pid
        pair.second.engine(1).kill()
        pair.second.wait_for(
            lambda: any(process.pid != pid for process in pair.second.children("engine")), "a restarted engine"
        )
        pair.first.wait_for(lambda: ready_pid(pair, security) not in {None, pid}, "rank 1 back under a new certificate")
        assert pair.ask(new.node("client"))
    finally:
        ended.set()
        for client in clients:
            client.join()
    assert len(outcomes) > 4
    assert set(outcomes) == {200}
    assert refused(pair, old.node("client")) is grpc.StatusCode.UNAVAILABLE
    assert pair.second.stop() == 0
    assert pair.first.stop() == 0


def ready_pid(pair: Pair, security: Security) -> int | None:
    with Dialer(security).dial_blocking(pair.first.head_target) as channel:
        stub = wire.RendezvousServiceStub(channel)
        roster = stub.GetDeployment(wire.GetDeploymentRequest(), timeout=TIMEOUT_S).roster
    return next((e.pid for e in roster.ranks if e.rank == 1 and e.state == wire.RANK_STATE_READY), None)


def content(path: Path | None) -> bytes:
    assert path is not None
    return path.read_bytes()


def replace_file(path: Path | None, data: bytes) -> None:
    assert path is not None
    scratch = path.with_suffix(".scratch")
    scratch.write_bytes(data)
    os.replace(scratch, path)
