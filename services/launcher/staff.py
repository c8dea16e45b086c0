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
        """Engines of ranks that nobody wants any more and that have no lease; each failed one once, for its rank may be
        tried anew later."""
        found = []
        for rank, post in list(self._posts.items()):
            if rank < roster.wanted_size:
                continue
            if post.failed:
                del self._posts[rank]
            if post.failed or _is_absent(roster, rank):
                found.append(post.child)
        return found

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
