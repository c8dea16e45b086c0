"""What the exchange asks of a group of processes."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Collectives(Protocol):
    """One formed group. All members make the same calls in the same order, each from one thread at a time.

    Every call raises GroupBrokenError when a member is lost, when the group was interrupted, and for good after that.
    """

    @property
    def epoch(self) -> int:
        """The group's number in the deployment; a group of the same members that is formed anew has another one."""
        ...

    @property
    def index(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_to_all(self, out: Tensor, rows: Tensor, received: list[int], sent: list[int]) -> None:
        """Sends the first `sent[0]` rows to member 0, the next `sent[1]` to member 1, and so on, and fills `out` with
        `received[0]` rows of member 0, then of member 1, …; what one sends is what the other receives."""
        ...

    def maximum(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """The greatest of all members' values, one by one."""
        ...

    def interrupt(self, reason: str) -> None:
        """Ends the call that a member waits in, and all later ones. May be called from any thread."""
        ...
