"""What Ray's errors mean to a launcher; the messages are Ray's own words, in one line."""

from __future__ import annotations


class ClusterError(Exception):
    """Ray could not do what it was asked."""


class ActorUnreachableError(ClusterError):
    """No answer came from the actor; whether it is dead Ray says later."""


class ActorGoneError(ClusterError):
    """The actor is dead, or never came. `can_come_again` is False when the next one would end as it did."""

    def __init__(self, reason: str, *, can_come_again: bool = True) -> None:
        super().__init__(reason)
        self.can_come_again = can_come_again
