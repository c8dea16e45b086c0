"""This engine's membership in the deployment: registers with the head, and again whenever the head comes back."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import grpc
from muster import v1 as wire

from services.engine.backoff import Backoff
from services.engine.lease import Lease, OutOfOrderError
from services.engine.state import EngineState
from services.rpc.channels import Dialer
from services.rpc.errors import RpcError, describe

_log = logging.getLogger(__name__)

# Answers of the head that trying again would only repeat.
_REJECTIONS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.ABORTED,  # a newer process took this rank over
    }
)
# Until the other streams to the head are back too.
_AFTERMATH_S = 3.0
_WELCOME_TIMEOUT_S = 10.0
_COMPLAINT_INTERVAL_S = 10.0
# The head has a rank for everybody else: only a loss or an operator changes that.
_NO_FREE_RANK = "NO_FREE_RANK"
_LONGEST_SPARE_PAUSE_S = 10.0

_Call = Any  # grpc.aio.StreamStreamCall[wire.RegisterRequest, wire.RegisterResponse]


class RejectedError(Exception):
    """The head refused this engine for good; `error` has the status with its field violations."""

    def __init__(self, error: RpcError) -> None:
        super().__init__(error.message)
        self.error = error


class HeadGoneError(Exception):
    """No head gave a lease for longer than the limit; the message is for the log."""


class Commands(Protocol):
    """What the head may ask for. Called on the event loop; must not block."""

    def drain(self, timeout_s: float | None) -> None: ...
    def undrain(self) -> None: ...
    def stop(self, reason: str, timeout_s: float | None) -> None: ...
    def restart(self, reason: str, timeout_s: float | None) -> None: ...
    def retire(self, reason: str, timeout_s: float | None) -> None: ...


class Membership:
    """Keeps the lease alive for as long as the process lives; serving never depends on the head being there."""

    def __init__(
        self,
        *,
        head_target: str,
        dialer: Dialer,
        hello: wire.Hello,
        state: EngineState,
        loop_idle_ms: Callable[[], int],
        commands: Commands,
        head_timeout_s: float | None = None,
    ) -> None:
        """`head_timeout_s` None goes on without a head for ever."""
        self._head_target = head_target
        self._dialer = dialer
        self._hello = hello
        self._state = state
        self._loop_idle_ms = loop_idle_ms
        self._commands = commands
        self._head_timeout_s = head_timeout_s
        self._lost_since: float | None = None
        self._complained_at = float("-inf")
        self._accepted_by = 0
        self._head_incarnation = 0
        self._spare_pause: Backoff | None = None  # while all ranks are taken
        self._drains_for_restart = False  # and for nothing else

    async def run(self) -> None:
        """Returns after Goodbye; raises RejectedError or HeadGoneError."""
        backoff = Backoff()
        while not self._state.now.leaving:
            lease = Lease()
            try:
                await self._session(lease)
            except grpc.aio.AioRpcError as call_error:
                error = describe(call_error)
                if error.code in _REJECTIONS:
                    raise RejectedError(error) from call_error
                if error.reason == _NO_FREE_RANK:
                    await self._wait_as_spare(error)
                    continue
                await self._complain_of(error)
            except OutOfOrderError as protocol_error:
                self._complain(str(protocol_error))
            except TimeoutError:
                self._complain("it accepted the connection but did not answer in time")
            if lease.ended:
                return
            if lease.welcomed:
                backoff.reset()
            self._give_up_in_time()
            await self._pause(backoff.next_s())

    async def _session(self, lease: Lease) -> None:
        async with self._dialer.dial(self._head_target) as channel:
            call: _Call = wire.RendezvousServiceStub(channel).Register()
            try:
                await self._join(call, lease)
                speaker = asyncio.create_task(self._speak(call, lease), name="membership heartbeats")
                try:
                    await self._listen(call, lease)
                finally:
                    speaker.cancel()
                    await asyncio.wait({speaker})
                if not speaker.cancelled():
                    speaker.result()
            finally:
                call.cancel()
                self._forget_restart()

    async def _join(self, call: _Call, lease: Lease) -> None:
        async with asyncio.timeout(_WELCOME_TIMEOUT_S):
            hello = wire.Hello()
            hello.CopyFrom(self._hello)
            if self._state.now.rank is not None:
                hello.rank = self._state.now.rank  # a restarted head must give back the same place
            hello.accepted_by = self._accepted_by
            await _write(call, wire.RegisterRequest(hello=hello))
            response = await call.read()
        if response is grpc.aio.EOF:
            raise OutOfOrderError("the head ended the stream without a welcome")
        lease.receive(response)
        welcome = response.welcome
        self._state.welcomed(welcome.rank, welcome.coordinator_target or self._head_target, welcome.data_parallel_size)
        if self._lost_since is not None:
            _log.info("registered with the head at %s again", self._head_target)
            # Calls that failed form cycles, and each keeps a connection to the head until they are found.
            asyncio.get_running_loop().call_later(_AFTERMATH_S, gc.collect)
        else:
            _log.info("head at %s gave rank %d of %d", self._head_target, welcome.rank, welcome.data_parallel_size)
        self._lost_since = None
        self._spare_pause = None
        self._head_incarnation = welcome.head_incarnation

    async def _speak(self, call: _Call, lease: Lease) -> None:
        while True:
            version = self._state.version
            for frame in lease.due(self._state.now, time.monotonic(), self._loop_idle_ms()):
                await _write(call, frame)
            if lease.ended:
                await call.done_writing()
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(lease.wait_s(self._state.now, time.monotonic())):
                    await self._state.newer_than(version)

    async def _listen(self, call: _Call, lease: Lease) -> None:
        while (response := await call.read()) is not grpc.aio.EOF:
            self._obey(lease.receive(response), response)
        if not lease.ended:
            raise OutOfOrderError("the head closed the stream")

    def _obey(self, kind: str, response: wire.RegisterResponse) -> None:
        if kind == "accepted":
            _log.info("the head took this engine into the roster")
            self._accepted_by = self._head_incarnation
            self._state.accepted()
        elif kind == "drain":
            is_step = response.drain.for_restart
            self._drains_for_restart = is_step and (self._drains_for_restart or not self._state.now.draining)
            self._commands.drain(_seconds(response.drain))
        elif kind == "undrain":
            self._drains_for_restart = False
            self._commands.undrain()
        elif kind == "stop":
            self._drains_for_restart = False
            end = self._commands.restart if response.stop.restart else self._commands.stop
            if response.stop.retire:
                end = self._commands.retire
            end(response.stop.reason or "asked by the head", _seconds(response.stop))
        else:
            _log.warning("the head sent %s, which this engine does not know; ignored", kind)

    def _forget_restart(self) -> None:
        """The head that wanted it is gone, or has given this engine up, before it said Stop."""
        if self._drains_for_restart:
            self._drains_for_restart = False
            _log.warning("the restart that this engine drained for does not go on; taking requests again")
            self._commands.undrain()

    async def _complain_of(self, error: RpcError) -> None:
        trouble = None
        if error.code is grpc.StatusCode.UNAVAILABLE and self._complaint_due:
            trouble = await asyncio.to_thread(self._dialer.trouble_with, self._head_target)
        self._complain(trouble or f"{error.code.name}: {error.message}")

    @property
    def _complaint_due(self) -> bool:
        return time.monotonic() >= self._complained_at + _COMPLAINT_INTERVAL_S

    def _complain(self, cause: str) -> None:
        """One line at the loss, then one every ten seconds: a head may stay away for long."""
        now = time.monotonic()
        if self._lost_since is None:
            self._lost_since = now
        if now >= self._complained_at + _COMPLAINT_INTERVAL_S:
            self._complained_at = now
            # Engine and head are started together: that the head is not there at once is no cause for worry.
            is_start = self._state.now.rank is None and now == self._lost_since
            _log.log(
                logging.INFO if is_start else logging.WARNING,
                "no lease from the head at %s for %.0f s, still trying (%s)",
                self._head_target,
                now - self._lost_since,
                cause,
            )

    async def _wait_as_spare(self, error: RpcError) -> None:
        """The head is there and has no rank to give. One line, then silence: this may be on purpose, and last."""
        self._lost_since = None
        if self._spare_pause is None:
            self._spare_pause = Backoff(first_s=0.5, longest_s=_LONGEST_SPARE_PAUSE_S)
            _log.warning("waiting as a spare, and taking the first rank that is lost: %s", error.message)
        else:
            _log.debug("still a spare: %s", error.message)
        await self._pause(self._spare_pause.next_s())

    def _give_up_in_time(self) -> None:
        if self._head_timeout_s is None or self._lost_since is None:
            return
        lost_s = time.monotonic() - self._lost_since
        if lost_s >= self._head_timeout_s:
            raise HeadGoneError(
                f"no head at {self._head_target} for {lost_s:.0f} s (--head-timeout {self._head_timeout_s:g} s)"
            )

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._state.now.leaving:
                    await self._state.newer_than(self._state.version)


async def _write(call: _Call, frame: wire.RegisterRequest) -> None:
    # A stream that ended meanwhile tells its status to whoever reads it.
    with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
        await call.write(frame)


def _seconds(command: wire.DrainCommand | wire.StopCommand) -> float | None:
    if not command.HasField("timeout"):
        return None
    return max(0.0, command.timeout.seconds + command.timeout.nanos / 1e9)
