"""A gateway's backend between a fake head and fake engines, in one process, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from muster import v1 as wire

from gateway.backend import Backend
from gateway.generation import GenerationLimits
from gateway.generation_request import (
    ChoiceDelta,
    GenerationEvent,
    GenerationRequest,
    GenerationUsage,
    PromptReport,
    Sampling,
)
from services.rpc.channels import dial, dial_engine
from tests.support.fake_engine import EngineScript, FakeEngine
from tests.support.fake_head import FakeHead
from tests.support.later_contract import LaterContract
from tests.support.older_contract import OlderContract
from tests.support.waiting import eventually


@dataclass
class Answer:
    """All events of one request, sorted out."""

    report: PromptReport
    deltas: list[ChoiceDelta]
    usage: GenerationUsage

    def text(self, index: int = 0) -> str:
        return "".join(delta.text for delta in self.deltas if delta.index == index)

    def token_ids(self, index: int = 0) -> list[int]:
        return [token_id for delta in self.deltas if delta.index == index for token_id in delta.token_ids]

    def last(self, index: int = 0) -> ChoiceDelta:
        return [delta for delta in self.deltas if delta.index == index][-1]


@dataclass
class FakeCluster:
    head: FakeHead
    engines: list[FakeEngine]
    backend: Backend

    def stream(self, request: GenerationRequest) -> AsyncIterator[GenerationEvent]:
        return self.backend.generator.stream(request, self.backend.cluster.tokenizer())

    async def answer(self, request: GenerationRequest) -> Answer:
        events = [event async for event in self.stream(request)]
        report, *deltas, usage = events
        assert isinstance(report, PromptReport)
        assert isinstance(usage, GenerationUsage)
        assert all(isinstance(delta, ChoiceDelta) for delta in deltas)
        return Answer(report, [delta for delta in deltas if isinstance(delta, ChoiceDelta)], usage)

    async def settled(self) -> None:
        """All handles are free and no lease is out."""
        pool, cluster = self.backend.pool, self.backend.cluster
        await eventually(lambda: pool.num_handles == 0, "all handles are free")
        assert all(load.in_flight == 0 for load in cluster.loads())
        assert self.backend.generator.num_open == self.backend.generator.num_queued == 0

    def engine_of(self, request_id: str) -> FakeEngine:
        """The engine that got the request last."""
        return [
            engine
            for engine in self.engines
            if any(submitted.request_id.startswith(request_id) for submitted in engine.submitted)
        ][-1]


def ask(
    prompt: str = "hello", *, request_id: str = "r", seed: int | None = None, **options: object
) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id,
        prompt_token_ids=tuple(prompt.encode()),
        sampling=Sampling(seed=seed),
        **options,  # type: ignore[arg-type]
    )


@contextlib.asynccontextmanager
async def fake_cluster(
    *scripts: EngineScript,
    limits: GenerationLimits | None = None,
    scope: Sequence[int] | None = None,
    contract: OlderContract | LaterContract | None = None,
) -> AsyncIterator[FakeCluster]:
    """One engine per script, all ready and attached. Checks at the end that no task was left behind."""
    before = asyncio.all_tasks()
    head = FakeHead(contract=contract)
    engines = [
        FakeEngine(rank=rank, script=script, contract=contract)
        for rank, script in enumerate(scripts or (EngineScript(),))
    ]
    for engine in engines:
        await engine.start()
    head.set_ranks(*(engine.roster_entry() for engine in engines))
    await head.start()
    backend = Backend(
        head_target=head.target,
        gateway=wire.GatewayEntry(name="g0", host="localhost", pid=1),
        host_id="here",
        dial=dial,
        dial_engine=dial_engine,
        limits=limits,
        scope=scope,
    )
    backend.start()
    cluster = FakeCluster(head, engines, backend)
    try:
        ranks = [engine.rank for engine in engines if scope is None or engine.rank in scope]
        await eventually(
            lambda: backend.cluster.ready and all(backend.pool.link(rank) is not None for rank in ranks),
            "the gateway is ready and attached",
        )
        yield cluster
    finally:
        await backend.close()
        for engine in engines:
            await engine.stop()
        await head.stop()
        await eventually(lambda: not asyncio.all_tasks() - before, f"tasks ended: {asyncio.all_tasks() - before}")
