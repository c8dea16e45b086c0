"""What dies, and who notices."""

from __future__ import annotations

import shutil
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.cluster.answers import StreamedAnswer, complete
from tests.cluster.conftest import FLAGS, Launch
from tests.support.cluster import Cluster

pytestmark = pytest.mark.cluster

NUM_TOKENS = 400


def test_a_killed_engine_is_replaced_and_its_answers_go_on(launch: Launch) -> None:
    cluster = launch("-dp", "2")
    cluster.wait_until_ready()
    expected = complete(cluster, num_tokens=NUM_TOKENS, rank=0).json()["choices"][0]["text"]
    with ExitStack() as asking:
        pinned = [asking.enter_context(StreamedAnswer(cluster, num_tokens=NUM_TOKENS, rank=0)) for _ in range(2)]
        free = [asking.enter_context(StreamedAnswer(cluster, num_tokens=NUM_TOKENS)) for _ in range(4)]
        for answer in (*pinned, *free):
            assert answer.started.wait(30)
        cluster.engine(1).kill()
        for answer in (*pinned, *free):
            answer.join()
    # The other rank's clients do not notice; the lost rank's are continued there, token for token.
    assert [(answer.error, answer.finish_reason) for answer in (*pinned, *free)] == [(None, "length")] * 6
    assert {answer.text for answer in (*pinned, *free)} == {expected}
    cluster.wait_for_output(r"engine 1 ended \(killed by SIGKILL\)")
    cluster.wait_for(lambda: complete(cluster, rank=1).status_code == 200, "an answer of rank 1")
    assert cluster.stop() == 0


def test_a_killed_head_is_replaced_while_serving_goes_on(launch: Launch) -> None:
    cluster = launch("-dp", "2")
    cluster.wait_until_ready()
    target = cluster.head_target
    (head,) = cluster.children("head")
    incarnation = cluster.status()["roster"]["headIncarnation"]
    with StreamedAnswer(cluster, num_tokens=NUM_TOKENS) as answer:
        assert answer.started.wait(30)
        head.kill()
        assert complete(cluster).status_code == 200
    assert (answer.error, answer.finish_reason) == (None, "length")
    cluster.wait_for_output(r"head ended \(killed by SIGKILL\)")
    cluster.wait_for(lambda: len(cluster.children("head")) == 1, "the head's restart")
    cluster.wait_for(lambda: _answers(target), "the head on its old port")

    def rebuilt() -> bool:
        roster = cluster.status()["roster"]
        states = [entry["state"] for entry in roster["ranks"]]
        return states == ["RANK_STATE_READY"] * 2 and roster["headIncarnation"] != incarnation

    cluster.wait_for(rebuilt, "both ranks registered again")
    assert cluster.stop() == 0


def _answers(target: str) -> bool:
    host, _, port = target.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def test_a_hung_engine_is_replaced(launch: Launch) -> None:
    cluster = launch("-dp", "2", "--heartbeat-interval", "500ms", "--heartbeat-timeout", "1.5s")
    cluster.wait_until_ready()
    hung = cluster.engine(1)
    hung.suspend()
    cluster.wait_for_output(r"rank 1 \(pid \d+\) hangs")
    assert complete(cluster).status_code == 200
    cluster.wait_for(lambda: complete(cluster, rank=1).status_code == 200, "an answer of rank 1")
    assert cluster.engine(1).pid != hung.pid
    assert cluster.stop() == 0


def test_an_engine_that_hangs_while_it_loads_is_replaced(launch: Launch) -> None:
    cluster = launch("-dp", "2", "--heartbeat-interval", "500ms", "--heartbeat-timeout", "1.5s")
    cluster.wait_for_output(r"rank 1 on \S+ \(pid \d+\): starting")
    hung = cluster.engine(1)
    hung.suspend()
    cluster.wait_until_ready()
    assert cluster.engine(1).pid != hung.pid
    assert cluster.stop() == 0


def test_a_rank_that_never_comes_is_named_and_everything_stops(launch: Launch) -> None:
    cluster = launch("-dp", "2", "-dpl", "1", "--ready-timeout", "5")
    assert httpx.get(f"{cluster.url}/readyz", timeout=10).status_code == 503
    assert cluster.wait() == 1
    last = cluster.output.splitlines()[-1]
    assert "rank 1 missing" in last
    assert "within 5 s" in last


