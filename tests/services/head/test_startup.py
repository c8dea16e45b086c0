"""What people read while ranks are missing."""

from __future__ import annotations

from services.head.roster import Phase, Roster
from services.head.startup import Outcome, Startup
from tests.services.head.factories import introduction, offer, rules


def roster() -> Roster:
    return Roster(rules(), heartbeat_timeout_s=10.0, now_s=0.0)


def startup(local_ranks: range | None = None) -> Startup:
    return Startup(ready_timeout_s=60.0, local_ranks=local_ranks, now_s=0.0)


def test_a_line_every_ten_seconds_names_each_rank_that_is_not_ready() -> None:
    ranks, start = roster(), startup(range(2))
    ready = ranks.join(introduction(rank=0), ready_deadline_s=60.0, now_s=1.0).lease
    ranks.ready(ready, offer(), now_s=2.0)
    loading = ranks.join(introduction(rank=1, host="node7"), ready_deadline_s=60.0, now_s=1.0).lease
    ranks.progress(loading, Phase.LOADING_WEIGHTS, 10, 272, now_s=2.0)
    assert start.poll(ranks.ranks, (), 9.9).line is None
    line = start.poll(ranks.ranks, (), 10.0).line
    assert line is not None
    assert "1 of 3 ranks ready" in line
    assert "rank 1 joining on node7: loading weights 10 of 272" in line
    assert "rank 2 missing, expected from another node" in line
    assert start.poll(ranks.ranks, (), 19.9).line is None
    assert start.poll(ranks.ranks, (), 20.0).line is not None


def test_engines_that_were_turned_away_are_named() -> None:
    line = startup(range(3)).poll(roster().ranks, ("node2 pid 7 for rank 1: dtype differs",), 10.0).line
    assert line is not None
    assert "rank 0 missing, expected on this node" in line
    assert "turned away: node2 pid 7 for rank 1: dtype differs" in line


def test_the_deadline_names_the_culprits() -> None:
    ranks, start = roster(), startup()
    lost = ranks.join(introduction(rank=1, host="node7"), ready_deadline_s=60.0, now_s=1.0).lease
    ranks.lose(lost, "the stream broke", now_s=2.0)
    assert start.poll(ranks.ranks, (), 59.9).outcome is Outcome.WAITING
    poll = start.poll(ranks.ranks, (), 60.0)
    assert poll.outcome is Outcome.EXPIRED
    assert poll.line is not None
    assert "not all ranks were ready within 60 s" in poll.line
    assert "rank 1 lost on node7 (the stream broke; it was starting)" in poll.line
    assert "rank 0 missing, expected from any node (no engine has registered)" in poll.line


def test_after_completion_a_lost_rank_does_not_matter() -> None:
    ranks, start = roster(), startup()
    leases = []
    for rank in range(3):
        leases.append(ranks.join(introduction(rank=rank, pid=rank), ready_deadline_s=60.0, now_s=1.0).lease)
        ranks.ready(leases[-1], offer(), now_s=5.0)
    poll = start.poll(ranks.ranks, (), 5.0)
    assert poll.outcome is Outcome.COMPLETED
    assert poll.line == "all 3 ranks are ready after 5.0 s"
    ranks.lose(leases[0], "the stream broke", now_s=6.0)
    assert start.poll(ranks.ranks, (), 999.0) == start.poll(ranks.ranks, (), 9999.0)
    assert start.poll(ranks.ranks, (), 999.0).outcome is Outcome.DONE
