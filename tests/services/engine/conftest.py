"""A real head, and an engine with a scripted forward pass, in this process and on free ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from muster import v1 as wire

from engine.core import StepResult
from engine.loop import EngineLoop
from services.engine.admin import AdminServicer
from services.engine.convert import Limits, to_model_info
from services.engine.drain import Drain
from services.engine.errors import engine_error_table
from services.engine.intake import Intake
from services.engine.load_feed import LoadFeed
from services.engine.server import ADMIN_SERVICE, ENGINE_SERVICE
from services.engine.servicer import EngineServicer
from services.engine.state import EngineState
from services.engine.tokenizer_archive import TokenizerArchive
from services.head.server import HeadOptions, run_head
from services.rpc.channels import dial
from services.rpc.server import RpcServer
from tests.services.engine.scripted_runner import FACTS, NUM_BLOCKS, ScriptedRunner, scripted_core

TIMEOUT_S = 20.0


@asynccontextmanager
async def running_head(**changes: object) -> AsyncIterator[str]:
    """A head with short intervals; yields its TCP target."""
    options: dict[str, object] = {
        "deployment_id": "test",
        "data_parallel_size": 2,
        "heartbeat_interval_s": 0.1,
        "heartbeat_timeout_s": 5.0,
    }
    listening: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        run_head(HeadOptions(**{**options, **changes}), on_listening=listening.set_result)  # type: ignore[arg-type]
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            target = (await listening)[-1]
        yield target
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def head_target() -> AsyncIterator[str]:
    async with running_head() as target:
        yield target


class EngineUnderTest:
    """An engine's servicers on a free port over a real engine thread; no head, no model."""

    def __init__(self) -> None:
        self.state = EngineState(incarnation=1)
        self.intake = Intake(self.state)
        self.drain = Drain(self.state, self.intake)
        self.feed = LoadFeed()
        self.runner = ScriptedRunner()
        self.tokenizer = bytes(range(256)) * 1000  # 250 KiB: four chunks
        self.servicer = EngineServicer(self.state, self.intake, self.feed, TokenizerArchive(lambda: self.tokenizer))
        self.failures: list[BaseException] = []
        self._engine_loop: EngineLoop | None = None
        self._server = RpcServer(error_tables=(engine_error_table,))

    async def __aenter__(self) -> EngineUnderTest:
        self._server.add(ENGINE_SERVICE, wire.add_EngineServiceServicer_to_server, self.servicer)
        admin = AdminServicer(self.state, self.intake, self.drain)
        self._server.add(ADMIN_SERVICE, wire.add_AdminServiceServicer_to_server, admin)
        port = self._server.listen_tcp("127.0.0.1", 0, flags="test")
        await self._server.start()
        self.state.welcomed(0, "")
        self._channel = dial(f"127.0.0.1:{port}")
        self.stub = wire.EngineServiceStub(self._channel)
        self.admin = wire.AdminServiceStub(self._channel)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._channel.close()
        self.feed.close()
        self.servicer.end_attachments()
        await self._server.stop(1)
        if self._engine_loop is not None:
            assert await asyncio.to_thread(self._engine_loop.stop, 5.0)

    def load(self) -> None:
        """Starts the engine thread, as the end of loading does."""
        event_loop = asyncio.get_running_loop()
        core = scripted_core(self.runner)

        def deliver(result: StepResult) -> None:
            event_loop.call_soon_threadsafe(self._deliver, result)

        self._engine_loop = EngineLoop(core, deliver, on_failure=self.failures.append)
        self._engine_loop.start()
        self.feed.open(self._engine_loop)
        self.intake.open(self._engine_loop, Limits(FACTS.vocab_size, FACTS.max_model_len, FACTS.embedding_size))
        model = to_model_info(
            FACTS,
            served_model_names=["test-model"],
            block_size=16,
            num_blocks=NUM_BLOCKS,
            max_num_seqs=64,
            max_num_batched_tokens=512,
        )
        self.state.serving(model, device="cpu", attention_backend="scripted", num_threads=1)

    def _deliver(self, result: StepResult) -> None:
        self.intake.deliver(result)
        self.feed.publish(result.stats)

    async def status(self) -> wire.GetStatusResponse:
        return await self.stub.GetStatus(wire.GetStatusRequest())

    async def status_when(self, condition: Callable[[wire.GetStatusResponse], object]) -> wire.GetStatusResponse:
        """GetStatus, as soon as `condition` holds for it."""
        async with asyncio.timeout(TIMEOUT_S):
            while not condition(status := await self.status()):  # noqa: ASYNC110  # an answer is no event
                await asyncio.sleep(0.005)
        return status

    async def idle(self) -> None:
        """Waits until no request is live, then every block must be free."""
        status = await self.status_when(
            lambda status: not self.intake.num_live and not status.load.running and not status.load.waiting
        )
        assert status.free_blocks == status.total_blocks


@pytest.fixture
async def engine() -> AsyncIterator[EngineUnderTest]:
    async with EngineUnderTest() as under_test:
        under_test.load()
        yield under_test


@pytest.fixture
async def loading_engine() -> AsyncIterator[EngineUnderTest]:
    async with EngineUnderTest() as under_test:
        yield under_test
