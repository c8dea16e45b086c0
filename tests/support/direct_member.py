"""A rank's pure part alone, which hears the head's frames as the product's GroupMember does."""

from __future__ import annotations

from collections.abc import Sequence

from engine.waves import Frames, WaveMember


class DirectMember:
    """Implements services.engine.wave_convert.Ears. Answers are kept in `said`."""

    def __init__(self, member: WaveMember, *, has_work: bool) -> None:
        self._member = member
        self._has_work = has_work
        self.said: Frames = ()
        self.members: tuple[int, ...] = ()  # of the group that it was asked to form, if that came in time
        self.awaits_others = False  # as the first of them

    def form(self, epoch: int, members: Sequence[int], target: str) -> None:
        if self._member.form(epoch, is_first=not target):
            self.members, self.awaits_others = tuple(members), not target

    def start(self, epoch: int, wave: int) -> None:
        self._member.start(epoch, wave)

    def pause(self, epoch: int, wave: int) -> None:
        self._member.pause(epoch, wave)

    def disband(self, epoch: int, reason: str) -> None:
        self.said = self._member.disband(epoch, has_work=self._has_work)
