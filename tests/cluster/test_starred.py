"""The twelve troubles of vLLM's users that Muster demonstrably does not have; docs/versus-vllm.md shows the output.

Some of the demonstrations stand beside their like in other files: STARRED has them all.
"""

from __future__ import annotations

import ast
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.cluster.answers import StreamedAnswer, complete
from tests.cluster.conftest import FLAGS, Launch
from tests.support.cluster import Cluster

pytestmark = pytest.mark.cluster

DEADLINE_S = 30
ZMTP_GREETING = b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL" + bytes(16) + b"\x00" * 32
STRAY = (
    b"GET /metrics HTTP/1.1\r\nHost: head\r\n\r\n",
    ZMTP_GREETING + b"\x04\x26\x05READY\x08Identity\x00\x00\x00\x08" + b"\xfe" * 8,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + secrets.token_bytes(300),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + secrets.token_bytes(300),
    secrets.token_bytes(4096),
    b"",
)


@pytest.fixture(scope="module", autouse=True)
def incomplete(tiny_model: Path) -> Iterator[Cluster]:
    """One node of two, waiting for the other while the tests of this file run; its deadline passes meanwhile."""
    flags = ("-dp", "2", "-dpl", "1", "--api-server-count", "2", "--ready-timeout", str(DEADLINE_S))
    with Cluster(tiny_model, *FLAGS, *flags) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def running(tiny_model: Path) -> Iterator[Cluster]:
    """Two ranks, two gateways."""
    with Cluster(tiny_model, *FLAGS, "-dp", "2", "--api-server-count", "2") as cluster:
        cluster.wait_until_ready()
        cluster.wait_for(lambda: len(cluster.roster().gateways) == 2, "two gateways")
        yield cluster
        assert cluster.stop() == 0


def throw_at(address: tuple[str, int] | str, content: bytes) -> None:
    """Dials, says it, listens for a moment, and hangs up; whoever is there may hang up first."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as stray:
        stray.settimeout(0.2)
        try:
            stray.connect(address)
            stray.sendall(content)
            stray.recv(65536)
        except (TimeoutError, ConnectionError):
            return


def address_of(target: str) -> tuple[str, int]:
    host, _, port = target.rpartition(":")
    return host, int(port)


def test_the_rank_that_is_missing_is_named_while_it_is_waited_for(incomplete: Cluster) -> None:
    """T1: within 10 s the log, and at once /readyz and `muster status`, name the rank and where it is expected from."""

    def readiness() -> dict[str, Any] | None:
        try:
            answer = httpx.get(f"{incomplete.url}/readyz", timeout=10).json()
        except httpx.ConnectError:  # the address is known before the gateway has come up
            return None
        return dict(answer) if answer["num_ranks"] else None  # without ranks it has not reached the head yet

    told = incomplete.wait_for(readiness, "a gateway that has seen the head")
    assert (told["num_ready"] <= 1, told["num_ranks"]) == (True, 2)
    assert [rank["state"] for rank in told["ranks"] if rank["rank"] == 1] == ["missing"]
    shown = subprocess.run(
        [sys.executable, "-m", "services.cli", "status", "--head-target", incomplete.head_target],
        capture_output=True, text=True, timeout=30, check=True,
    ).stdout  # fmt: skip
    assert "1     missing" in shown
    incomplete.wait_for_output(r"\[head\] \S+ INFO .*1 of 2 ranks ready; rank 1 missing, expected from another node")


def test_stray_bytes_during_the_start_end_nothing(launch: Launch) -> None:
    """T4: scanners and foreign clients on the head's port are hung up on, and the start goes on to its end."""
    head = launch("-dp", "2", "-dpl", "1")
    address = address_of(head.head_target)
    (process,) = head.children("head")
    for content in STRAY:
        throw_at(address, content)
    node = launch("--headless", "-dp", "2", "-dpl", "1", "-dpr", "1", "-dpa", address[0], "-dpp", str(address[1]))
    for content in STRAY:
        throw_at(address, content)
    head.wait_until_ready()
    assert complete(head, rank=1).status_code == 200
    assert head.children("head") == [process]
    assert node.stop() == 0
    assert head.stop() == 0


