from __future__ import annotations

from muster import v1 as wire

from services.launcher.progress import ProgressLines, bars, state_text


def joining(rank: int, phase: wire.EnginePhase.ValueType, done: int = 0, total: int = 0) -> wire.RankEntry:
    return wire.RankEntry(
        rank=rank,
        state=wire.RANK_STATE_JOINING,
        phase=phase,
        phase_done=done,
        phase_total=total,
        host="node1",
        pid=7,
        incarnation=1,
    )


READY = wire.RankEntry(rank=0, state=wire.RANK_STATE_READY, host="node1", pid=7, incarnation=1)


def test_bars_fill_with_the_weights_and_vanish_when_ready() -> None:
    half = joining(1, wire.ENGINE_PHASE_LOADING_WEIGHTS, 50, 100)
    fitting = joining(2, wire.ENGINE_PHASE_FITTING_CACHE, 0, 1)
    shown = bars([READY, half, fitting])
    assert [line.count("=") for line in shown] == [12, 24]
    assert "loading weights 50/100" in shown[0]
    assert shown[1].endswith("fitting the KV cache")
    assert bars([READY]) == []


def test_many_ranks_do_not_fill_the_terminal() -> None:
    shown = bars([joining(rank, wire.ENGINE_PHASE_STARTING) for rank in range(100)])
    assert len(shown) == 9
    assert shown[-1].strip() == "and 92 more"


def test_a_log_gets_a_line_per_phase_not_per_tensor() -> None:
    lines = ProgressLines()
    missing = wire.RankEntry(rank=0, state=wire.RANK_STATE_MISSING)
    assert lines.news([missing]) == []  # nobody is there yet: no news
    loading = [joining(0, wire.ENGINE_PHASE_LOADING_WEIGHTS, done, 9) for done in range(3)]
    assert [lines.news([entry]) for entry in loading] == [["rank 0 on node1 (pid 7): loading weights"], [], []]
    assert lines.news([READY]) == ["rank 0 on node1 (pid 7): ready"]
    lost = wire.RankEntry(
        rank=0, state=wire.RANK_STATE_LOST, host="node1", pid=7, incarnation=1, reason="the stream broke"
    )
    assert lines.news([lost]) == ["rank 0 on node1 (pid 7): lost: the stream broke"]
    assert lines.news([lost]) == []
    restarted = joining(0, wire.ENGINE_PHASE_STARTING)
    restarted.incarnation = 2
    assert lines.news([restarted]) == ["rank 0 on node1 (pid 7): starting"]


def test_states_in_words() -> None:
    assert state_text(joining(0, wire.ENGINE_PHASE_WARMING_UP)) == "warming up"
    assert state_text(wire.RankEntry(state=wire.RANK_STATE_MISSING)) == "not there yet"
