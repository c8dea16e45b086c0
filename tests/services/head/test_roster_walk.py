"""Random walks over the roster, checked by an oracle that keeps its own, simpler book."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from services.head.admission import Introduction, Rejection
from services.head.roster import Lease, LeaseEnded, Phase, RankRecord, RankState, Roster
from tests.services.head.factories import introduction, offer, rules

SIZE = 4
TIMEOUT_S = 10.0
NUM_STEPS = 1500


class Walk:
    """Engines that do anything at any time. The oracle knows which lease holds which rank, and since when."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.roster = Roster(rules(data_parallel_size=SIZE), heartbeat_timeout_s=TIMEOUT_S, now_s=0.0)
        self.holders: dict[int, tuple[Lease, Introduction]] = {}
        self.heard_s: dict[int, float] = {}
        self.ended: list[Lease] = []

    def step(self) -> None:
        before, sequence = tuple(self.roster.ranks), self.roster.sequence
        self.now_s += self.random.random() * 2
        touched = self.random.choice(
            (self.join, self.speak, self.speak, self.speak, self.end, self.stale, self.expire)
        )()
        self.check(before, sequence, touched)

    def join(self) -> set[int]:
        rank = self.random.choice((None, *range(SIZE + 1)))
        engine = introduction(
            rank=rank,
            data_parallel_size=self.random.choice((SIZE, SIZE, SIZE, 9)),
            incarnation=self.random.randrange(20),
            pid=self.random.randrange(3),
        )
        free = [rank for rank in range(SIZE) if rank not in self.holders]
        may_keep = self._may_keep(rank, engine)
        try:
            joined = self.roster.join(engine, ready_deadline_s=self.now_s + 30.0, now_s=self.now_s)
        except Rejection:
            is_wrong = engine.data_parallel_size != SIZE or rank == SIZE
            assert is_wrong or (rank is None and not free) or may_keep
            return set()
        held = joined.lease.rank
        assert rank in (None, held)
        previous = self.holders.get(held)
        assert joined.superseded == (previous[0] if previous else None)
        if previous is not None:
            assert rank is not None, "any rank never takes a live rank"
            assert not may_keep
            self.ended.append(previous[0])
        self.holders[held] = joined.lease, engine
        self.heard_s[held] = self.now_s
        return {held}

    def _may_keep(self, rank: int | None, engine: Introduction) -> bool:
        if rank is None or rank not in self.holders:
            return False
        holder = self.holders[rank][1]
        replaces_a_hung_one = (
            self.roster.ranks[rank].state is RankState.LOST and engine.incarnation > holder.incarnation
        )
        return not replaces_a_hung_one and not engine.is_same_process(holder)

    def speak(self) -> set[int]:
        if not self.holders:
            return set()
        rank = self.random.choice(sorted(self.holders))
        lease = self.holders[rank][0]
        state = self.roster.ranks[rank].state
        kind = self.random.choice(("progress", "ready", "heartbeat", "hung"))
        try:
            if kind == "progress":
                self.roster.progress(lease, self.random.choice(list(Phase)), 1, 2, now_s=self.now_s)
            elif kind == "ready":
                names = self.random.choice((["a"], ["a"], ["b"]))
                self.roster.ready(lease, offer(served_model_names=names), now_s=self.now_s)
            else:
                idle_s = 11.0 if kind == "hung" else 0.0
                draining = self.random.random() < 0.3
                self.roster.heartbeat(lease, loop_idle_s=idle_s, draining=draining, now_s=self.now_s)
        except Rejection:
            return set()
        self.heard_s[rank] = self.now_s
        if kind == "hung" and state is not RankState.JOINING:
            assert self.roster.ranks[rank].state is RankState.LOST
        return {rank}

    def end(self) -> set[int]:
        if not self.holders:
            return set()
        rank = self.random.choice(sorted(self.holders))
        lease = self.holders[rank][0]
        if self.random.random() < 0.5:
            self.roster.leave(lease, "left", now_s=self.now_s)
            assert self.roster.ranks[rank].state is RankState.MISSING
        else:
            self.roster.lose(lease, "broken", now_s=self.now_s)
            assert self.roster.ranks[rank].state is RankState.LOST
        self._drop(rank)
        return {rank}

    def stale(self) -> set[int]:
        """Late news of leases that have ended must change nothing."""
        if not self.ended:
            return set()
        lease = self.random.choice(self.ended)
        self.roster.lose(lease, "late", now_s=self.now_s)
        self.roster.leave(lease, "late", now_s=self.now_s)
        with pytest.raises(LeaseEnded):
            self.roster.heartbeat(lease, loop_idle_s=99.0, draining=True, now_s=self.now_s)
        return set()

    def expire(self) -> set[int]:
        gone = {lease.rank for lease, _ in self.roster.expire(self.now_s)}
        silent = {rank for rank in self.holders if self.now_s - self.heard_s[rank] > TIMEOUT_S}
        assert silent <= gone
        for rank in gone:
            self._drop(rank)
        return gone

    def _drop(self, rank: int) -> None:
        self.ended.append(self.holders.pop(rank)[0])

    def check(self, before: tuple[RankRecord, ...], sequence: int, touched: set[int]) -> None:
        ranks = self.roster.ranks
        assert [record.rank for record in ranks] == list(range(SIZE))
        for old, new in zip(before, ranks, strict=True):
            assert (new.lease is not None) == (new.rank in self.holders)
            assert new.lease is not None or not new.state.is_live
            if new.lease is not None:
                assert new.lease == self.holders[new.rank][0]
                assert new.engine == self.holders[new.rank][1]
            assert new.state not in (RankState.READY, RankState.DRAINING) or new.offer is not None
            if new.rank not in touched:
                assert new == old, "a frame of one engine changed another's rank"
        served = {tuple(record.offer.model.served_model_names) for record in ranks if record.lease and record.offer}
        assert len(served) <= 1, "two ranks serve different models"
        visible = [replace(record, heard_s=0.0, has_drained=False) for record in ranks]
        changed = visible != [replace(record, heard_s=0.0, has_drained=False) for record in before]
        assert self.roster.sequence > sequence if changed else self.roster.sequence >= sequence


@pytest.mark.parametrize("seed", range(6))
def test_walk(seed: int) -> None:
    walk = Walk(seed)
    seen = set()
    for _ in range(NUM_STEPS):
        walk.step()
        seen |= {record.state for record in walk.roster.ranks}
    assert seen == set(RankState), "the walk has to reach every state to mean something"