def test_an_engine_that_does_not_fit_is_turned_away_and_the_right_one_joins(launch: Launch) -> None:
    head = launch("-dp", "2", "-dpl", "1")
    port = head.head_target.rpartition(":")[2]
    node = ("-dp", "2", "-dpl", "1", "-dpr", "1", "--headless", "-dpa", "127.0.0.1", "-dpp", port)
    wrong = launch(*node, "--block-size", "32")
    assert wrong.wait() == 1
    last = wrong.output.splitlines()[-1]
    assert "engine 1 was rejected" in last
    assert "--block-size" in last
    right = launch(*node)
    head.wait_until_ready()
    right.wait_for_output("all ranks of this node serve")
    assert complete(head, rank=1).status_code == 200
    assert right.stop() == 0
    assert complete(head, rank=0).status_code == 200
    assert head.stop() == 0


def test_a_checkpoint_that_cannot_be_read_stops_everything_with_its_reason(launch: Launch) -> None:
    cluster = launch("--max-model-len", "100000000", "--num-blocks", "2")
    assert cluster.wait() == 2  # usage: caught before anything was started
    cluster = launch("--device", "cuda")
    assert cluster.wait() == 1
    last = cluster.output.splitlines()[-1]
    assert "engine 0 failed" in last
    assert "cuda" in last.lower()


def test_a_tokenizer_that_cannot_be_built_stops_everything_with_its_reason(tiny_model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_model, broken)
    (broken / "tokenizer.json").write_text("{}")
    with Cluster(broken, *FLAGS) as cluster:
        assert cluster.wait() == 1
    last = cluster.output.splitlines()[-1]
    assert "cannot serve: rank 0 gave no usable tokenizer: tokenizer.json cannot be used" in last


def test_a_taken_port_names_its_flag(launch: Launch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = str(taken.getsockname()[1])
        for flag in ("--port", "--grpc-port", "--data-parallel-rpc-port"):
            cluster = launch(flag, port)
            assert cluster.wait() == 1
            assert f"127.0.0.1:{port} is in use" in cluster.output
            assert flag in cluster.output


def test_a_killed_launcher_leaves_no_orphans(launch: Launch) -> None:
    cluster = launch("-dp", "2")
    cluster.wait_for(lambda: len(cluster.children("engine")) == 2, "two engines")
    cluster.wait_for(lambda: len(cluster.children("gateway")) == 1, "a gateway")
    cluster.send(signal.SIGKILL)
    cluster.wait_for_end(10)
    assert cluster.survivors() == []


def test_sigterm_lets_running_answers_finish(launch: Launch) -> None:
    cluster = launch("-dp", "2")
    cluster.wait_until_ready()
    url = cluster.url
    with ExitStack() as asking:
        answers = [
            asking.enter_context(StreamedAnswer(cluster, num_tokens=NUM_TOKENS, prompt=f"Number {number}"))
            for number in range(4)
        ]
        for answer in answers:
            assert answer.started.wait(30)
        assert any(answer.running for answer in answers)
        engines = [cluster.engine(rank) for rank in (0, 1)]
        for engine in engines:
            engine.suspend()  # so that the answers are still running while we look
        cluster.send(signal.SIGTERM)
        cluster.wait_for_output("running answers may finish")
        cluster.wait_for(lambda: httpx.get(f"{url}/readyz", timeout=5).status_code == 503, "503 from /readyz")
        refused = complete(cluster)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "draining"
        for engine in engines:
            engine.resume()
        for answer in answers:
            answer.join()
    assert [(answer.error, answer.finish_reason) for answer in answers] == [(None, "length")] * 4
    assert cluster.wait() == 0


def test_a_second_signal_stops_at_once(launch: Launch) -> None:
    cluster = launch("--shutdown-timeout", "10m")
    cluster.wait_until_ready()
    with StreamedAnswer(cluster, num_tokens=900) as answer:
        assert answer.started.wait(30)
        cluster.engine(0).suspend()  # now the answer cannot finish
        cluster.send(signal.SIGINT)
        cluster.wait_for_output("Ctrl-C again stops at once")
        cluster.send(signal.SIGINT)
        assert cluster.wait() == 0
    assert answer.error is not None
