"""Each past bug of the reference, put into the logic on purpose, is found by the exploration.

Names and numbers are those of vLLM's transitions (W) and of its users' troubles (T). What cannot go wrong here by
construction is not in the list: gateways send no hints (W1, W2), so that nobody counts on one.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from engine.waves import Frames, Vote, WaveMember
from services.head import waves as head
from services.head.waves import Place, Start, Station, Waves
from tests.waves.explore import explore
from tests.waves.group import Group
from tests.waves.state import Rank, Scenario, Stream


@dataclass(frozen=True)
class Bug:
    """A change of the logic, where it bites, and what the exploration says."""

    scenario: Scenario
    says: str
    member: type[WaveMember] = WaveMember
    waves: type[Waves] = Waves
    group: type[Group] = Group
    formed: bool = True


NEVER_RESTS = "never comes to rest"
APART = "different exchanges"


class WakesTheOthersOnly(Waves):
    """W6, #39366: the wake-up excludes the rank that asked for it, which does not start by itself."""

    def started(self, rank: int, epoch: int, wave: int) -> head.Frames:
        return tuple(said for said in super().started(rank, epoch, wave) if said[0] != rank)


class TrustsThatItRuns(WaveMember):
    """W6: work that comes just after the group went idle is taken for work of the wave that was."""

    def wake(self, *, has_work: bool) -> Frames:
        return super().wake(has_work=has_work and self.state.wave == 0)


class GuessesThatItRuns(Waves):
    """W2, T46, #51481: asked to wake a paused group, the head notes that it runs, which nobody has seen."""

    def started(self, rank: int, epoch: int, wave: int) -> head.Frames:
        said = super().started(rank, epoch, wave)
        self.state = self.state._replace(running=self.state.running or self.state.wanted)
        return said


class IgnoresWordsWhileRunning(Waves):
    """W3, W8: a wake-up that overtakes the news of the last wave's end is dropped as late."""

    def started(self, rank: int, epoch: int, wave: int) -> head.Frames:
        return () if self.state.running else super().started(rank, epoch, wave)


class StartsAtOnce(WaveMember):
    """W4, W7: a rank with work steps without waiting for the head's start."""

    def wake(self, *, has_work: bool) -> Frames:
        said = super().wake(has_work=has_work)
        if said:
            self.start(self.state.epoch, self.state.wave)
        return said


class DropsEarlyStarts(WaveMember):
    """W4: a start that comes while the wave before it still runs is dropped."""

    def start(self, epoch: int, wave: int) -> None:
        if not self.running:
            super().start(epoch, wave)


class KeepsNoWave(WaveMember):
    """W4: a start without regard to its wave; a late one wakes a rank alone."""

    def start(self, epoch: int, wave: int) -> None:
        if epoch == self.state.epoch:
            self.state = self.state._replace(start_wave=self.state.wave)


class StopsByItself(WaveMember):
    """W9, T49: a rank takes its own view for the group's."""

    def agreed(self, outcome: Vote, *, has_work: bool) -> Frames:
        return super().agreed(Vote(has_work, outcome.wants_pause), has_work=has_work)


class VotesWhenItLikes(WaveMember):
    """T49: whether a step begins with a vote depends on what only this rank knows."""

    @property
    def votes_now(self) -> bool:
        return super().votes_now or self.state.pause_wave == self.state.wave


class BelievesLateEnds(Waves):
    """W10: the end of an earlier wave ends the one that runs."""

    def ended(self, rank: int, epoch: int, wave: int) -> head.Frames:
        self._begin(self.state.wave if wave < self.state.wave else wave + 1)
        self._wake()
        return self._take()


class PausesAtOnce(WaveMember):
    """W13, T45, #36594: a rank that is asked to pause stops, whatever the others do."""

    def pause(self, epoch: int, wave: int) -> None:
        if epoch == self.state.epoch and wave == self.state.wave:
            self.state = self.state._replace(wave=wave + 1, step=0)


