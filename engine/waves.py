"""One rank's side of lockstep: when it steps together with its group, and when it sleeps. Pure.

Ranks of a mixture-of-experts model exchange tokens in every step, so that either all members of a group step or none. A
*wave* is one stretch of steps, from a start that the head gives to all to the step on which all agree to stop. Three
rules keep every rank in step, whatever the order in which messages arrive; tests/waves explores all of them:

1. A rank steps only in a wave that the head has started. Work wakes nobody up by itself: it says so, and waits.
2. What ends a wave is the outcome of a vote, which is the same on all ranks; never what one rank knows alone.
3. Frames carry epoch and wave. An early one is kept until its time has come, a late one means nothing any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

NO_EPOCH = 0
_NEVER = -1


@dataclass(frozen=True, slots=True)
class Standing:
    """Where this rank is; `epoch` is NO_EPOCH without a group. The first frame on every stream to the head."""

    epoch: int
    wave: int
    running: bool
    has_work: bool


@dataclass(frozen=True, slots=True)
class Started:
    """This rank has work and the group is idle."""

    epoch: int
    wave: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The group agreed to stop after `steps` steps: nobody has work, or all were asked to pause."""

    epoch: int
    wave: int
    steps: int
    paused: bool


Frame = Standing | Started | Ended
Frames = tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Vote:
    """What a rank brings to an agreement, and, combined over the group, what comes out of it: see `combine`."""

    has_work: bool
    wants_pause: bool

    @property
    def goes_on(self) -> bool:
        """As an outcome: the group makes the step before which it was voted. Else the wave has ended."""
        return self.has_work and not self.wants_pause

    def combine(self, other: Vote) -> Vote:
        """Work on any rank is work; a pause is one when all want it. As numbers: a maximum and a minimum."""
        return Vote(self.has_work or other.has_work, self.wants_pause and other.wants_pause)


class MemberState(NamedTuple):
    """Everything a rank remembers about its group. `wave` is the current one, or the next while the rank is idle."""

    epoch: int = NO_EPOCH
    formed: bool = False  # False between being asked to form the group and having formed it
    is_first: bool = False  # it reports the ends of waves
    wave: int = 0
    start_wave: int = _NEVER  # the last one that the head has started
    pause_wave: int = _NEVER  # the last one that the head wants stopped
    told_wave: int = _NEVER  # the head knows of our work in this one
    step: int = 0  # steps of this wave that are done


class WaveMember:
    """One rank. Belongs to the thread that steps; the caller delivers the head's frames and sends what is returned."""

    def __init__(self, state: MemberState = MemberState(), *, sync_interval: int = 1) -> None:  # noqa: B008
        """The group votes before the first step of a wave and before every `sync_interval`-th one after it.

        A longer interval saves votes and costs up to `sync_interval` - 1 dummy steps after the last token.
        """
        if sync_interval < 1:
            raise ValueError(f"sync_interval must be at least 1, not {sync_interval}")
        self.state = state
        self._sync_interval = sync_interval

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def running(self) -> bool:
        """This rank has to step, with work or without."""
        state = self.state
        return state.formed and state.start_wave == state.wave

    @property
    def votes_now(self) -> bool:
        """The coming step begins with a vote. True on all ranks or on none."""
        return self.state.step % self._sync_interval == 0

    # The road to the head

    def connected(self, *, has_work: bool) -> Frames:
        """A stream to the head was opened, the first or another one. What was under way on the old one is lost, and a
        group that is being formed with it.

        Nothing changes while the rank is running, so that another thread may then ask a WaveMember made of `state`:
        the head has to hear of a rank that waits in an exchange for one that has missed its start.
        """
        if self.state.epoch != NO_EPOCH and not self.state.formed:
            self.state = MemberState()
        return self._stand(has_work)

    # The group

    def form(self, epoch: int, *, is_first: bool) -> bool:
        """The head asks to form a group. True: do it, and call `formed` or `broke`; False: it comes too late."""
        if epoch <= self.state.epoch:
            return False
        self.state = MemberState(epoch=epoch, is_first=is_first)
        return True

    def formed(self, *, has_work: bool) -> Frames:
        """All members are connected to each other."""
        self.state = self.state._replace(formed=True)
        return self._stand(has_work)

    def disband(self, epoch: int, *, has_work: bool) -> Frames:
        """The head ends the group of `epoch`; the exchange that the rank waits in has to be ended by force."""
        return self._leave(has_work) if self.state.epoch == epoch else ()

    def broke(self, *, has_work: bool) -> Frames:
        """Forming the group, or an exchange, failed."""
        return self._leave(has_work) if self.state.epoch != NO_EPOCH else ()

    # Waves

    def start(self, epoch: int, wave: int) -> None:
        """The head starts a wave. This rank may still be in the one before."""
        if epoch == self.state.epoch and wave > self.state.start_wave:
            self.state = self.state._replace(start_wave=wave)

    def pause(self, epoch: int, wave: int) -> None:
        """The head wants a wave stopped; it is, once all ranks have heard so."""
        if epoch == self.state.epoch and wave > self.state.pause_wave:
            self.state = self.state._replace(pause_wave=wave)

    def wake(self, *, has_work: bool) -> Frames:
        """To be called while the group is idle and after each arrival of work; says so once."""
        state = self.state
        if not (has_work and state.formed) or self.running or state.told_wave == state.wave:
            return ()
        self.state = state._replace(told_wave=state.wave)
        return (Started(state.epoch, state.wave),)

    def vote(self, *, has_work: bool) -> Vote:
        """This rank's part in the vote before the coming step."""
        return Vote(has_work, self.state.pause_wave == self.state.wave)

    def agreed(self, outcome: Vote, *, has_work: bool) -> Frames:
        """The combined votes of all ranks. Unless `outcome.goes_on`, nobody steps now; the next wave may be on."""
        if outcome.goes_on:
            return ()
        state = self.state
        paused = outcome.wants_pause and outcome.has_work
        ended = (Ended(state.epoch, state.wave, state.step, paused),) if state.is_first else ()
        self.state = state._replace(wave=state.wave + 1, step=0)
        return (*ended, *self.wake(has_work=has_work))

    def stepped(self) -> None:
        """One step is done, with tokens of this rank or as a dummy."""
        self.state = self.state._replace(step=self.state.step + 1)

    # Internals

    def _leave(self, has_work: bool) -> Frames:
        self.state = MemberState()
        return self._stand(has_work)

    def _stand(self, has_work: bool) -> Frames:
        state = self.state
        if has_work and not self.running:
            self.state = state._replace(told_wave=state.wave)
        return (Standing(state.epoch, state.wave, self.running, has_work),)
