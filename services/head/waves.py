"""The head's side of lockstep: who is in the group, and when its ranks step. Pure.

The head starts waves and the ranks end them by a vote (engine/waves.py). It believes only what ranks have told: a
group runs because it was started or because a rank says that it steps, and it is idle because a rank has seen the wave
end. So the state of a restarted head is rebuilt from one Standing per rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

NO_EPOCH = 0


class Station(Enum):
    """Where the head knows a rank to be."""

    UNKNOWN = "not heard of yet"  # by this head: it may be in a group
    GONE = "gone"  # its lease has ended
    EXCUSED = "gone, and the others go on without it"
    FREE = "in no group"
    FORMING = "forming the group"
    IN = "in the group"
    LEAVING = "told to leave its group"


_TOGETHER = (Station.FORMING, Station.IN)


class Place(NamedTuple):
    """A rank's station; `epoch` is the group's that it forms, is in or has to leave."""

    station: Station = Station.UNKNOWN
    epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class Form:
    """Form the group of an epoch. `target` is empty for the first member, which tells its own."""

    epoch: int
    members: tuple[int, ...]
    target: str = ""


@dataclass(frozen=True, slots=True)
class Disband:
    """Leave the group of an epoch."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Start:
    """Step in a wave."""

    epoch: int
    wave: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Vote for stopping a wave."""

    epoch: int
    wave: int


Frame = Form | Disband | Start | Pause
Frames = tuple[tuple[int, Frame], ...]  # each with the rank that gets it


class WavesState(NamedTuple):
    """Everything the head remembers. `wave` is the current one, or the next while the group is idle."""

    members: tuple[int, ...] = ()  # ranks, ascending, that make the group
    places: tuple[Place, ...] = ()  # of the members; excused ones are not in the group until they are back
    epoch: int = NO_EPOCH  # the newest that was formed or heard of
    awaits_target: bool = False  # the first member forms, and the others are told when it listens
    wave: int = 0
    running: bool = False  # the wave was started
    wanted: bool = False  # somebody has work while the group is idle
    pausing: bool = False  # an operator wants the group to stand still
    pause_sent: bool = False  # for the wave that runs


class Waves:
    """One lockstep group. Methods take what was heard and return what is to be said."""

    def __init__(self, members: Iterable[int] = (), *, state: WavesState | None = None) -> None:
        ranks = tuple(sorted(members))
        self.state = state or WavesState(members=ranks, places=(Place(),) * len(ranks))
        self._said: list[tuple[int, Frame]] = []

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def is_formed(self) -> bool:
        """All members, but the excused ones, are in the group of the newest epoch."""
        here = Place(Station.IN, self.state.epoch)
        return any(place == here for place in self.state.places) and all(
            place == here or place.station is Station.EXCUSED for place in self.state.places
        )

    @property
    def is_idle(self) -> bool:
        """No rank steps, and none will before somebody has work and no pause is on."""
        return not self.state.running

    @property
    def awaited(self) -> dict[int, Station]:
        """While the group is not formed: the members that it waits for."""
        state = self.state
        if self.is_formed:
            return {}
        here = Place(Station.IN, state.epoch)
        known = zip(state.members, state.places, strict=True)
        late: dict[int, Station] = {
            rank: place.station
            for rank, place in known
            if place != here and place.station not in (Station.FREE, Station.EXCUSED)
        }
        return late or dict.fromkeys(self.present, Station.FREE)

    @property
    def stations(self) -> dict[int, Station]:
        """Of all members."""
        known = zip(self.state.members, self.state.places, strict=True)
        return {rank: place.station for rank, place in known}

    @property
    def present(self) -> tuple[int, ...]:
        """The members that are not excused, which make the next group."""
        known = zip(self.state.members, self.state.places, strict=True)
        return tuple(rank for rank, place in known if place.station is not Station.EXCUSED)

    # Members

    def gone(self, rank: int) -> Frames:
        """The rank's lease has ended: its process is dead, or has left."""
        if rank in self.state.members and self._place_of(rank).station is not Station.EXCUSED:
            self._place(rank, Place(Station.GONE))
            self._settle()
        return self._take()

    def excuse(self, rank: int) -> Frames:
        """The others go on without a rank that is gone, until it stands again. Does nothing for any other."""
        if rank in self.state.members and self._place_of(rank).station is Station.GONE:
            self._place(rank, Place(Station.EXCUSED))
            self._settle()
            self._wake()
        return self._take()

    def stands(self, rank: int, epoch: int, wave: int, *, running: bool, has_work: bool) -> Frames:
        """A rank has opened a stream, or has left or entered a group."""
        if rank not in self.state.members:
            return ()
        if self._place_of(rank).station is Station.EXCUSED:
            # Also a group that is being formed is one without it.
            self._disband(f"rank {rank} is back")
        if epoch == NO_EPOCH:
            self._place(rank, Place(Station.FREE))
            self._settle()
            return self._take()
        place = self._place_of(rank)
        self._change(epoch=max(epoch, self.state.epoch))
        if place.station is Station.LEAVING and epoch <= place.epoch:
            # Either it has not heard yet, or what was said is lost with its stream.
            self._say(rank, Disband(epoch, "its group has ended"))
            return self._take()
        self._place(rank, Place(Station.IN, epoch))
        if place.station is Station.UNKNOWN and len(self.present) < len(self.state.members):
            # A group that another head has formed, and who is excused here may be in it.
            self._disband("it may count on a rank that is gone")
        self._settle()
        if self._place_of(rank) == Place(Station.IN, self.state.epoch):
            self._catch_up(rank, wave, running=running, has_work=has_work)
        return self._take()

    def listens(self, rank: int, epoch: int, target: str) -> Frames:
        """The first member of a group awaits the others there."""
        state = self.state
        present = self.present
        if state.awaits_target and epoch == state.epoch and rank == present[0]:
            self._change(awaits_target=False)
            for other in present:
                self._place(other, Place(Station.FORMING, epoch))
            for other in present[1:]:
                self._say(other, Form(epoch, present, target))
        return self._take()

    # Waves

    def started(self, rank: int, epoch: int, wave: int) -> Frames:
        """A rank has work while its group is idle."""
        if self._is_current(rank, epoch, wave):
            if wave > self.state.wave:  # it has seen the end of a wave of which we were not told yet
                self._begin(wave)
            if not self.state.running:
                self._change(wanted=True)
                self._wake()
        return self._take()

    def ended(self, rank: int, epoch: int, wave: int) -> Frames:
        """A rank has seen the end of a wave, as all do."""
        if self._is_current(rank, epoch, wave):
            self._begin(wave + 1)
            self._wake()
        return self._take()

    def pause(self) -> Frames:
        """Stops the group and keeps it still until `resume`; it does when `is_idle`."""
        self._change(pausing=True)
        self._stop_if_pausing()
        return self._take()

    def resume(self) -> Frames:
        """Takes a pause back. A wave that is being stopped ends all the same, and the next one begins."""
        self._change(pausing=False)
        self._wake()
        return self._take()

    # Internals

    def _settle(self) -> None:
        """Ends a group that cannot be complete, and forms one when all members are free."""
        if self._is_broken():
            self._disband("a member has left it")
        present = self.present
        if present and all(self._place_of(rank).station is Station.FREE for rank in present):
            epoch = self.state.epoch + 1
            self._begin(0)
            # The others stay free until they are told: whoever forms or is in a group has been told so.
            self._place(present[0], Place(Station.FORMING, epoch))
            self._change(epoch=epoch, awaits_target=len(present) > 1, wanted=False)
            self._say(present[0], Form(epoch, present))

    def _is_broken(self) -> bool:
        """Somebody is in a group, or forms it, that another member is known not to be in."""
        places, epoch = self.state.places, self.state.epoch
        if not any(place.station in _TOGETHER for place in places):
            return False
        if self.state.awaits_target:
            return any(self._place_of(rank).station is not Station.FREE for rank in self.present[1:])
        return any(
            place.station not in (*_TOGETHER, Station.UNKNOWN, Station.EXCUSED)
            or (place.station in _TOGETHER and place.epoch != epoch)
            for place in places
        )

    def _disband(self, reason: str) -> None:
        self._change(awaits_target=False)
        self._begin(self.state.wave)
        for rank, place in zip(self.state.members, self.state.places, strict=True):
            if place.station in _TOGETHER:
                self._place(rank, Place(Station.LEAVING, place.epoch))
                self._say(rank, Disband(place.epoch, reason))

    def _catch_up(self, rank: int, wave: int, *, running: bool, has_work: bool) -> None:
        """A member of the current epoch says where it is: either we learn from it, or it has missed something."""
        if wave > self.state.wave:
            self._begin(wave)
        state = self.state
        if state.running:
            self._say(rank, Start(state.epoch, state.wave))
            if state.pause_sent:
                self._say(rank, Pause(state.epoch, state.wave))
        elif running and wave == state.wave:
            # An earlier head has started this wave, perhaps not on all ranks.
            self._start()
        elif has_work and wave == state.wave:
            self._change(wanted=True)
        self._wake()

    def _is_current(self, rank: int, epoch: int, wave: int) -> bool:
        """What a rank says of a wave is about the present or news of it."""
        return (
            rank in self.state.members
            and self._place_of(rank) == Place(Station.IN, self.state.epoch)
            and epoch == self.state.epoch
            and wave >= self.state.wave
        )

    def _begin(self, wave: int) -> None:
        """The waves before are over."""
        self._change(wave=wave, running=False, pause_sent=False)

    def _wake(self) -> None:
        if self.state.wanted and not self.state.running and not self.state.pausing and self.is_formed:
            self._start()

    def _start(self) -> None:
        self._change(running=True, wanted=False)
        self._say_all(Start(self.state.epoch, self.state.wave))
        self._stop_if_pausing()

    def _stop_if_pausing(self) -> None:
        if self.state.pausing and self.state.running and not self.state.pause_sent:
            self._change(pause_sent=True)
            self._say_all(Pause(self.state.epoch, self.state.wave))

    def _place_of(self, rank: int) -> Place:
        return self.state.places[self.state.members.index(rank)]

    def _place(self, rank: int, place: Place) -> None:
        members, places = self.state.members, self.state.places
        self._change(
            places=tuple(place if member == rank else old for member, old in zip(members, places, strict=True))
        )

    def _change(self, **changes: object) -> None:
        self.state = self.state._replace(**changes)  # type: ignore[arg-type]  # field names above

    def _say(self, rank: int, frame: Frame) -> None:
        self._said.append((rank, frame))

    def _say_all(self, frame: Frame) -> None:
        for rank in self.present:
            self._say(rank, frame)

    def _take(self) -> Frames:
        said, self._said = tuple(self._said), []
        return said
