"""Who computes how many tokens in the next step. Decides on counts only; deterministic."""

from __future__ import annotations

from bisect import bisect_left, insort

from engine.batch import Scheduled
from engine.config import SchedulerLimits
from engine.kv.cache import KVCache
from engine.sequence import Sequence
from engine.waiting_queue import WaitingQueue


class Scheduler:
    """There is no prefill and no decode: each sequence catches up num_computed to num_tokens.

    A sequence waits without blocks, or runs with blocks for all it knows. It is admitted strictly in order, so
    nothing overtakes a large prompt for ever, and only when everything it knows fits; nobody is preempted for a
    sequence that waits. When a running sequence needs one more block and none is free, the last running one in order
    gives up its blocks and waits again in its old place. The first running one is never preempted, so something
    always finishes and nothing of equal priority starves; a lower priority waits as long as there is work above it.
    """

    def __init__(self, cache: KVCache, limits: SchedulerLimits) -> None:
        self._cache = cache
        self._limits = limits
        self._waiting = WaitingQueue()
        self._running: list[Sequence] = []  # sorted by order
        self.num_preemptions = 0
        self.num_lookup_tokens = 0  # prompt tokens looked up in the prefix cache, once per sequence
        self.num_hit_tokens = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting_tokens(self) -> int:
        return self._waiting.num_tokens

    def add(self, sequence: Sequence) -> None:
        assert sequence.max_total_tokens <= self._cache.num_slots, "the first in order must fit alone"
        self._waiting.push(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out, wherever it is; its blocks are free at once."""
        if sequence.block_table.block_ids:
            del self._running[bisect_left(self._running, sequence.order, key=_order)]
            self._cache.release(sequence.block_table)
        else:
            self._waiting.remove(sequence)

    def schedule(self) -> list[Scheduled]:
        """Chooses the next step; empty only when there is no sequence.

        Those with one token to go come first: a long prompt delays them by its chunk, never by its length.
        """
        budget = self._limits.max_num_batched_tokens
        scheduled = self._schedule_single_tokens()
        budget -= len(scheduled)
        for sequence in self._running:
            num_missing = len(sequence.token_ids) - sequence.num_computed
            if num_missing > 1 and budget:
                num_new = min(num_missing, budget)
                scheduled.append(Scheduled(sequence, num_new))
                budget -= num_new
        if budget and self._waiting:
            self._admit(scheduled, budget)
        return scheduled

    def advance(self, sequence: Sequence, num_new_tokens: int) -> None:
        """The scheduled tokens were computed."""
        sequence.num_computed += num_new_tokens
        self._cache.publish(sequence.block_table, sequence.token_ids, sequence.num_computed)

    def check(self) -> None:
        """Raises AssertionError when the books are wrong."""
        running, waiting = self._running, list(self._waiting)
        assert sorted(running, key=_order) == running, "running sequences are out of order"
        assert sorted(waiting, key=_order) == waiting, "waiting sequences are out of order"
        assert len(running) <= self._limits.max_num_seqs, "more sequences run than may"
        assert sum(sequence.num_tokens for sequence in waiting) == self._waiting.num_tokens
        for sequence in waiting:
            assert not sequence.block_table.block_ids, f"{sequence.request_id} waits and holds blocks"
            assert sequence.num_computed == 0, f"{sequence.request_id} waits and has computed tokens"
        for sequence in running:
            assert sequence.num_computed < sequence.num_tokens, f"{sequence.request_id} runs with nothing to compute"
            assert self._cache.covers(sequence.block_table, sequence.num_tokens - 1), f"{sequence.request_id}: too few"
        self._cache.check(sequence.block_table for sequence in running)

    def _schedule_single_tokens(self) -> list[Scheduled]:
        scheduled = []
        index = 0
        # Preemption shortens the list from its end, where nothing is scheduled yet.
        while index < len(self._running):
            sequence = self._running[index]
            num_tokens = len(sequence.token_ids)
            if num_tokens - sequence.num_computed == 1 and self._make_room(sequence, num_tokens):
                scheduled.append(Scheduled(sequence, 1))
            index += 1
        return scheduled

    def _make_room(self, sequence: Sequence, num_tokens: int) -> bool:
        """Gets a sequence its next block, at the expense of those behind it; False when it was itself the last."""
        while not self._cache.grow(sequence.block_table, num_tokens):
            victim = self._running.pop()
            self._cache.release(victim.block_table)
            victim.restart()
            self._waiting.push(victim)
            self.num_preemptions += 1
            if victim is sequence:
                return False
        return True

    def _admit(self, scheduled: list[Scheduled], budget: int) -> None:
        num_growing = sum(1 for sequence in self._running if self._grows(sequence))
        while budget and self._waiting and len(self._running) < self._limits.max_num_seqs:
            sequence = self._waiting.front
            # Spare blocks for it and for each running sequence that will want one: who is admitted gets to compute
            # something, instead of being thrown out again in the next step.
            num_spare_blocks = num_growing + 1 if self._running else 0
            num_cached = self._cache.claim(
                sequence.block_table,
                sequence.token_ids,
                num_spare_blocks=num_spare_blocks,
                use_cache=not sequence.needs_every_row,
            )
            if num_cached is None:
                assert self._running, "a sequence alone always fits"
                return
            self._waiting.pop()
            insort(self._running, sequence, key=_order)
            num_growing += self._grows(sequence)
            self._count_lookup(sequence, num_cached)
            sequence.num_computed = num_cached
            num_new = min(len(sequence.token_ids) - num_cached, budget)
            scheduled.append(Scheduled(sequence, num_new))
            budget -= num_new

    def _grows(self, sequence: Sequence) -> bool:
        """Whether a sequence may ask for another block. Its last token is never computed, so it needs no room."""
        return not self._cache.covers(sequence.block_table, sequence.max_total_tokens - 1)

    def _count_lookup(self, sequence: Sequence, num_cached: int) -> None:
        """What a preempted sequence finds again of its own says nothing about the cache's use."""
        if sequence.num_preemptions or sequence.needs_every_row:
            return
        sequence.num_cached_tokens = min(num_cached, sequence.num_prompt_tokens)
        self.num_lookup_tokens += sequence.num_prompt_tokens
        self.num_hit_tokens += sequence.num_cached_tokens


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order
