"""The production classes under the model: asked once for each state of their object, and looked up later."""

from __future__ import annotations

from typing import Any, NamedTuple

from muster import v1 as wire

from engine.waves import MemberState, WaveMember
from services.engine import wave_convert as rank_side
from services.head import wave_convert as head_side
from services.head.waves import Place, Waves, WavesState
from tests.support.direct_member import DirectMember
from tests.waves.state import DEAD, NUM_RANKS, Numbered, Rank, Scenario


class HeadAnswer(NamedTuple):
    """The head after it was asked something; `frames` has those for each rank."""

    head: int
    places: tuple[int, ...]
    frames: tuple[tuple[int, ...], ...]


class Logic:
    """Objects by number: members' and head's states, places of ranks, and frames, serialised."""

    def __init__(self, scenario: Scenario, member_class: type[WaveMember], waves_class: type[Waves]) -> None:
        self._scenario = scenario
        self._member_class = member_class
        self._waves_class = waves_class
        self.members = Numbered()
        self.heads = Numbered()  # without places
        self.places = Numbered()
        self.frames = Numbered()
        self._known: dict[Any, Any] = {}

    # The head

    def fresh_head(self) -> tuple[int, int]:
        """The numbers of a head that has heard nothing, and of a rank's place in it."""
        return self.heads.number(Waves(range(NUM_RANKS)).state._replace(places=())), self.places.number(Place())

    def ask_head(
        self, head: int, places: tuple[int, ...], index: int | None, method: str, *arguments: int
    ) -> HeadAnswer:
        key = (head, places, index, method, arguments)
        if key not in self._known:
            waves = self._waves_class(state=self.heads[head]._replace(places=tuple(self.places[at] for at in places)))
            if method == "hear":
                assert index is not None
                said = head_side.apply(waves, index, wire.SyncWaveRequest.FromString(self.frames[arguments[0]]))
            else:
                said = getattr(waves, method)(*arguments)
            frames: list[list[int]] = [[] for _ in places]
            for to, frame in said:
                frames[to].append(self.frames.number(head_side.to_response(frame).SerializeToString()))
            after: WavesState = waves.state
            self._known[key] = HeadAnswer(
                self.heads.number(after._replace(places=())),
                tuple(map(self.places.number, after.places)),
                tuple(map(tuple, frames)),
            )
        answer: HeadAnswer = self._known[key]
        return answer

    # Ranks

    def member(self, rank: Rank) -> WaveMember:
        return self._member_class(self.members[rank.member], sync_interval=self._scenario.sync_interval)

    def votes(self, member: MemberState) -> bool:
        return self._member_class(member, sync_interval=self._scenario.sync_interval).votes_now

    def runs(self, rank: Rank) -> bool:
        if rank.member == DEAD:
            return False
        key = ("runs", rank.member)
        if key not in self._known:
            self._known[key] = self.member(rank).running
        return bool(self._known[key])

    def epoch(self, rank: Rank) -> int:
        return 0 if rank.member == DEAD else int(self.members[rank.member].epoch)

    def ask_rank(self, rank: Rank, method: str, *arguments: Any, has_work: bool) -> tuple[int, tuple[int, ...]]:
        """The member after it was asked, and what it says."""
        key = (rank.member, method, arguments, has_work)
        if key not in self._known:
            member = self.member(rank)
            said = getattr(member, method)(*arguments, has_work=has_work)
            frames = (rank_side.to_request(frame, rank=0, incarnation=0).SerializeToString() for frame in said)
            self._known[key] = (self.members.number(member.state), tuple(map(self.frames.number, frames)))
        answer: tuple[int, tuple[int, ...]] = self._known[key]
        return answer

    def rank_hears(self, rank: Rank, frame: int, *, has_work: bool) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """The member after a frame of the head, what it says, and with whom it forms a group now, if it does."""
        key = (rank.member, "hears", frame, has_work)
        if key not in self._known:
            member = self.member(rank)
            ears = DirectMember(member, has_work=has_work)
            rank_side.apply(ears, wire.SyncWaveResponse.FromString(self.frames[frame]))
            said = [rank_side.to_request(each, rank=0, incarnation=0) for each in ears.said]
            if ears.awaits_others:
                said.append(rank_side.listening(member.epoch, "there", rank=0, incarnation=0))
            numbers = tuple(self.frames.number(each.SerializeToString()) for each in said)
            self._known[key] = (self.members.number(member.state), numbers, ears.members)
        answer: tuple[int, tuple[int, ...], tuple[int, ...]] = self._known[key]
        return answer

    # Frames to ranks

    def is_start(self, frame: int) -> bool:
        return bool(wire.SyncWaveResponse.FromString(self.frames[frame]).HasField("start"))

    def ends(self, frame: int, rank: Rank) -> bool:
        """Whether a frame ends the group that the rank is in, by force."""
        response = wire.SyncWaveResponse.FromString(self.frames[frame])
        return response.HasField("disband") and response.epoch == self.epoch(rank)

    def frame_text(self, kind: Any, frame: int) -> str:
        return " ".join(str(kind.FromString(self.frames[frame])).split())