def test_ports_that_clash_are_named_and_free_ones_never_do(running: Cluster, tiny_model: Path) -> None:
    """T12, T16, T17: equal ports are an error with both flags, starts side by side on free ones have none, and each
    head and engine listens on exactly one."""
    taken = subprocess.run(
        [sys.executable, "-m", "services.cli", "serve", str(tiny_model), "--port", "29550"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert taken.returncode == 2
    assert "--port and --data-parallel-rpc-port are both 29550: give each its own port" in taken.stderr
    with ExitStack() as starting:
        many = [starting.enter_context(Cluster(tiny_model, *FLAGS, "-dpl", "0")) for _ in range(4)]
        ports = [address_of(target)[1] for one in many for target in (one.url, one.grpc_target, one.head_target)]
        assert len(set(ports)) == 12
        for one in many:
            one.wait_for_output(r"\[head\] .* listens on")
            assert one.stop() == 0
    for role, num_processes in (("head", 1), ("engine", 2)):
        processes = running.children(role)
        assert [len(listening(process)) for process in processes] == [1] * num_processes


def listening(process: psutil.Process) -> list[tuple[str, int]]:
    return [(c.laddr.ip, c.laddr.port) for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]


def test_junk_at_run_time_changes_nothing(running: Cluster) -> None:
    """T22, T23: whatever is thrown at whatever listens, the answers that run meanwhile are whole, and nobody dies."""
    processes = [each for role in ("head", "engine", "gateway") for each in running.children(role)]
    addresses: set[Any] = {address for process in processes for address in listening(process)}
    addresses |= {c.laddr for p in processes for c in p.net_connections("unix") if str(c.laddr).endswith(".sock")}
    assert len(addresses) == (2 + 1 + 2) + 5  # REST and gRPC, head, engines; and a Unix socket of each process
    expected = complete(running, num_tokens=300).json()["choices"][0]["text"]
    with ExitStack() as asking:
        answers = [asking.enter_context(StreamedAnswer(running, num_tokens=300)) for _ in range(4)]
        for answer in answers:
            assert answer.started.wait(30)
        for address in addresses:
            for content in STRAY:
                throw_at(address, content)
    assert [(answer.error, answer.text) for answer in answers] == [(None, expected)] * 4
    assert [each for role in ("head", "engine", "gateway") for each in running.children(role)] == processes
    assert complete(running, num_tokens=300).json()["choices"][0]["text"] == expected


def test_everybody_has_the_same_deadline(incomplete: Cluster) -> None:
    """T2: at the deadline all processes of all kinds end, with exit code 1 and the name of the rank that never came."""
    assert incomplete.wait() == 1
    last = incomplete.output.splitlines()[-1]
    assert f"not all ranks were ready within {DEADLINE_S} s" in last
    assert "rank 1 missing, expected from another node (no engine has registered)" in last


STARRED = {
    1: ("T1", "test_starred", "test_the_rank_that_is_missing_is_named_while_it_is_waited_for"),
    2: ("T2", "test_starred", "test_everybody_has_the_same_deadline"),
    3: ("T4", "test_starred", "test_stray_bytes_during_the_start_end_nothing"),
    4: ("T6, T7", "test_failures", "test_an_engine_that_does_not_fit_is_turned_away_and_the_right_one_joins"),
    5: ("T12, T16, T17", "test_starred", "test_ports_that_clash_are_named_and_free_ones_never_do"),
    6: ("T22, T23", "test_starred", "test_junk_at_run_time_changes_nothing"),
    7: ("T24", "test_doors", "test_nobody_reads_a_prompt_on_the_way_and_only_the_right_callers_get_in"),
    8: ("T28, T29", "test_failures", "test_a_frozen_node_is_lost_and_one_without_a_head_does_not_outlive_it_for_long"),
    9: ("T30", "test_failures", "test_a_hung_engine_is_replaced"),
    10: ("T33", "test_failures", "test_a_killed_head_is_replaced_while_serving_goes_on"),
    11: ("T53", "test_serving", "test_every_gateway_shows_the_totals_of_all"),
    12: ("T42", "test_scopes", "test_hybrid_nodes_serve_their_own_ranks_under_global_numbers"),
}


def docstrings(module: str) -> dict[str, str]:
    """Of the functions of a file beside this one, unless they are skipped."""
    tree = ast.parse((Path(__file__).parent / f"{module}.py").read_text())
    return {node.name: ast.get_docstring(node) or "" for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("star", STARRED)
def test_each_of_the_twelve_has_its_demonstration_and_its_part_of_the_page(star: int) -> None:
    trouble, module, name = STARRED[star]
    assert docstrings(module)[name].startswith(f"{trouble}: ")
    page = (Path(__file__).resolve().parents[2] / "docs" / "versus-vllm.md").read_text()
    part = page.partition(f"\n## {star}. ")[2].partition("\n## ")[0]
    assert f"`{name}`" in part
    assert f"({trouble})" in part.splitlines()[0]