class PausesBeforeTheStart(WaveMember):
    """T45: half the group is asked to pause before it has begun the wave, and sits it out."""

    @property
    def running(self) -> bool:
        return super().running and (self.state.step > 0 or self.state.pause_wave != self.state.wave)


class AnyPauseStops(WaveMember):
    """W13: one rank's wish for a pause is enough on that rank."""

    def agreed(self, outcome: Vote, *, has_work: bool) -> Frames:
        wants = self.state.pause_wave == self.state.wave
        return super().agreed(Vote(outcome.has_work, wants), has_work=has_work)


class ForgetsWhoWaits(Waves):
    """W14: what was asked for during a pause is forgotten when it is over."""

    def resume(self) -> head.Frames:
        self.state = self.state._replace(wanted=False)
        return super().resume()


class WakesDuringAPause(Waves):
    """T45, #39366: a request that comes during a pause wakes the group."""

    def started(self, rank: int, epoch: int, wave: int) -> head.Frames:
        pausing = self.state.pausing
        self.state = self.state._replace(pausing=False)
        said = super().started(rank, epoch, wave)
        self.state = self.state._replace(pausing=pausing)
        return said


class NeverEntersTheFirstWave(Waves):
    """T47, #54762: a rank that joins with work wakes nobody."""

    def stands(self, rank: int, epoch: int, wave: int, *, running: bool, has_work: bool) -> head.Frames:
        return super().stands(rank, epoch, wave, running=running, has_work=False)


class SkipsWithoutTokens(Group):
    """T48, #43547: a rank without tokens leaves the exchange out."""

    def takes_part(self, rank: Rank) -> bool:
        return bool(rank.gateways)


class VotesLate(WaveMember):
    """T50, #52957: no vote before the first step, so that waking for nothing costs steps."""

    @property
    def votes_now(self) -> bool:
        return self.state.step > 0 and super().votes_now


class TellsOnlyOnce(Waves):
    """A rank whose stream broke is not told again what it missed."""

    def stands(self, rank: int, epoch: int, wave: int, *, running: bool, has_work: bool) -> head.Frames:
        said = super().stands(rank, epoch, wave, running=running, has_work=has_work)
        return tuple((to, frame) for to, frame in said if not isinstance(frame, Start) or not self.state.running)


class ForgetsAtRestart(Waves):
    """A restarted head takes the group to be idle, although a rank says that it steps."""

    def stands(self, rank: int, epoch: int, wave: int, *, running: bool, has_work: bool) -> head.Frames:
        return super().stands(rank, epoch, wave, running=False, has_work=has_work)


class LeavesTheOthersWaiting(Waves):
    """A rank dies, and nobody tells the others, which wait for it in an exchange."""

    def _say(self, rank: int, frame: head.Frame) -> None:
        if not isinstance(frame, head.Disband):
            super()._say(rank, frame)


class DisbandsTheUntold(Waves):
    """A rank is told to leave a group that it was never told to form, and is waited for."""

    def _settle(self) -> None:
        super()._settle()
        if self.state.awaits_target:
            places = (Place(Station.FORMING, self.state.epoch),) * len(self.state.places)
            self.state = self.state._replace(places=places, awaits_target=False)

    def listens(self, rank: int, epoch: int, target: str) -> head.Frames:
        self.state = self.state._replace(awaits_target=True)
        return super().listens(rank, epoch, target)


class WaitsForTheGone(Waves):
    """A rank that stays away is waited for, although the group may go on without it."""

    def excuse(self, rank: int) -> head.Frames:
        return ()


class CountsOnTheGone(Waves):
    """A group is formed of all ranks, also of those that are gone."""

    @property
    def present(self) -> tuple[int, ...]:
        return self.state.members


class LeavesTheReturnedOut(Waves):
    """A rank comes back while the others form a group without it, and is taken to be in that one."""

    def stands(self, rank: int, epoch: int, wave: int, *, running: bool, has_work: bool) -> head.Frames:
        if self._place_of(rank).station is Station.EXCUSED:
            self._place(rank, Place(Station.FREE))
        return super().stands(rank, epoch, wave, running=running, has_work=has_work)


