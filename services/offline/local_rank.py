"""A gateway and an engine in one process: the REST application, and behind it a rank on a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from muster import v1 as wire

from engine.loop import EngineLoop
from gateway.app import build_app
from gateway.backend import Backend
from gateway.generation import GenerationLimits
from gateway.settings import AppSettings
from services.engine import convert
from services.engine.errors import engine_error_table
from services.engine.intake import Intake
from services.engine.load_feed import LoadFeed
from services.engine.loading import Loading, build_from_checkpoint, read_tokenizer
from services.engine.servicer import EngineServicer
from services.engine.state import EngineState
from services.engine.tokenizer_archive import TokenizerArchive
from services.offline.local_channel import LocalChannel
from services.offline.local_head import LocalCoordinator, LocalRendezvous
from services.rpc.identity import host_id, host_name, new_incarnation
from services.version import __version__

if TYPE_CHECKING:
    from engine.build import BuiltEngine, Phase
    from engine.config import EngineConfig
    from engine.loop import StepResult

_TARGET = "local:0"
_READY_POLL_S = 0.01
_STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class LocalRank:
    """The ASGI application, and an event that tells that its engine will never answer again."""

    app: Any
    failed: asyncio.Event


@asynccontextmanager
async def local_rank(config: EngineConfig, served_model_names: Sequence[str]) -> AsyncIterator[LocalRank]:
    """Loads the model and yields once it answers.

    Raises EngineError when the model cannot be loaded, and RuntimeError when its tokenizer cannot be used.
    """
    loading: Loading[BuiltEngine] = Loading(lambda progress: build_from_checkpoint(config, progress), _ignore)
    built = await loading.result()
    rank = _Rank(built, config, tuple(served_model_names))
    backend = Backend(
        head_target=_TARGET,
        gateway=wire.GatewayEntry(name="offline", host=host_name()),
        host_id=host_id(),
        dial=lambda target: rank.channel(),  # type: ignore[arg-type, return-value]  # has what stubs use of one
        # Whoever asks bounds what is asked at a time.
        limits=GenerationLimits(max_queued=1 << 30),
    )
    backend.start()
    try:
        while not backend.cluster.ready or backend.pool.link(0) is None:
            if backend.cluster.tokenizer_problem:
                raise RuntimeError(backend.cluster.tokenizer_problem)
            await asyncio.sleep(_READY_POLL_S)
        app = build_app(
            generator=backend.generator,
            cluster=backend.cluster,
            metrics=backend.metrics,
            settings=AppSettings(product_version=__version__, max_body_bytes=1 << 30),
        )
        yield LocalRank(app, rank.failed)
    finally:
        await backend.close()
        await rank.stop()


class _Rank:
    """The engine's half: what `services.engine.server` serves, without its ports and its membership."""

    def __init__(self, built: BuiltEngine, config: EngineConfig, served_model_names: tuple[str, ...]) -> None:
        self._event_loop = asyncio.get_running_loop()
        self.failed = asyncio.Event()
        state = EngineState(new_incarnation())
        self._intake = Intake(state)
        self._feed = LoadFeed()
        self._servicer = EngineServicer(
            state, self._intake, self._feed, TokenizerArchive(lambda: read_tokenizer(config))
        )
        self._engine_loop = EngineLoop(built.core, self._deliver_threadsafe, on_failure=self._fail_threadsafe)
        self._engine_loop.start()
        self._feed.open(self._engine_loop)
        self._intake.open(self._engine_loop, convert.Limits(built.facts.vocab_size, built.facts.max_model_len))
        model = convert.to_model_info(
            built.facts,
            served_model_names=served_model_names,
            block_size=built.block_size,
            num_blocks=built.num_blocks,
            max_num_seqs=built.max_num_seqs,
            max_num_batched_tokens=built.max_num_batched_tokens,
        )
        state.welcomed(0, "")
        state.serving(
            model, device=built.device, attention_backend=built.attention_backend, num_threads=built.num_threads
        )
        self._services = {
            "muster.v1.EngineService": self._servicer,
            "muster.v1.RendezvousService": LocalRendezvous(state, _TARGET),  # type: ignore[abstract]  # nobody registers here
            "muster.v1.CoordinatorService": LocalCoordinator(state, self._feed),  # type: ignore[abstract]
        }

    def channel(self) -> LocalChannel:
        return LocalChannel(self._services, (engine_error_table,))

    async def stop(self) -> None:
        self._feed.close()
        self._servicer.end_attachments()
        await asyncio.to_thread(self._engine_loop.stop, _STOP_S)

    def _deliver_threadsafe(self, result: StepResult) -> None:
        self._event_loop.call_soon_threadsafe(self._deliver, result)

    def _deliver(self, result: StepResult) -> None:
        self._intake.deliver(result)
        self._feed.publish(result.stats)

    def _fail_threadsafe(self, error: BaseException) -> None:
        self._event_loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: BaseException) -> None:
        self._intake.fail_all(f"the engine thread failed: {error}")
        self.failed.set()


def _ignore(phase: Phase, done: int, total: int) -> None:
    """Nobody watches."""
