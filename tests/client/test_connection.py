"""Doors, retries, and gateways that come and go."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from muster import v1 as wire
from muster.client import AsyncClient, Client, MusterError, Tls, UnauthenticatedError, UnavailableError, service_config
from muster.client.connection import INFERENCE

from services.rpc.errors import RpcError
from services.rpc.security import OPEN, Security
from services.rpc.server import RpcServer
from tests.services.rpc.serving import Placeholder, serving
from tests.support.certificates import TestAuthority, write_tokens

TOKEN = "0123456789abcdef-watch"
DOCUMENTED = Path(__file__).resolve().parents[2] / "docs" / "client.md"


class Moody(Placeholder):
    """Answers after so many refusals."""

    def __init__(self, num_refusals: int = 0, retry_after_s: float | None = 0.05) -> None:
        self.num_calls = 0
        self._num_refusals = num_refusals
        self._retry_after_s = retry_after_s

    async def GetDeployment(self, request: Any, context: Any) -> wire.GetDeploymentResponse:
        self._refuse()
        return wire.GetDeploymentResponse(product_version="seen")

    async def WatchRoster(self, request: Any, context: Any) -> AsyncIterator[wire.WatchRosterResponse]:
        self._refuse()
        yield wire.WatchRosterResponse(roster=wire.Roster(sequence=7))

    def _refuse(self) -> None:
        self.num_calls += 1
        if self.num_calls <= self._num_refusals:
            code = grpc.StatusCode.UNAVAILABLE
            raise RpcError(code, "loading", reason="LOADING", retry_after_s=self._retry_after_s)


async def test_unavailable_is_tried_again_when_the_server_says() -> None:
    servicer = Moody(num_refusals=2)
    async with serving(servicer) as served, AsyncClient(head=f"127.0.0.1:{served.port}") as client:
        assert (await client.deployment()).product_version == "seen"
        assert servicer.num_calls == 3
        servicer.num_calls = 0
        async with client.watch_roster() as rosters:
            assert [roster.sequence async for roster in rosters] == [7]
        assert servicer.num_calls == 3


async def test_without_retries_the_hint_reaches_the_caller() -> None:
    async with serving(Moody(1, retry_after_s=1.5)) as served:
        async with AsyncClient(head=f"127.0.0.1:{served.port}", retries=False) as client:
            with pytest.raises(UnavailableError) as caught:
                await client.deployment()
        assert (caught.value.reason, caught.value.retry_after_s) == ("LOADING", 1.5)


async def test_other_faults_are_not_tried_again() -> None:
    class Refusing(Moody):
        def _refuse(self) -> None:
            self.num_calls += 1
            raise RpcError(grpc.StatusCode.INTERNAL, "broken", reason="BROKEN", metadata={"part": "disk"})

    servicer = Refusing()
    async with serving(servicer) as served, AsyncClient(head=f"127.0.0.1:{served.port}") as client:
        with pytest.raises(MusterError, match="INTERNAL: broken") as caught:
            await client.deployment()
    assert (caught.value.reason, caught.value.metadata, servicer.num_calls) == ("BROKEN", {"part": "disk"}, 1)


async def test_tokens_and_certificates(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    security = write_tokens(tmp_path / "tokens", f"{'m' * 32}\nwatch {TOKEN}\n", authority.node("localhost"))
    caller = authority.node("client")
    assert caller.tls_cert is not None
    tls = Tls(ca=authority.certificate, certificate=caller.tls_cert, key=caller.tls_key)

    def talk(port: int) -> None:
        with Client(head=f"localhost:{port}", token=lambda: TOKEN, tls=tls) as client:
            assert client.deployment().product_version == "seen"
        with Client(head=f"localhost:{port}", tls=tls) as client, pytest.raises(UnauthenticatedError):
            client.deployment()
        stranger = Client(head=f"localhost:{port}", tls=Tls(ca=authority.certificate), retries=False)
        with stranger as client, pytest.raises(UnavailableError):
            client.deployment()

    async with serving(Moody(), security=security) as served:
        await asyncio.to_thread(talk, served.port)


class Listing(wire.InferenceServiceServicer):
    def __init__(self, name: str) -> None:
        self._name = name

    async def ListModels(self, request: Any, context: Any) -> wire.ListModelsResponse:
        return wire.ListModelsResponse(models=[wire.ModelInfo(architecture=self._name)])


@contextlib.asynccontextmanager
async def listing(name: str, security: Security = OPEN) -> AsyncIterator[tuple[RpcServer, int]]:
    server = RpcServer(security=security)
    servicer = Listing(name)  # type: ignore[abstract]
    server.add(INFERENCE, wire.add_InferenceServiceServicer_to_server, servicer)
    port = server.listen_tcp("127.0.0.1", 0, flags="--grpc-port")
    await server.start()
    server.set_serving(INFERENCE, True)
    try:
        yield server, port
    finally:
        await server.stop(0)


async def test_calls_go_round_and_leave_out_a_gateway_that_is_not_serving_or_stops() -> None:
    async with listing("a") as (first, first_port), listing("b") as (_, second_port):
        target = f"ipv4:127.0.0.1:{first_port},127.0.0.1:{second_port}"
        async with AsyncClient(target) as client, asyncio.timeout(20):

            async def asked() -> str:
                return str((await client.models())[0].architecture)

            seen: set[str] = set()
            while seen != {"a", "b"}:
                seen.add(await asked())
            first.set_serving(INFERENCE, False)
            in_a_row = 0
            while in_a_row < 10:  # until health was heard of
                in_a_row = in_a_row + 1 if await asked() == "b" else 0
            first.set_serving(INFERENCE, True)
            while await asked() != "a":
                pass
            # Stopping is GOAWAY: what runs finishes, what comes goes elsewhere, and nobody sees an error.
            stopping = asyncio.create_task(first.stop(5))
            answers = [await asked() for _ in range(50)]
            await stopping
            assert set(answers[-10:]) == {"b"}


def test_the_documented_service_config_is_the_one_that_is_used() -> None:
    (documented,) = re.findall(r"```json\n(.*?)```", DOCUMENTED.read_text(), re.DOTALL)
    assert json.loads(documented) == json.loads(service_config(health_of=INFERENCE))
