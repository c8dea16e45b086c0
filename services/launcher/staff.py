"""Which engine of this node has which rank and which place, and who is missing or too many. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from muster import v1 as wire

Child = TypeVar("Child")


@dataclass(slots=True)
class _Post(Generic[Child]):
    child: Child
    slot: int
    failed: bool = False  # given up
    num_asked: tuple[int, int] | None = None  # when that was noticed: the head, and how often it asked for the rank


class Staff(Generic[Child]):
    """The engines of a head's node, by rank. A slot is a place on the node: a socket, and a GPU where there is one."""

    def __init__(self, ranks: Sequence[int | None], children: Sequence[Child]) -> None:
        known = enumerate(zip(ranks, children, strict=True))
        self._posts = {rank: _Post(child, slot) for slot, (rank, child) in known if rank is not None}

    def missing(self, roster: wire.Roster, own_ranks: Iterable[int]) -> list[int]:
        """Ranks of `own_ranks` that the head wants and nobody has, here or elsewhere, and that were not given up."""
        wanted = {entry.rank for entry in roster.ranks[: roster.wanted_size] if entry.state == wire.RANK_STATE_MISSING}
        return [rank for rank in own_ranks if rank in wanted and rank not in self._posts]

    def superfluous(self, roster: wire.Roster) -> list[Child]:
        """Engines of ranks that nobody wants any more and that have no lease."""
        return [
            post.child
            for rank, post in self._posts.items()
            if rank >= roster.wanted_size and not post.failed and _is_absent(roster, rank)
        ]

    def forgotten(self, roster: wire.Roster) -> list[Child]:
        """Engines that were given up, of ranks that nobody wants any more; once, for a rank may be tried anew."""
        ranks = [rank for rank, post in self._posts.items() if post.failed and rank >= roster.wanted_size]
        return [self._posts.pop(rank).child for rank in ranks]

    def asked_again(self, roster: wire.Roster) -> dict[int, Child]:
        """Engines that were given up before an operator asked for their ranks, which nobody has; each once."""
        found = {}
        for entry in roster.ranks[: roster.wanted_size]:
            post = self._posts.get(entry.rank)
            if post is None or not post.failed:
                continue
            before, now = post.num_asked, (roster.head_incarnation, entry.num_asked)
            post.num_asked = now
            if entry.state not in (wire.RANK_STATE_MISSING, wire.RANK_STATE_LOST) or before is None:
                continue
            if now[1] > (before[1] if before[0] == now[0] else 0):  # each head counts from its start
                del self._posts[entry.rank]
                found[entry.rank] = post.child
        return found

    def rank_of(self, child: Child) -> int | None:
        return next((rank for rank, post in self._posts.items() if post.child is child), None)

    def free_slot(self, num_slots: int) -> int | None:
        taken = {post.slot for post in self._posts.values()}
        return next((slot for slot in range(num_slots) if slot not in taken), None)

    def hire(self, rank: int, slot: int, child: Child) -> None:
        self._posts[rank] = _Post(child, slot)

    def ended(self, child: Child, *, failed: bool) -> None:
        """The child is not started again; when it failed, its rank is not filled again by itself."""
        for rank, post in list(self._posts.items()):
            if post.child is child and failed:
                post.failed = True
            elif post.child is child:
                del self._posts[rank]


def _is_absent(roster: wire.Roster, rank: int) -> bool:
    return rank >= len(roster.ranks) or roster.ranks[rank].state == wire.RANK_STATE_MISSING
