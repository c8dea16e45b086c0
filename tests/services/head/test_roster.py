"""The state machine of each rank."""

from __future__ import annotations

from typing import Any

import pytest
from muster import v1 as wire

from services.head.admission import Fault, Rejection
from services.head.roster import Joined, Lease, LeaseEnded, Phase, RankState, Roster
from tests.services.head.factories import introduction, offer, rules

TIMEOUT_S = 10.0


class Scene:
    """A roster with a clock in hand."""

    def __init__(self, size: int = 3, most: int = 0) -> None:
        self.now_s = 0.0
        agreed = rules(data_parallel_size=size, max_data_parallel_size=most)
        self.roster = Roster(agreed, heartbeat_timeout_s=TIMEOUT_S, now_s=0.0)

    def join(self, rank: int | None = 0, **changes: object) -> Joined:
        engine = introduction(rank=rank, data_parallel_size=None, **changes)
        return self.roster.join(engine, ready_deadline_s=self.now_s + 60.0, now_s=self.now_s)

    def ready(self, lease: Lease, **changes: Any) -> None:
        self.roster.ready(lease, offer(**changes), now_s=self.now_s)

    def serve(self, rank: int = 0, **changes: object) -> Lease:
        lease = self.join(rank, **changes).lease
        self.ready(lease)
        return lease

    def beat(self, lease: Lease, *, loop_idle_s: float = 0.0, draining: bool = False) -> None:
        self.roster.heartbeat(lease, loop_idle_s=loop_idle_s, draining=draining, now_s=self.now_s)

    def states(self) -> list[RankState]:
        return [record.state for record in self.roster.ranks]


def test_an_engine_goes_from_missing_to_ready() -> None:
    scene = Scene()
    assert scene.states() == [RankState.MISSING] * 3
    lease = scene.join(1).lease
    assert lease.rank == 1
    scene.roster.progress(lease, Phase.LOADING_WEIGHTS, 3, 9, now_s=1.0)
    record = scene.roster.ranks[1]
    assert (record.state, record.phase, record.phase_done, record.phase_total) == (
        RankState.JOINING,
        Phase.LOADING_WEIGHTS,
        3,
        9,
    )
    scene.ready(lease)
    record = scene.roster.ranks[1]
    assert (record.state, record.phase) == (RankState.READY, Phase.SERVING)
    assert record.offer is not None


def test_ready_may_follow_hello_at_once() -> None:
    scene = Scene(size=1)
    scene.serve()
    assert scene.states() == [RankState.READY]


def test_changes_are_told_once_and_in_order() -> None:
    scene = Scene(size=1)
    lease = scene.serve()
    scene.roster.leave(lease, "left", now_s=1.0)
    changes = scene.roster.take_changes()
    assert [change.after.state for change in changes] == [RankState.JOINING, RankState.READY, RankState.MISSING]
    assert scene.roster.take_changes() == []


def test_draining_is_told_by_heartbeats_and_can_be_taken_back() -> None:
    scene = Scene(size=1)
    lease = scene.serve()
    scene.beat(lease, draining=True)
    assert scene.states() == [RankState.DRAINING]
    scene.beat(lease, draining=False)
    assert scene.states() == [RankState.READY]


def test_a_heartbeat_that_changes_nothing_is_no_news() -> None:
    scene = Scene(size=1)
    lease = scene.serve()
    sequence = scene.roster.sequence
    scene.beat(lease)
    assert scene.roster.sequence == sequence


def test_goodbye_frees_the_rank_and_a_broken_stream_loses_it() -> None:
    scene = Scene()
    left, broken = scene.serve(0), scene.serve(1)
    scene.roster.leave(left, "left: SIGTERM", now_s=1.0)
    scene.roster.lose(broken, "the stream broke", now_s=1.0)
    assert scene.states() == [RankState.MISSING, RankState.LOST, RankState.MISSING]
    gone, lost = scene.roster.ranks[0], scene.roster.ranks[1]
    assert gone.engine is None
    assert gone.reason == "left: SIGTERM"
    assert lost.engine is not None
    assert lost.engine.host == "node1"


