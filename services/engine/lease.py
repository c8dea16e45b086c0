"""One Register stream from the engine's side: which frames are due, and which may come; pure."""

from __future__ import annotations

from muster import v1 as wire

from services.engine.state import Snapshot

# What an engine of this version can do; see Ready.capabilities in the contract.
CAPABILITIES = ("attach", "logprobs", "prompt_logprobs", "continuation", "tokenizer")

# A head that names no interval, or an unkeepable one, still gets a sensible lease.
_DEFAULT_INTERVAL_S = 2.0
_SHORTEST_INTERVAL_S = 0.05
# Hundreds of tensors load in a second; people cannot read more than this.
_PROGRESS_INTERVAL_S = 0.1

_Progress = tuple["wire.EnginePhase.ValueType", int, int]


class OutOfOrderError(Exception):
    """The head sent a frame that the contract does not allow here."""


class Lease:
    """Hello, Welcome, Progress, Ready, Accepted, Heartbeats, Goodbye.

    `due` is asked after each change of the engine's state and when `wait_s` has passed; what it returns counts as
    sent. Clock values are seconds of one monotonic clock.
    """

    def __init__(self) -> None:
        self.interval_s = _DEFAULT_INTERVAL_S
        self._welcome: wire.Welcome | None = None
        self._progress: _Progress | None = None
        self._progress_at = float("-inf")
        self._has_sent_ready = False
        self._has_accepted = False
        self._has_sent_goodbye = False
        self._said = (False, False)
        self._heartbeat_at = float("-inf")

    @property
    def welcomed(self) -> bool:
        """The head gave a place."""
        return self._welcome is not None

    @property
    def ended(self) -> bool:
        """Goodbye was sent; nothing follows."""
        return self._has_sent_goodbye

    def receive(self, response: wire.RegisterResponse) -> str:
        """Checks the order of a frame from the head and returns its kind; raises OutOfOrderError."""
        kind = response.WhichOneof("frame")
        if (kind == "welcome") != (self._welcome is None):
            raise OutOfOrderError(f"the head sent {kind or 'an empty frame'} {'twice' if self._welcome else 'first'}")
        if kind == "welcome":
            self._welcome = response.welcome
            if response.welcome.HasField("heartbeat_interval"):
                interval = response.welcome.heartbeat_interval
                self.interval_s = max(interval.seconds + interval.nanos / 1e9, _SHORTEST_INTERVAL_S)
        elif kind == "accepted":
            if not self._has_sent_ready or self._has_accepted:
                raise OutOfOrderError("the head sent accepted without ready before it")
            self._has_accepted = True
        return kind or "unknown"

    def due(self, snapshot: Snapshot, now: float, loop_idle_ms: int) -> list[wire.RegisterRequest]:
        """The frames to send now, in order."""
        if self._welcome is None or self._has_sent_goodbye:
            return []
        if snapshot.leaving:
            self._has_sent_goodbye = True
            return [wire.RegisterRequest(goodbye=wire.Goodbye(reason=snapshot.stop_reason))]
        frames = []
        if not self._has_sent_ready:
            frames += self._joining(snapshot, now)
        draining = snapshot.draining or bool(snapshot.stop_reason)
        if now >= self._heartbeat_at + self.interval_s or (draining, snapshot.drained) != self._said:
            self._heartbeat_at = now
            self._said = (draining, snapshot.drained)
            heartbeat = wire.Heartbeat(loop_idle_ms=loop_idle_ms, draining=draining, drained=snapshot.drained)
            frames.append(wire.RegisterRequest(heartbeat=heartbeat))
        return frames

    def wait_s(self, snapshot: Snapshot, now: float) -> float:
        """Seconds until something may be due although the state did not change."""
        due_at = self._heartbeat_at + self.interval_s
        if not self._has_sent_ready and _progress_of(snapshot) != self._progress:
            due_at = min(due_at, self._progress_at + _PROGRESS_INTERVAL_S)
        return max(0.0, due_at - now)

    def _joining(self, snapshot: Snapshot, now: float) -> list[wire.RegisterRequest]:
        if snapshot.model is not None:
            self._has_sent_ready = True
            ready = wire.Ready(targets=snapshot.targets, model=snapshot.model, capabilities=CAPABILITIES)
            return [wire.RegisterRequest(ready=ready)]
        progress = _progress_of(snapshot)
        phase_changed = self._progress is None or self._progress[0] != progress[0]
        if progress == self._progress or not (phase_changed or now >= self._progress_at + _PROGRESS_INTERVAL_S):
            return []
        self._progress, self._progress_at = progress, now
        phase, done, total = progress
        return [wire.RegisterRequest(progress=wire.Progress(phase=phase, done=done, total=total))]


def _progress_of(snapshot: Snapshot) -> _Progress:
    return (snapshot.phase, snapshot.phase_done, snapshot.phase_total)
