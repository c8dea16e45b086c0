"""`muster engine`: one rank as a process."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from muster import v1 as wire

from engine.errors import EngineError
from engine.loop import EngineLoop
from services.engine import convert
from services.engine.admin import AdminServicer
from services.engine.drain import Drain
from services.engine.errors import engine_error_table
from services.engine.intake import Intake
from services.engine.load_feed import LoadFeed
from services.engine.load_reporter import LoadReporter
from services.engine.loading import Loading, build_from_checkpoint, read_tokenizer
from services.engine.lockstep_rank import LockstepRank, check_collectives, with_place
from services.engine.membership import HeadGoneError, Membership, RejectedError
from services.engine.options import EngineOptions
from services.engine.servicer import EngineServicer
from services.engine.state import EngineState
from services.engine.tokenizer_archive import TokenizerArchive
from services.rpc import runtime
from services.rpc.channels import Dialer
from services.rpc.identity import host_id, host_name, new_incarnation, tcp_target
from services.rpc.security import SecurityError
from services.rpc.server import ListenError, RpcServer
from services.version import PROTOCOL_MAX, PROTOCOL_MIN, __version__

if TYPE_CHECKING:
    from engine.build import BuiltEngine, Phase
    from engine.config import EngineConfig
    from engine.loop import StepResult

__all__ = ["EngineOptions", "EngineProcess", "run_engine"]

_log = logging.getLogger(__name__)

ENGINE_SERVICE = "muster.v1.EngineService"
ADMIN_SERVICE = "muster.v1.AdminService"

EXIT_STOPPED = 0
EXIT_FAILED = 1
EXIT_USAGE = 2  # a flag that cannot be honoured
EXIT_REJECTED = 3  # by the head; starting again would only repeat it
EXIT_HEAD_GONE = 4  # for longer than --head-timeout
EXIT_RESTART = 75  # the head wants a new process of this rank
EXIT_RETIRED = 76  # the head wants no other process of this rank

# Gateways, the head and operators are dozens. Each wake-up looks at all of them (`runtime.poll_for_what_is_awaited`).
_MOST_CONNECTIONS = 1024

# How long the parts of a stop may take once no request is live.
_ABORT_TIMEOUT_S = 2.0
_GOODBYE_TIMEOUT_S = 2.0
_STREAMS_TIMEOUT_S = 2.0
_THREAD_TIMEOUT_S = 5.0

Builder = Callable[["EngineConfig", "Callable[[Phase, int, int], None]"], "BuiltEngine"]
TokenizerReader = Callable[["EngineConfig"], bytes]


async def run_engine(
    options: EngineOptions, *, build: Builder = build_from_checkpoint, tokenizer: TokenizerReader = read_tokenizer
) -> int:
    """Serves one rank until SIGTERM, SIGINT, a stop command or a failure; returns the exit code.

    `build` and `tokenizer` do the slow work, each in a thread.
    """
    try:
        process = EngineProcess(options, build, tokenizer)
    except SecurityError as error:
        _log.error("the engine cannot start: %s", error)
        return EXIT_USAGE
    return await process.run()


@dataclass(frozen=True, slots=True)
class _Ending:
    """Why the process ends, and how long running requests may take meanwhile."""

    exit_code: int
    reason: str
    timeout_s: float


class EngineProcess:
    """Composition of one engine process: starts its parts, waits for the first cause to end, stops in reverse."""

    def __init__(self, options: EngineOptions, build: Builder, tokenizer: TokenizerReader) -> None:
        self._options = options
        self._event_loop = asyncio.get_running_loop()
        self._state = EngineState(new_incarnation())
        self._intake = Intake(self._state)
        self._drain = Drain(self._state, self._intake)
        self._feed = LoadFeed()
        check_collectives(options)
        self._engine_config = options.engine  # with its place in a group once the head has given one
        self._loading = Loading(lambda progress: build(self._engine_config, progress), self._progress)
        self._engine_loop: EngineLoop | None = None
        archive = TokenizerArchive(lambda: tokenizer(options.engine))
        self._servicer = EngineServicer(self._state, self._intake, self._feed, archive)
        self._server = RpcServer(
            error_tables=(engine_error_table,), security=options.security, most_connections=_MOST_CONNECTIONS
        )
        self._dialer = Dialer(options.security)
        self._server.add(ENGINE_SERVICE, wire.add_EngineServiceServicer_to_server, self._servicer)
        admin = AdminServicer(self._state, self._intake, self._drain)
        self._server.add(ADMIN_SERVICE, wire.add_AdminServiceServicer_to_server, admin)
        self._others: list[asyncio.Task[None]] = []  # beside membership
        self._ending: asyncio.Future[_Ending] = self._event_loop.create_future()

    async def run(self) -> int:
        """Everything from binding the sockets to the exit code."""
        stop = runtime.stop_event()
        try:
            self._state.listening(self._listen())
        except ListenError as error:
            _log.error("the engine cannot start: %s", error)
            await self._server.stop(0)
            return EXIT_FAILED
        await self._server.start()
        self._server.set_serving(ADMIN_SERVICE, True)
        membership = self._spawn(self._register(), "membership")
        self._others += [
            self._spawn(self._load(), "loading"),
            self._spawn(self._announce_serving(), "health"),
            self._spawn(LoadReporter(self._state, self._feed, self._dialer.dial).run(), "load reports"),
            self._spawn(self._obey_signals(stop), "signals"),
        ]
        try:
            ending = await self._ending
        except asyncio.CancelledError:
            await self._stop(_Ending(EXIT_FAILED, "cancelled", 0.0), membership)
            raise
        await self._stop(ending, membership)
        return ending.exit_code

    def drain(self, timeout_s: float | None) -> None:
        """The head asks to finish the running requests and take no more."""
        self._drain.begin(timeout_s)

    def undrain(self) -> None:
        """The head takes a drain back."""
        self._drain.end()

    def stop(self, reason: str, timeout_s: float | None) -> None:
        """The head asks the process to end."""
        self._end(EXIT_STOPPED, reason, self._options.shutdown_timeout_s if timeout_s is None else timeout_s)

    def restart(self, reason: str, timeout_s: float | None) -> None:
        """The head asks for a new process of this rank."""
        self._end(EXIT_RESTART, reason, self._options.shutdown_timeout_s if timeout_s is None else timeout_s)

    def retire(self, reason: str, timeout_s: float | None) -> None:
        """The deployment goes on without this rank."""
        self._end(EXIT_RETIRED, reason, self._options.shutdown_timeout_s if timeout_s is None else timeout_s)

    def _listen(self) -> tuple[str, ...]:
        options = self._options
        targets = []
        if options.unix_path is not None:
            targets.append(self._server.listen_unix(options.unix_path))
        port = self._server.listen_tcp(options.host, options.port, flags="--host/--port of muster engine")
        if options.health_port is not None:
            self._server.listen_health(options.host, options.health_port, flags="--host/--health-port")
        targets.append(tcp_target(options.advertise_host or options.host, port))
        _log.info("listening on %s", ", ".join(targets))
        return tuple(targets)

    async def _register(self) -> None:
        options = self._options
        hello = wire.Hello(
            protocol=wire.ProtocolRange(min=PROTOCOL_MIN, max=PROTOCOL_MAX),
            product_version=__version__,
            deployment_id=options.deployment_id,
            rank=options.rank,
            data_parallel_size=options.data_parallel_size,
            host=options.node_name or host_name(),
            host_id=host_id(),
            pid=os.getpid(),
            incarnation=self._state.incarnation,
            local=options.local,
            headless=options.headless,
            configuration=options.configuration or {},
        )
        membership = Membership(
            head_target=options.head_target,
            dialer=self._dialer,
            hello=hello,
            state=self._state,
            loop_idle_ms=self._loop_idle_ms,
            commands=self,
            head_timeout_s=options.head_timeout_s,
        )
        try:
            await membership.run()
        except HeadGoneError as gone:
            self._end(EXIT_HEAD_GONE, str(gone), options.shutdown_timeout_s)
        except RejectedError as rejected:
            for violation in rejected.error.violations:
                _log.error("rejected by the head: %s: %s", violation.field, violation.description)
            self._end(EXIT_REJECTED, f"rejected by the head at {options.head_target}: {rejected}", 0.0)

    async def _load(self) -> None:
        started = time.monotonic()
        try:
            self._engine_config = await with_place(self._options.engine, self._state)
            built = await self._loading.result()
        except (EngineError, OSError) as error:
            self._end(EXIT_FAILED, f"cannot load the model: {error}", 0.0)
            return
        facts = built.facts
        group = None if built.spread is None else LockstepRank(built.spread, self._state, self._dialer.dial)
        loop = EngineLoop(
            built.core,
            self._deliver_threadsafe,
            on_failure=self._fail_threadsafe,
            lockstep=None if group is None else group.lockstep,
        )
        loop.start()
        self._engine_loop = loop
        if group is not None:
            self._state.progress(wire.ENGINE_PHASE_FORMING_GROUP, 0, 0)
            self._others.append(self._spawn(group.run(loop, self._options), "lockstep"))
            await group.formed()  # nobody shall send requests before
        self._feed.open(loop)
        self._intake.open(loop, convert.Limits(facts.vocab_size, facts.max_model_len, facts.embedding_size))
        model = convert.to_model_info(
            facts,
            served_model_names=self._options.served_model_names,
            block_size=built.block_size,
            num_blocks=built.num_blocks,
            max_num_seqs=built.max_num_seqs,
            max_num_batched_tokens=built.max_num_batched_tokens,
        )
        runtime.settle()
        self._state.serving(
            model, device=built.device, attention_backend=built.attention_backend, num_threads=built.num_threads
        )
        _log.info("loaded %s in %.1f s", facts.architecture, time.monotonic() - started)

    async def _announce_serving(self) -> None:
        """Health says SERVING while requests are admitted: from the head's acceptance on, except in a drain.

        The process as a whole, "", is as ready as its EngineService, as it is with gateways. The name with the rank is
        the one that the head serves for all ranks.
        """
        while True:
            snapshot = self._state.now
            serving = snapshot.accepted and not snapshot.draining and not snapshot.stop_reason
            own = () if snapshot.rank is None else (f"{ENGINE_SERVICE}/rank-{snapshot.rank}",)
            for name in ("", ENGINE_SERVICE, *own):
                self._server.set_serving(name, serving)
            await self._state.newer_than(self._state.version)

    async def _obey_signals(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._end(EXIT_STOPPED, "a signal (SIGTERM or SIGINT)", self._options.shutdown_timeout_s)

    async def _stop(self, ending: _Ending, membership: asyncio.Task[None]) -> None:
        log = _log.info if ending.exit_code in {EXIT_STOPPED, EXIT_RESTART, EXIT_RETIRED} else _log.error
        log("stopping: %s", ending.reason)
        self._state.stopping(ending.reason)
        self._server.set_serving(ENGINE_SERVICE, False)
        self._server.set_serving("", False)
        await self._finish_requests(ending.timeout_s)
        self._drain.close()
        self._feed.close()
        self._servicer.end_attachments()
        self._state.leave()
        await asyncio.wait({membership}, timeout=_GOODBYE_TIMEOUT_S)
        for task in (membership, *self._others):
            task.cancel()
        await asyncio.wait({membership, *self._others})
        await self._server.stop(_STREAMS_TIMEOUT_S)
        loop = self._engine_loop
        if not await self._loading.cancel(_THREAD_TIMEOUT_S):
            _log.warning("the loader's thread still runs; leaving without it")
        if loop is not None and not await asyncio.to_thread(loop.stop, _THREAD_TIMEOUT_S):
            _log.warning("the engine thread still runs; leaving without it")

    async def _finish_requests(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._intake.wait_empty()
                return
        _log.warning("shutdown timeout: aborting %d requests", self._intake.num_live)
        self._intake.abort_all()
        with suppress(TimeoutError):
            async with asyncio.timeout(_ABORT_TIMEOUT_S):
                await self._intake.wait_empty()

    def _end(self, exit_code: int, reason: str, timeout_s: float) -> None:
        if not self._ending.done():
            self._ending.set_result(_Ending(exit_code, reason, timeout_s))

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._check_task)
        return task

    def _check_task(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s failed", task.get_name(), exc_info=error)
            self._end(EXIT_FAILED, f"{task.get_name()} failed: {error}", 0.0)

    def _loop_idle_ms(self) -> int:
        if self._engine_loop is None:
            return 0
        return max(0, round((time.monotonic() - self._engine_loop.last_turn) * 1000))

    def _progress(self, phase: Phase, done: int, total: int) -> None:
        self._state.progress(convert.to_phase(phase), done, total)

    def _deliver_threadsafe(self, result: StepResult) -> None:
        self._event_loop.call_soon_threadsafe(self._deliver, result)

    def _deliver(self, result: StepResult) -> None:
        self._intake.deliver(result)
        self._feed.publish(result.stats)

    def _fail_threadsafe(self, error: BaseException) -> None:
        self._event_loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: BaseException) -> None:
        self._intake.fail_all(f"the engine thread failed: {error}")
        self._end(EXIT_FAILED, f"the engine thread failed: {type(error).__name__}: {error}", 0.0)
