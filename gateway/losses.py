"""Whether a request may be why the engines that ran it died; pure, the clock is handed in."""

from __future__ import annotations

from enum import Enum

# What goes down together, a node or a rack, goes within moments; keep-alives and leases notice a cut a little later.
SAME_EVENT_S = 1.0


class Verdict(Enum):
    """What becomes of a request whose rank was lost."""

    CONTINUE = "continue"  # on another rank, at once
    PROBATION = "probation"  # continue, one such request at a time, so that the guilty one is alone when a rank dies
    FAIL = "fail"  # it is the likely cause, and must not reach another rank


class LossRecord:
    """The losses of one request.

    A rank may die of a request, and then its companions have lost their rank too: they must not be failed with it.
    And the rank that they are continued on may be going down already, with the first one. So the last loss that is
    allowed decides only when the request was the one suspect there and the rank had lived; otherwise it goes on, on
    probation. Who loses a rank on probation did it.
    """

    def __init__(self, max_losses: int) -> None:
        self._max_losses = max_losses
        self._last_s = float("-inf")
        self._last_node = ""
        self.count = 0
        self.on_probation = False

    def add(self, now_s: float, *, node: str, num_suspects: int, heard: bool) -> Verdict:
        """A loss at `now_s`, of a rank on `node`.

        `num_suspects` requests with a loss before were on the rank, this one included; `heard` tells whether the rank
        gave a sign of life after it got this one.
        """
        with_the_last = node == self._last_node and now_s - self._last_s <= SAME_EVENT_S and not heard
        self._last_s, self._last_node = now_s, node
        self.count += 1
        if self.count < self._max_losses:
            return Verdict.CONTINUE
        if self.on_probation or self._max_losses < 2 or not (num_suspects > 1 or with_the_last):
            return Verdict.FAIL
        self.on_probation = True
        return Verdict.PROBATION
