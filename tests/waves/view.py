"""What can be said of a state of the model."""

from __future__ import annotations

from muster import v1 as wire

from services.head.waves import Place, Station, WavesState
from tests.waves.logic import Logic
from tests.waves.state import DEAD, Exchange, Rank, State, Stream


class View:
    def __init__(self, logic: Logic) -> None:
        self._logic = logic

    def is_good(self, state: State) -> bool:
        """Every request was answered, everybody sleeps, and nothing is under way."""
        return self.is_asleep(state) and not state.gateways

    def is_good_without_the_dead(self, state: State) -> bool:
        """The same of those that the head counts on, one at least; the others are dead."""
        return (
            not state.gateways
            and any(rank.member != DEAD for rank in state.ranks)
            and self._head_rests(state)
            and all(self._is_excused(rank) or self._rests(state, rank) for rank in state.ranks)
        )

    def is_asleep(self, state: State) -> bool:
        return self._head_rests(state) and all(self._rests(state, rank) for rank in state.ranks)

    def is_pausing(self, state: State) -> bool:
        return bool(self._head(state).pausing)

    def is_still(self, state: State) -> bool:
        """The head says that the group is paused, and no rank steps, or is about to."""
        head, logic = self._head(state), self._logic
        return (
            head.pausing
            and not head.running
            and not any(logic.runs(rank) or any(map(logic.is_start, rank.to_rank)) for rank in state.ranks)
        )

    def is_misjudged(self, state: State) -> bool:
        """The head has heard all that was said, and takes a group to be idle that runs."""
        head, logic = self._head(state), self._logic
        counted = [rank for rank in state.ranks if not self._is_excused(rank)]
        if head.running or any(rank.to_head or rank.stream is not Stream.HEARD for rank in counted):
            return False
        together = all(logic.places[rank.place].station is Station.IN for rank in counted)
        # A rank that has yet to see the end of a wave is not meant.
        return together and any(logic.runs(rank) and logic.members[rank.member].wave >= head.wave for rank in counted)

    def describe(self, state: State) -> str:
        logic = self._logic
        lines = [f"  head {self._head(state)}", f"  gateways {state.gateways}"]
        for rank in state.ranks:
            member = "dead" if rank.member == DEAD else logic.members[rank.member]
            to_rank = [logic.frame_text(wire.SyncWaveResponse, frame) for frame in rank.to_rank]
            to_head = [logic.frame_text(wire.SyncWaveRequest, frame) for frame in rank.to_head]
            lines.append(
                f"  {logic.places[rank.place]} {member} {rank.stream} {rank.exchange} of {rank.group} "
                f"work={rank.gateways} <- {to_rank} -> {to_head}"
            )
        return "\n".join(lines)

    def _head(self, state: State) -> WavesState:
        head: WavesState = self._logic.heads[state.head]
        return head

    def _head_rests(self, state: State) -> bool:
        head = self._head(state)
        return not (head.running or head.wanted or head.pausing)

    def _is_excused(self, rank: Rank) -> bool:
        """The head does not count on it, and nobody is there."""
        return rank.member == DEAD and self._logic.places[rank.place].station is Station.EXCUSED

    def _rests(self, state: State, rank: Rank) -> bool:
        if rank.member == DEAD or rank.stream is not Stream.HEARD or rank.exchange is not Exchange.NONE:
            return False
        if rank.to_rank or rank.to_head or rank.gateways or self._logic.runs(rank):
            return False
        epoch = self._head(state).epoch
        return bool(self._logic.places[rank.place] == Place(Station.IN, epoch) and self._logic.epoch(rank) == epoch)
