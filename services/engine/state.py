"""What this engine is right now, as the head and callers are told."""

from __future__ import annotations

from dataclasses import dataclass, replace

from muster import v1 as wire

from services.rpc.watched import Watched


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One instant of an engine's life. `model` is set once the model is loaded and the engine thread runs."""

    phase: wire.EnginePhase.ValueType = wire.ENGINE_PHASE_STARTING
    phase_done: int = 0
    phase_total: int = 0  # 0: unknown
    rank: int | None = None  # None: the head has not assigned one yet
    data_parallel_size: int = 1  # known with the rank
    coordinator_target: str = ""  # where CoordinatorService is; known with the rank
    model: wire.ModelInfo | None = None
    device: str = ""  # this and the next two: known once the model is loaded
    attention_backend: str = ""
    num_threads: int = 0
    targets: tuple[str, ...] = ()  # where this engine serves
    accepted: bool = False  # the head put it into the roster at least once
    draining: bool = False
    drained: bool = False  # no request is left in a drain
    stop_reason: str = ""  # not empty: the process finishes its requests and takes no more
    leaving: bool = False  # all requests ended, the lease is to end too

    @property
    def rank_state(self) -> wire.RankState.ValueType:
        if self.draining or self.stop_reason:
            return wire.RANK_STATE_DRAINING
        return wire.RANK_STATE_JOINING if self.model is None else wire.RANK_STATE_READY

    @property
    def progress_text(self) -> str:
        """For people, for example "loading weights, 120 of 272"."""
        name = wire.EnginePhase.Name(self.phase).removeprefix("ENGINE_PHASE_").replace("_", " ").lower()
        return f"{name}, {self.phase_done} of {self.phase_total}" if self.phase_total else name


class EngineState:
    """The newest snapshot, and word of its changes. Belongs to the event loop."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self._watched = Watched(Snapshot())

    @property
    def now(self) -> Snapshot:
        return self._watched.value

    @property
    def version(self) -> int:
        return self._watched.version

    async def newer_than(self, version: int) -> Snapshot:
        return await self._watched.newer_than(version)

    def progress(self, phase: wire.EnginePhase.ValueType, done: int, total: int) -> None:
        self._change(phase=phase, phase_done=done, phase_total=total)

    def serving(self, model: wire.ModelInfo, *, device: str, attention_backend: str, num_threads: int) -> None:
        """The model is loaded and the engine thread runs."""
        self._change(
            phase=wire.ENGINE_PHASE_SERVING,
            phase_done=0,
            phase_total=0,
            model=model,
            device=device,
            attention_backend=attention_backend,
            num_threads=num_threads,
        )

    def listening(self, targets: tuple[str, ...]) -> None:
        self._change(targets=targets)

    def welcomed(self, rank: int, coordinator_target: str, data_parallel_size: int = 1) -> None:
        self._change(rank=rank, coordinator_target=coordinator_target, data_parallel_size=data_parallel_size)

    def accepted(self) -> None:
        self._change(accepted=True)

    def drain(self, draining: bool) -> None:
        self._change(draining=draining, drained=False)

    def drained(self) -> None:
        self._change(drained=True)

    def stopping(self, reason: str) -> None:
        self._change(stop_reason=reason)

    def leave(self) -> None:
        self._change(leaving=True)

    def _change(self, **changes: object) -> None:
        self._watched.publish(replace(self._watched.value, **changes))  # type: ignore[arg-type]  # field names above