def test_a_silent_rank_is_lost_after_the_deadline_and_not_before() -> None:
    scene = Scene(size=2)
    silent, loud = scene.serve(0), scene.serve(1)
    scene.now_s = TIMEOUT_S
    scene.beat(loud)
    assert scene.roster.expire(TIMEOUT_S) == []
    assert [lease for lease, _ in scene.roster.expire(TIMEOUT_S + 0.1)] == [silent]
    assert scene.states() == [RankState.LOST, RankState.READY]
    assert "no heartbeat for 10.1 s" in scene.roster.ranks[0].reason


def test_a_joining_rank_is_lost_when_it_is_silent_or_not_ready_in_time() -> None:
    scene = Scene(size=2)
    slow = scene.join(0).lease
    scene.join(1)
    for now_s in range(1, 61, 5):
        scene.now_s = float(now_s)
        scene.beat(slow, loop_idle_s=99.0)  # a loop that has not started yet does not count
        scene.roster.expire(scene.now_s)
    assert scene.states() == [RankState.JOINING, RankState.LOST]
    scene.now_s = 60.5
    scene.beat(slow)
    scene.roster.expire(60.5)
    assert scene.states() == [RankState.LOST, RankState.LOST]
    assert scene.roster.ranks[0].reason == "not ready in time; it was starting"
    assert scene.roster.ranks[1].reason == "no heartbeat for 11.0 s; it was starting"


def test_a_hung_step_loop_makes_the_rank_lost_until_it_turns_again() -> None:
    scene = Scene(size=1)
    lease = scene.serve()
    scene.beat(lease, loop_idle_s=TIMEOUT_S)
    assert scene.states() == [RankState.READY]
    scene.beat(lease, loop_idle_s=10.5)
    assert scene.states() == [RankState.LOST]
    assert scene.roster.ranks[0].reason == "the step loop has not turned for 10.5 s"
    scene.beat(lease, loop_idle_s=0.1)
    assert scene.states() == [RankState.READY]
    assert scene.roster.ranks[0].reason == "the step loop turns again"


def test_a_hung_rank_keeps_its_place_until_its_restart_or_its_silence() -> None:
    scene = Scene(size=1)
    hung = scene.serve(incarnation=10)
    scene.beat(hung, loop_idle_s=11.0)
    with pytest.raises(Rejection, match="all 1 ranks are taken"):
        scene.join(None, pid=7)
    assert scene.join(0, incarnation=11).superseded == hung
    scene = Scene(size=1)
    hung = scene.serve()
    scene.beat(hung, loop_idle_s=11.0)
    assert [lease for lease, _ in scene.roster.expire(10.1)] == [hung]


def test_a_head_that_stood_still_blames_nobody() -> None:
    scene = Scene(size=1)
    scene.serve()
    scene.roster.excuse_silence(100.0)
    assert scene.roster.expire(100.0 + TIMEOUT_S) == []
    assert scene.states() == [RankState.READY]


def test_a_hung_rank_keeps_its_lease_over_a_head_that_stood_still() -> None:
    scene = Scene(size=1)
    hung = scene.serve()
    scene.beat(hung, loop_idle_s=11.0)
    scene.roster.excuse_silence(100.0)
    assert scene.roster.expire(100.0 + TIMEOUT_S) == []
    assert scene.roster.holds(hung)


def test_a_greater_incarnation_takes_over_a_rank_that_hangs() -> None:
    scene = Scene()
    old = scene.serve(0, incarnation=10)
    scene.beat(old, loop_idle_s=11.0)
    joined = scene.join(0, incarnation=11, pid=101)
    assert joined.superseded == old
    assert scene.states()[0] is RankState.JOINING
    with pytest.raises(LeaseEnded):
        scene.beat(old)
    scene.roster.lose(old, "late news of the old stream", now_s=1.0)
    scene.roster.leave(old, "late goodbye", now_s=1.0)
    assert scene.roster.holds(joined.lease)


def claim(scene: Scene, rank: int | None = 0, **changes: object) -> Rejection:
    """Another process asks for a held rank."""
    before = list(scene.roster.ranks)
    with pytest.raises(Rejection) as caught:
        scene.join(rank, **{"pid": 999, "host": "node2", "host_id": "h2", **changes})
    assert list(scene.roster.ranks) == before
    return caught.value


