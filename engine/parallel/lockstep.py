"""A rank that steps together with its group: votes, steps with tokens or without, and what happens when it breaks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from engine.errors import GroupBrokenError
from engine.parallel.collectives import Collectives
from engine.parallel.exchange import ExpertExchange
from engine.parallel.placement import ExpertPlacement
from engine.stats import LockstepTotals
from engine.waves import Frames, Vote, WaveMember

if TYPE_CHECKING:
    from engine.core import EngineCore, StepResult

_log = logging.getLogger(__name__)


class ExpertLayer(Protocol):
    """A layer whose experts are spread over the group."""

    def place(self, placement: ExpertPlacement) -> None:
        """Loads the experts that this rank has in a placement, and frees the others."""
        ...

    def serve(self) -> None:
        """Takes part in the layer's exchange without tokens of its own."""
        ...


class Lockstep:
    """Runs WaveMember against the group's collectives. Belongs to the engine thread, except `interrupt`.

    Every step of a wave makes the same exchanges on all members: one per expert layer. A rank without work, or whose
    own step failed half way, makes what is left of them without tokens.
    """

    def __init__(
        self,
        member: WaveMember,
        exchange: ExpertExchange,
        layers: Sequence[ExpertLayer],
        tell: Callable[[Frames], None],
    ) -> None:
        """`tell` gets what the head has to hear, on the engine thread; it must not block."""
        self._member = member
        self._exchange = exchange
        self._layers = layers
        self._tell = tell
        self._num_steps = 0
        self._num_dummy_steps = 0
        exchange.enter(None)  # from here on nothing is rehearsed

    @property
    def running(self) -> bool:
        """This rank has to step now, with work or without."""
        return self._member.running

    @property
    def totals(self) -> LockstepTotals:
        return LockstepTotals(self._num_steps, self._num_dummy_steps, self._exchange.bytes_sent)

    # What the head says

    def standing(self) -> Frames:
        """Where this rank stands, while it steps or waits in an exchange; else nothing. For any thread.

        The head has to hear of a rank that waits for one that has missed its start, and the engine thread, which
        waits, cannot say so. Nothing is changed by it.
        """
        member = WaveMember(self._member.state)
        return member.connected(has_work=True) if member.running else ()

    def connected(self, core: EngineCore) -> None:
        """A stream to the head was opened."""
        self._say(self._member.connected(has_work=core.has_work))
        self._leave_other_group()

    def form(self, epoch: int, *, is_first: bool) -> bool:
        """Whether to form the group of that epoch; then call `formed` or `failed`."""
        in_time = self._member.form(epoch, is_first=is_first)
        self._leave_other_group()
        return in_time

    def formed(self, core: EngineCore, group: Collectives) -> None:
        """The group stands. Does nothing when its time has passed."""
        if self._member.epoch != group.epoch or self._exchange.group is group:
            return
        self._exchange.enter(group)
        self._say(self._member.formed(has_work=core.has_work))

    def failed(self, core: EngineCore, epoch: int) -> None:
        """The group could not be formed."""
        if self._member.epoch == epoch:
            self._say(self._member.broke(has_work=core.has_work))

    def start(self, epoch: int, wave: int) -> None:
        self._member.start(epoch, wave)

    def pause(self, epoch: int, wave: int) -> None:
        self._member.pause(epoch, wave)

    def disband(self, core: EngineCore, epoch: int) -> None:
        self._say(self._member.disband(epoch, has_work=core.has_work))
        self._leave_other_group()

    def interrupt(self, epoch: int, reason: str) -> None:
        """Ends an exchange that the engine thread waits in, if it is one of that epoch. For any thread."""
        group = self._exchange.group
        if group is not None and group.epoch == epoch:
            group.interrupt(reason)

    # Steps

    def wake(self, core: EngineCore) -> None:
        """To be called after each arrival of work: a sleeping group is told to step."""
        self._say(self._member.wake(has_work=core.has_work))

    def step(self, core: EngineCore) -> StepResult | None:
        """One step of the group; only while `running`. None: there is nothing to hand out.

        Raises what the core's step raises, after the rest of the group's exchanges was made. A group that breaks costs
        no request anything: the step is forgotten, and done again in the next group. Raises GroupBrokenError when the
        cause lies in this process, which should end then: it would break the next group too.
        """
        try:
            if self._member.votes_now and not self._agree(core):
                return None
            result = self._step(core)
        except GroupBrokenError as error:
            core.abandon_step()
            self._break(core, error)
            return None
        return result

    def _agree(self, core: EngineCore) -> bool:
        """Votes with the others. Returns whether the wave goes on."""
        group = self._exchange.group
        if group is None:
            raise GroupBrokenError("the wave has no group")
        own = self._member.vote(has_work=core.has_work)
        has_work, no_pause = group.maximum((own.has_work, not own.wants_pause))
        outcome = Vote(bool(has_work), not no_pause)
        self._say(self._member.agreed(outcome, has_work=core.has_work))
        # And not `running`: the next wave may be on already, and it begins with a vote of its own.
        return outcome.goes_on

    def _step(self, core: EngineCore) -> StepResult | None:
        result, failure = None, None
        try:
            if core.has_work:
                result = core.step()
        except GroupBrokenError:
            raise
        except Exception as error:
            failure = error
        # Also a rank with work may have nothing to compute, or may have failed before the first exchange.
        is_dummy = self._exchange.num_layers_done == 0
        for layer in self._layers[self._exchange.num_layers_done :]:
            layer.serve()
        self._exchange.num_layers_done = 0
        self._member.stepped()
        self._num_steps += 1
        self._num_dummy_steps += is_dummy
        if failure is not None:
            raise failure
        return result

    def _break(self, core: EngineCore, error: GroupBrokenError) -> None:
        _log.warning("the group of epoch %d is broken: %s", self._member.epoch, error)
        if (group := self._exchange.group) is not None:
            group.interrupt(str(error))
        self._exchange.enter(None)
        self._say(self._member.broke(has_work=core.has_work))
        if error.own_fault:
            raise error

    def _leave_other_group(self) -> None:
        """Gives up a group that is not the member's any more."""
        group = self._exchange.group
        if group is not None and group.epoch != self._member.epoch:
            group.interrupt("this rank has left the group")
            self._exchange.enter(None)

    def _say(self, frames: Frames) -> None:
        if frames:
            self._tell(frames)
