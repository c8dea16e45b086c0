"""Whether a request may be why the engines that ran it died; pure, the clock is handed in."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from enum import Enum

# What goes down together, a node or a rack, goes within moments.
SAME_EVENT_S = 1.0
# Whoever is excused is tried again, and what is tried again may be guilty after all.
_MAX_EXCUSES = 2


class Verdict(Enum):
    """What becomes of a request whose rank was lost."""

    CONTINUE = "continue"  # on another rank, at once
    PROBATION = "probation"  # continue once no rank is going down, one such request at a time: who kills is alone then
    FAIL = "fail"  # it is the likely cause, and must not reach another rank


class LossRecord:
    """The losses of one request.

    A rank that is lost before it did a step of the request, and after another one, probably went down with that one:
    such a loss is excused and not counted, but whoever kills a rank at once looks the same, so the request goes on
    probation.
    A rank may also die of a request, and then its companions have lost their rank too: they must not be failed with
    it. So the last loss that is allowed decides only when the request was the one suspect there; otherwise it goes on,
    on probation too. Who loses a rank on probation did it, unless ranks that it never was on went down at that moment.
    """

    def __init__(self, max_losses: int) -> None:
        self._max_losses = max_losses
        self._ranks: set[int] = set()
        self._num_counted = 0
        self._num_excused = 0
        self.count = 0
        self.on_probation = False

    def add(
        self,
        *,
        rank: int,
        num_suspects: int,
        heard: bool,
        lost_lately: AbstractSet[int] = frozenset(),
    ) -> Verdict:
        """The loss of `rank`.

        `num_suspects` requests with a loss before were on the rank, this one included; `heard` tells whether the rank
        did a step of this one; `lost_lately` are all ranks that this gateway lost within SAME_EVENT_S.
        """
        self._ranks.add(rank)
        others = bool(lost_lately - self._ranks)
        self.count += 1
        excused = not heard and self.count > 1 and (others or not self.on_probation)
        if excused and self._num_excused < _MAX_EXCUSES and self._max_losses > 1:
            self._num_excused += 1
            self.on_probation = True
            return Verdict.PROBATION
        self._num_counted += 1
        if self.on_probation:
            return Verdict.FAIL
        if self._num_counted < self._max_losses:
            return Verdict.CONTINUE
        if self._max_losses < 2 or num_suspects < 2:
            return Verdict.FAIL
        self.on_probation = True
        return Verdict.PROBATION

    def survived(self) -> None:
        """A rank did a step of it: who has excuses only is no longer on probation."""
        if self._num_counted < self._max_losses:
            self.on_probation = False
