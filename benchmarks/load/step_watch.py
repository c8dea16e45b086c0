"""The engine's own view of its steps, by EngineService.WatchStats."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from types import TracebackType

from muster import v1 as wire

from services.rpc.channels import dial


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine."""

    num_sequences: int
    num_tokens: int
    duration_ms: float


class StepWatch:
    """Steps of the first rank of a deployment, while the block lasts. `steps` grows; some may be missed."""

    def __init__(self, head_target: str) -> None:
        self.steps: list[Step] = []
        self._head_target = head_target
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> StepWatch:
        async with dial(self._head_target) as channel:
            stub = wire.RendezvousServiceStub(channel)
            answer = await stub.GetDeployment(wire.GetDeploymentRequest(), timeout=10)
        target = answer.roster.ranks[0].targets[-1]
        self._task = asyncio.create_task(self._watch(target))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _watch(self, target: str) -> None:
        async with dial(target) as channel:
            async for step in wire.EngineServiceStub(channel).WatchStats(wire.WatchStatsRequest()):
                self.steps.append(Step(step.num_sequences, step.num_tokens, step.duration_us / 1e3))
