"""The engine as a process against the real head: start, serve, drain, fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from muster import v1 as wire

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import CheckpointError
from engine.facts import ModelFacts
from services.engine.server import (
    ADMIN_SERVICE,
    ENGINE_SERVICE,
    EXIT_FAILED,
    EXIT_REJECTED,
    EXIT_STOPPED,
    EngineOptions,
    EngineProcess,
)
from services.rpc.channels import dial
from services.rpc.identity import tcp_target
from tests.services.engine.conftest import TIMEOUT_S
from tests.services.engine.scripted_runner import (
    BREAKING_TOKEN_ID,
    FACTS,
    NUM_BLOCKS,
    ScriptedRunner,
    expected_tokens,
    scripted_core,
)
from tests.support.waiting import eventually


@dataclass
class Built:
    """A BuiltEngine without torch."""

    core: EngineCore
    facts: ModelFacts = FACTS
    num_blocks: int = NUM_BLOCKS
    block_size: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    device: str = "cpu"
    attention_backend: str = "scripted"
    num_threads: int = 1
    spread: None = None


class Loader:
    """A build function that tests hold, break or let pass."""

    def __init__(self) -> None:
        self.runner = ScriptedRunner()
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.cancelled = threading.Event()

    def build(self, config: EngineConfig, progress: Callable[[Any, int, int], None]) -> Any:
        try:
            progress(LoadingWeights, 1, 2)
            while not self.gate.wait(timeout=0.01):
                progress(LoadingWeights, 1, 2)
        except BaseException:
            self.cancelled.set()
            raise
        if self.error is not None:
            raise self.error
        return Built(scripted_core(self.runner))


@dataclass(frozen=True)
class _Phase:
    name: str


LoadingWeights = _Phase("LOADING_WEIGHTS")


class Running:
    """A process under test and its exit code to come."""

    def __init__(self, process: EngineProcess) -> None:
        self.process = process
        self.task = asyncio.create_task(process.run())

    @property
    def state(self) -> Any:
        return self.process._state.now

    async def accepted(self) -> None:
        await eventually(lambda: self.state.accepted or self.task.done(), "the head accepts the engine", TIMEOUT_S)

    async def exit_code(self) -> int:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.task

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[grpc.aio.Channel]:
        await eventually(lambda: self.state.targets, "the engine listens")
        async with dial(self.state.targets[0]) as channel:
            yield channel


@asynccontextmanager
async def running(head_target: str, loader: Loader | None = None, **options: Any) -> AsyncIterator[Running]:
    loader = loader or Loader()
    fields = {"served_model_names": ("test-model",), "shutdown_timeout_s": TIMEOUT_S, **options}
    process = EngineProcess(
        EngineOptions(engine=EngineConfig(model_path=Path("unused")), head_target=head_target, **fields),
        loader.build,
        lambda config: b"archive",
    )
    under_test = Running(process)
    try:
        yield under_test
    finally:
        loader.gate.set()
        loader.runner.gate.set()
        process.stop("end of test", 0.0)
        await asyncio.wait({under_test.task}, timeout=TIMEOUT_S)
        assert under_test.task.done()


def generate(channel: grpc.aio.Channel, prompt: list[int], max_tokens: int) -> Any:
    stop = wire.StopConditions(max_tokens=max_tokens)
    return wire.EngineServiceStub(channel).Generate(wire.GenerateRequest(prompt_token_ids=prompt, stop=stop))


async def health(channel: grpc.aio.Channel, service: str = ENGINE_SERVICE) -> int:
    answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
    return int(answer.status)


async def deployment(head_target: str) -> wire.GetDeploymentResponse:
    async with dial(head_target) as channel:
        return await wire.RendezvousServiceStub(channel).GetDeployment(wire.GetDeploymentRequest())


SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_an_engine_registers_before_it_loads_and_serves_after(head_target: str) -> None:
    loader = Loader()
    loader.gate.clear()
    async with running(head_target, loader, rank=1) as engine, engine.channel() as channel:
        await eventually(lambda: engine.state.phase_total == 2 and engine.state.rank == 1, "the engine loads")
        (_, entry) = (await deployment(head_target)).roster.ranks
        assert entry.state == wire.RANK_STATE_JOINING
        assert await health(channel) == NOT_SERVING
        assert await health(channel, "") == NOT_SERVING
        assert await health(channel, ADMIN_SERVICE) == SERVING
        loader.gate.set()
        await engine.accepted()
        (_, entry) = (await deployment(head_target)).roster.ranks
        assert (entry.state, list(entry.targets)) == (wire.RANK_STATE_READY, list(engine.state.targets))
        await health_reaches(channel, SERVING)
        assert await health(channel, "") == SERVING
        assert await health(channel, f"{ENGINE_SERVICE}/rank-1") == SERVING


async def health_reaches(channel: grpc.aio.Channel, status: int) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=ENGINE_SERVICE))
    async with asyncio.timeout(TIMEOUT_S):
        async for answer in watch:
            if answer.status == status:
                watch.cancel()
                return


async def test_a_unix_socket_comes_first(head_target: str, tmp_path: Any) -> None:
    async with running(head_target, unix_path=tmp_path / "e.sock") as engine, engine.channel() as channel:
        await engine.accepted()
        assert engine.state.targets[0].startswith("unix:")
        responses = [response async for response in generate(channel, [5], 3)]
    assert [token_id for response in responses for token_id in response.token_ids] == expected_tokens([5], 3)


async def test_load_reports_reach_the_head(head_target: str) -> None:
    async with running(head_target, rank=0) as engine, engine.channel() as channel:
        await engine.accepted()
        async for _ in generate(channel, [5], 30):
            pass
        async with dial(head_target) as head, asyncio.timeout(TIMEOUT_S):
            watch = wire.CoordinatorServiceStub(head).WatchLoad(wire.WatchLoadRequest())
            async for response in watch:
                if any(load.rank == 0 and load.stats.generated_tokens_total == 30 for load in response.loads):
                    break
            watch.cancel()


async def test_stopping_finishes_what_runs_refuses_the_rest_and_says_goodbye(head_target: str) -> None:
    loader = Loader()
    async with running(head_target, loader, rank=0) as engine, engine.channel() as channel:
        await engine.accepted()
        stream = aiter(generate(channel, [5], 200))
        first = await anext(stream)
        loader.runner.gate.clear()
        engine.process.stop("test", None)
        await eventually(lambda: engine.state.stop_reason, "the engine stops")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(generate(channel, [5], 1)))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        loader.runner.gate.set()
        tokens = list(first.token_ids) + [token_id async for response in stream for token_id in response.token_ids]
        assert tokens == expected_tokens([5], 200)
        assert await engine.exit_code() == EXIT_STOPPED
    assert (await deployment(head_target)).roster.ranks[0].state == wire.RANK_STATE_MISSING


async def test_the_shutdown_timeout_aborts_the_rest(head_target: str) -> None:
    async with running(head_target) as engine, engine.channel() as channel:
        await engine.accepted()
        stream = aiter(generate(channel, [5], 4000))
        await anext(stream)
        engine.process.stop("test", 0.0)
        responses = [response async for response in stream]
        assert responses[-1].finish_reason == wire.FINISH_REASON_ABORT
        assert await engine.exit_code() == EXIT_STOPPED


async def test_attached_gateways_see_the_end_of_their_stream(head_target: str) -> None:
    async with running(head_target) as engine, engine.channel() as channel:
        await engine.accepted()

        async def frames() -> AsyncIterator[wire.AttachRequest]:
            yield wire.AttachRequest(open=wire.OpenAttachment(gateway="test"))
            await asyncio.Event().wait()

        stream = aiter(wire.EngineServiceStub(channel).Attach(frames()))
        await anext(stream)
        engine.process.stop("test", None)
        assert [response async for response in stream] == []
        assert await engine.exit_code() == EXIT_STOPPED


async def test_a_model_that_cannot_be_loaded_ends_the_process(
    head_target: str, caplog: pytest.LogCaptureFixture
) -> None:
    loader = Loader()
    loader.error = CheckpointError("weights.gguf: is not a GGUF file")
    async with running(head_target, loader) as engine:
        assert await engine.exit_code() == EXIT_FAILED
    assert "weights.gguf: is not a GGUF file" in caplog.text


async def test_a_stop_while_loading_ends_the_loader(head_target: str) -> None:
    loader = Loader()
    loader.gate.clear()
    async with running(head_target, loader) as engine:
        await eventually(lambda: engine.state.phase_total == 2, "the engine loads")
        engine.process.stop("test", None)
        assert await engine.exit_code() == EXIT_STOPPED
        assert loader.cancelled.is_set()


async def test_a_rejected_engine_names_the_fields_and_is_not_to_be_restarted(
    head_target: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(head_target, deployment_id="other", data_parallel_size=7) as engine:
        assert await engine.exit_code() == EXIT_REJECTED
    assert "rejected by the head: deployment_id" in caplog.text
    assert "rejected by the head: data_parallel_size" in caplog.text


async def test_a_dead_engine_thread_fails_its_requests_and_ends_the_process(head_target: str) -> None:
    async with running(head_target) as engine, engine.channel() as channel:
        await engine.accepted()
        for _ in range(100):
            with pytest.raises(grpc.aio.AioRpcError):
                await anext(aiter(generate(channel, [BREAKING_TOKEN_ID], 1)))
            if engine.process._ending.done():
                break
        assert await engine.exit_code() == EXIT_FAILED


async def test_a_port_in_use_is_told_with_its_flags(head_target: str, caplog: pytest.LogCaptureFixture) -> None:
    port = int(head_target.rpartition(":")[2])
    async with running(head_target, port=port) as engine:
        assert await engine.exit_code() == EXIT_FAILED
    assert "--host/--port" in caplog.text


@pytest.mark.parametrize(
    ("host", "target"),
    [
        ("127.0.0.1", "127.0.0.1:5"),
        ("::1", "[::1]:5"),
        ("[::1]", "[::1]:5"),
        ("node2", "dns:///node2:5"),
    ],
)
def test_targets_others_dial(host: str, target: str) -> None:
    assert tcp_target(host, 5) == target


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", ""])
def test_wildcards_are_never_advertised(host: str) -> None:
    assert "0.0.0.0" not in tcp_target(host, 5)
    assert "::" not in tcp_target(host, 5)
