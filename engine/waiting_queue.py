"""Sequences that hold no blocks, in the order in which they are admitted."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from engine.sequence import Sequence


class WaitingQueue:
    """Lowest priority number first, then first come; a preempted sequence gets its old place back."""

    def __init__(self) -> None:
        # Last in order first, so that the front is popped from the end. Sorted by `_key`.
        self._sequences: list[Sequence] = []
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return reversed(self._sequences)

    @property
    def num_tokens(self) -> int:
        """Known tokens of all waiting sequences."""
        return self._num_tokens

    @property
    def front(self) -> Sequence:
        """Who is admitted next; the queue must not be empty."""
        return self._sequences[-1]

    def push(self, sequence: Sequence) -> None:
        insort(self._sequences, sequence, key=_key)
        self._num_tokens += sequence.num_tokens

    def pop(self) -> Sequence:
        sequence = self._sequences.pop()
        self._num_tokens -= sequence.num_tokens
        return sequence

    def remove(self, sequence: Sequence) -> None:
        index = bisect_left(self._sequences, _key(sequence), key=_key)
        assert self._sequences[index] is sequence, f"{sequence.request_id} is not waiting"
        del self._sequences[index]
        self._num_tokens -= sequence.num_tokens


def _key(sequence: Sequence) -> tuple[int, int]:
    priority, arrival = sequence.order
    return -priority, -arrival