@pytest.mark.parametrize("incarnation", [9, 10, 11])
def test_a_holder_that_is_heard_keeps_its_rank_whoever_asks(incarnation: int) -> None:
    scene = Scene()
    lease = scene.serve(0, incarnation=10)
    first = claim(scene, incarnation=incarnation)
    assert (first.fault, first.reason) == (Fault.HELD, "RANK_HELD")
    assert "free within 10 s" in str(first)
    scene.now_s = 1.0
    scene.beat(lease)
    second = claim(scene, incarnation=incarnation)
    assert (second.fault, second.reason) == (Fault.TAKEN, "RANK_TAKEN")
    assert "node1 (pid 100)" in str(second)
    assert "node2 (pid 999)" in str(second)
    assert claim(scene, pid=998).fault is Fault.HELD, "every process asks for itself"
    assert scene.roster.holds(lease)


def test_a_holder_that_is_not_heard_any_more_loses_its_rank_to_who_asked() -> None:
    scene = Scene()
    scene.serve(0)
    for now_s in (1.0, 5.0, 9.9):
        scene.now_s = now_s
        assert claim(scene).fault is Fault.HELD
    scene.roster.expire(10.1)
    assert scene.join(0, pid=999, host="node2", host_id="h2").superseded is None


def test_a_head_that_stood_still_does_not_take_silence_for_life() -> None:
    scene = Scene()
    scene.serve(0)
    assert claim(scene).fault is Fault.HELD
    scene.now_s = 20.0
    scene.roster.excuse_silence(20.0)
    assert claim(scene).fault is Fault.HELD


def test_claims_end_with_the_lease_and_are_bounded() -> None:
    scene = Scene()
    lease = scene.serve(0)
    for pid in range(1000, 1200):
        assert claim(scene, pid=pid).fault is Fault.HELD
    scene.now_s = 1.0
    scene.beat(lease)
    assert claim(scene, pid=1199).fault is Fault.TAKEN
    assert claim(scene, pid=1000).fault is Fault.HELD, "the oldest are forgotten"
    scene.roster.lose(lease, "the stream broke", now_s=1.0)
    scene.serve(0, pid=5)
    assert claim(scene, pid=1199).fault is Fault.HELD, "of the new holder nothing is known"


def test_the_same_process_may_redial_before_its_broken_stream_is_noticed() -> None:
    scene = Scene()
    old = scene.serve(0)
    assert scene.join(0).superseded == old


@pytest.mark.parametrize("incarnation", [9, 10, 11])
def test_a_lost_rank_takes_whoever_comes(incarnation: int) -> None:
    """Clocks of two nodes may differ, and nobody holds a lost rank."""
    scene = Scene()
    scene.roster.lose(scene.serve(0, incarnation=10), "the stream broke", now_s=1.0)
    assert scene.join(0, incarnation=incarnation).superseded is None
    assert scene.states()[0] is RankState.JOINING


def test_any_rank_prefers_ranks_that_nobody_had() -> None:
    scene = Scene()
    scene.roster.lose(scene.serve(0), "the stream broke", now_s=1.0)
    assert [scene.join(None, pid=pid).lease.rank for pid in (201, 202, 203)] == [1, 2, 0]
    with pytest.raises(Rejection) as caught:
        scene.join(None, pid=204)
    assert caught.value.fault is Fault.FULL
    assert caught.value.reason == "NO_FREE_RANK"


def test_any_rank_gives_a_process_its_own_rank_back() -> None:
    scene = Scene()
    scene.join(None, pid=201)
    second = scene.join(None, pid=202)
    scene.roster.lose(second.lease, "the stream broke", now_s=1.0)
    assert scene.join(None, pid=202).lease.rank == second.lease.rank == 1


def test_ready_must_match_the_ranks_that_serve_and_only_those() -> None:
    scene = Scene()
    first = scene.serve(0)
    other = scene.join(1).lease
    before = scene.roster.ranks
    with pytest.raises(Rejection, match=r"model\.fingerprint"):
        scene.ready(other, fingerprint="beef")
    assert scene.roster.ranks == before
    scene.roster.leave(first, "left", now_s=1.0)
    scene.ready(other, fingerprint="beef")
    assert scene.states()[1] is RankState.READY


def test_frames_out_of_order_are_rejected_without_a_change() -> None:
    scene = Scene()
    lease = scene.serve(0)
    before = scene.roster.ranks
    with pytest.raises(Rejection, match="Ready comes once"):
        scene.ready(lease)
    with pytest.raises(Rejection, match="Progress comes before Ready"):
        scene.roster.progress(lease, Phase.WARMING_UP, 1, 2, now_s=1.0)
    assert scene.roster.ranks == before