class SpeaksTooEarly(Group):
    """The head speaks on a stream before it has heard where the rank stands. Found by the exploration itself."""

    def reaches(self, rank: Rank) -> bool:
        return rank.stream is not Stream.NONE


ONE, TWO = Scenario(requests=(1,)), Scenario()
TWICE = Scenario(requests=(2, 1))
PAUSED = Scenario(pauses=1)
BROKEN = Scenario(requests=(1,), breaks=1)
FROZEN = Scenario(requests=(1,), crashes=1, breaks_show=False)
SHRINKING = Scenario(requests=(1,), crashes=1, breaks_show=False, shrinks=True)
IDLE_TAKEN = "takes a group to be idle"
STEPS_WITHOUT = "exchange tokens without"
THOUGH_PAUSED = "although it is paused"
BUGS = [
    Bug(ONE, NEVER_RESTS, waves=WakesTheOthersOnly),
    Bug(TWICE, NEVER_RESTS, member=TrustsThatItRuns),
    Bug(PAUSED, THOUGH_PAUSED, waves=GuessesThatItRuns),
    Bug(TWICE, NEVER_RESTS, waves=IgnoresWordsWhileRunning),
    Bug(PAUSED, THOUGH_PAUSED, member=StartsAtOnce),
    Bug(TWICE, NEVER_RESTS, member=DropsEarlyStarts),
    Bug(Scenario(requests=(2,), breaks=1), IDLE_TAKEN, member=KeepsNoWave),
    Bug(TWO, APART, member=StopsByItself),
    Bug(Scenario(pauses=1, sync_interval=2), APART, member=VotesWhenItLikes),
    Bug(TWICE, IDLE_TAKEN, waves=BelievesLateEnds),
    Bug(PAUSED, APART, member=PausesAtOnce),
    Bug(PAUSED, NEVER_RESTS, member=PausesBeforeTheStart),
    Bug(PAUSED, APART, member=AnyPauseStops),
    Bug(Scenario(requests=(1,), pauses=1), NEVER_RESTS, waves=ForgetsWhoWaits),
    Bug(PAUSED, THOUGH_PAUSED, waves=WakesDuringAPause),
    Bug(ONE, NEVER_RESTS, waves=NeverEntersTheFirstWave, formed=False),
    Bug(ONE, STEPS_WITHOUT, group=SkipsWithoutTokens),
    Bug(Scenario(requests=(1,), departures=1, sync_interval=2), "none has work", member=VotesLate),
    Bug(BROKEN, NEVER_RESTS, waves=TellsOnlyOnce),
    Bug(Scenario(requests=(1,), head_restarts=1), IDLE_TAKEN, waves=ForgetsAtRestart),
    Bug(FROZEN, NEVER_RESTS, waves=LeavesTheOthersWaiting),
    Bug(BROKEN, NEVER_RESTS, waves=DisbandsTheUntold, formed=False),
    Bug(SHRINKING, "never serves without a rank", waves=WaitsForTheGone),
    Bug(SHRINKING, "never serves without a rank", waves=CountsOnTheGone),
    Bug(SHRINKING, "meet in different groups", waves=LeavesTheReturnedOut),
    Bug(BROKEN, NEVER_RESTS, group=SpeaksTooEarly, formed=False),
]


def _name(bug: Bug) -> str:
    changed = (bug.member, bug.waves, bug.group)
    return next(kind.__name__ for kind in changed if kind not in (WaveMember, Waves, Group))


@pytest.mark.parametrize("bug", BUGS, ids=_name)
def test_a_past_bug_is_found(bug: Bug) -> None:
    group = bug.group(bug.scenario, member_class=bug.member, waves_class=bug.waves)
    found = explore(group, group.start(formed=bug.formed))
    print(f"{_name(bug)}: after {found.num_states} states, {found.seconds:.2f} s: {found.problem}")
    assert bug.says in found.problem
