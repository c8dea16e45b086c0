"""What the roster says about loading, as bars for a terminal and as lines for a log. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from muster import v1 as wire

_BAR_WIDTH = 24
# More lines than the terminal has could not be erased again.
_MAX_BARS = 8
_PHASES = {
    wire.ENGINE_PHASE_STARTING: "starting",
    wire.ENGINE_PHASE_LOADING_WEIGHTS: "loading weights",
    wire.ENGINE_PHASE_FITTING_CACHE: "fitting the KV cache",
    wire.ENGINE_PHASE_WARMING_UP: "warming up",
    wire.ENGINE_PHASE_FORMING_GROUP: "waiting for the other ranks",
    wire.ENGINE_PHASE_SERVING: "serving",
}
_STATES = {
    wire.RANK_STATE_MISSING: "not there yet",
    wire.RANK_STATE_JOINING: "joining",
    wire.RANK_STATE_READY: "ready",
    wire.RANK_STATE_DRAINING: "draining",
    wire.RANK_STATE_LOST: "lost",
}


def state_text(entry: wire.RankEntry) -> str:
    """A rank's state in words, with the phase while it loads: "loading weights 12/272"."""
    if entry.state != wire.RANK_STATE_JOINING:
        return _STATES.get(entry.state, "in a state this version does not know")
    phase = _PHASES.get(entry.phase, "joining")
    return f"{phase} {entry.phase_done}/{entry.phase_total}" if entry.phase_total > 1 else phase


def bars(entries: Sequence[wire.RankEntry]) -> list[str]:
    """One line per rank that is not ready yet; none when all are."""
    waiting = [entry for entry in entries if entry.state != wire.RANK_STATE_READY]
    shown = [f"  rank {entry.rank:<3} {_bar(entry)} {state_text(entry)}" for entry in waiting[:_MAX_BARS]]
    return [*shown, f"  and {len(waiting) - _MAX_BARS} more"] if len(waiting) > _MAX_BARS else shown


def _bar(entry: wire.RankEntry) -> str:
    filled = round(_share(entry) * _BAR_WIDTH)
    return f"[{'=' * filled}{' ' * (_BAR_WIDTH - filled)}]"


def _share(entry: wire.RankEntry) -> float:
    """The weights are the long part; what follows them is nearly done."""
    if entry.state != wire.RANK_STATE_JOINING or entry.phase in (0, wire.ENGINE_PHASE_STARTING):
        return 0.0
    if entry.phase == wire.ENGINE_PHASE_LOADING_WEIGHTS:
        return min(1.0, entry.phase_done / entry.phase_total) if entry.phase_total else 0.0
    return 1.0


class ProgressLines:
    """The lines a log gets: one whenever a rank's state or phase changes, not one per tensor."""

    def __init__(self) -> None:
        self._said: dict[int, tuple[int, int, int]] = {}

    def news(self, entries: Sequence[wire.RankEntry]) -> list[str]:
        lines = []
        for entry in entries:
            phase = entry.phase if entry.state == wire.RANK_STATE_JOINING else 0
            incarnation = entry.incarnation if entry.state != wire.RANK_STATE_MISSING else 0
            now = (entry.state, phase, incarnation)
            if self._said.get(entry.rank) != now:
                first_and_missing = entry.rank not in self._said and entry.state == wire.RANK_STATE_MISSING
                self._said[entry.rank] = now
                if not first_and_missing:
                    lines.append(_line(entry))
        return lines


def _line(entry: wire.RankEntry) -> str:
    where = f" on {entry.host} (pid {entry.pid})" if entry.host and entry.state != wire.RANK_STATE_MISSING else ""
    known = entry.state in (wire.RANK_STATE_LOST, wire.RANK_STATE_DRAINING, wire.RANK_STATE_MISSING)
    text = state_text(entry) if entry.state != wire.RANK_STATE_JOINING else _PHASES.get(entry.phase, "joining")
    reason = f": {entry.reason}" if known and entry.reason not in ("", text) else ""
    return f"rank {entry.rank}{where}: {text}{reason}"