def test_gateways_are_listed_while_they_watch_once_per_name() -> None:
    scene = Scene()
    sequence = scene.roster.sequence
    old = scene.roster.add_gateway(wire.GatewayEntry(name="g1", pid=1))
    new = scene.roster.add_gateway(wire.GatewayEntry(name="g1", pid=2))
    assert [entry.pid for entry in scene.roster.gateways] == [2]
    scene.roster.remove_gateway(old)
    assert [entry.pid for entry in scene.roster.gateways] == [2]
    scene.roster.remove_gateway(new)
    scene.roster.remove_gateway(new)
    assert scene.roster.gateways == ()
    assert scene.roster.sequence == sequence + 4


def test_a_deployment_has_at_least_one_rank() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        Roster(rules(data_parallel_size=0), heartbeat_timeout_s=1.0, now_s=0.0)


# Ranks that come and go


def test_engines_beyond_the_size_make_it_grow_up_to_the_limit() -> None:
    scene = Scene(1, most=3)
    scene.serve(0)
    for number in (1, 2):
        assert scene.join(None, pid=200 + number).lease.rank == number
    with pytest.raises(Rejection, match="raise the head's --max-data-parallel-size") as caught:
        scene.join(None, pid=300)
    assert caught.value.fault is Fault.FULL


def test_a_rank_of_its_own_makes_the_deployment_grow_so_far() -> None:
    scene = Scene(1, most=4)
    assert scene.join(2).lease.rank == 2
    assert scene.states() == [RankState.MISSING, RankState.MISSING, RankState.JOINING]
    with pytest.raises(Rejection, match="ranks 0 to 3"):
        scene.join(4)


def test_an_engine_for_any_rank_takes_a_lost_one_before_the_deployment_grows() -> None:
    scene = Scene(1, most=2)
    scene.roster.lose(scene.serve(0), "gone", now_s=1.0)
    assert scene.join(None, pid=200).lease.rank == 0


def test_last_ranks_that_leave_are_no_more_and_lost_ones_are_expected_back() -> None:
    scene = Scene(1, most=4)
    leases = [scene.serve(0), *(scene.serve(rank, pid=200 + rank) for rank in (1, 2, 3))]
    scene.roster.leave(leases[2], "SIGTERM", now_s=1.0)
    assert [state.value for state in scene.states()] == ["ready", "ready", "missing", "ready"], "one is behind it"
    scene.roster.lose(leases[3], "killed", now_s=1.0)
    assert len(scene.roster.ranks) == 4
    scene.roster.forget(3, "not wanted", now_s=2.0)
    assert [state.value for state in scene.states()] == ["ready", "ready"]
    assert not scene.roster.holds(leases[3])
    with pytest.raises(LeaseEnded, match="shrunk"):
        scene.beat(leases[3])
    scene.roster.leave(leases[0], "SIGTERM", now_s=3.0)
    scene.roster.leave(leases[1], "SIGTERM", now_s=3.0)
    assert scene.states() == [RankState.MISSING], "what the head was started with stays"


def test_a_new_size_shows_at_once_and_ends_with_the_engines() -> None:
    scene = Scene(2, most=4)
    leases = [scene.serve(0), scene.serve(1, pid=201)]
    sequence = scene.roster.sequence
    scene.roster.resize(4, now_s=1.0)
    assert scene.roster.sequence > sequence
    assert [record.reason for record in scene.roster.ranks[2:]] == ["to be started"] * 2
    scene.roster.resize(1, now_s=2.0)
    assert [state.value for state in scene.states()] == ["ready", "ready"], "held ranks stay until they leave"
    scene.roster.leave(leases[1], "retired", now_s=3.0)
    assert [state.value for state in scene.states()] == ["ready"]


def test_a_deployment_of_a_fixed_size_does_not_grow() -> None:
    scene = Scene(1)
    scene.serve(0)
    with pytest.raises(Rejection, match="all 1 ranks are taken"):
        scene.join(None, pid=200)


def test_silent_ranks_that_were_to_leave_are_no_more() -> None:
    scene = Scene()
    leases = [scene.serve(rank) for rank in range(3)]
    scene.roster.resize(1, now_s=0.0)
    for lease in leases[1:]:
        scene.roster.retire(lease)
    expired = scene.roster.expire(TIMEOUT_S + 1)
    assert [lease.rank for lease, _ in expired] == [0, 1, 2]
    assert scene.states() == [RankState.LOST]
