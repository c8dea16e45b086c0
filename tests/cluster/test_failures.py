"""What dies, and who notices."""

from __future__ import annotations

import shutil
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import grpc
import httpx
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.head.server import rank_health_name
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
        pinned.append(asking.enter_context(StreamedAnswer(cluster, num_tokens=NUM_TOKENS, rank=1)))
        free = [asking.enter_context(StreamedAnswer(cluster, num_tokens=NUM_TOKENS)) for _ in range(4)]
        for answer in (*pinned, *free):
            assert answer.started.wait(30)
        cluster.engine(1).kill()
        for answer in (*pinned, *free):
            answer.join()
    # The other rank's clients do not notice; the lost rank's are continued there, token for token, and the one that
    # names the lost rank goes on when that is back.
    assert [(answer.error, answer.finish_reason) for answer in (*pinned, *free)] == [(None, "length")] * 7
    assert {answer.text for answer in (*pinned, *free)} == {expected}
    cluster.wait_for_output(r"engine 1 ended \(killed by SIGKILL\)")
    cluster.wait_for(lambda: complete(cluster, rank=1).status_code == 200, "an answer of rank 1")
    assert cluster.stop() == 0


def test_a_killed_head_is_replaced_while_serving_goes_on(launch: Launch) -> None:
    """T33: noticed at once, serving goes on without it, and its successor learns everything anew."""
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
    """T30: readiness and health name the rank whose steps stand still, the other serves on, and it is replaced."""
    cluster = launch("-dp", "2", "--heartbeat-interval", "500ms", "--heartbeat-timeout", "2s")
    cluster.wait_until_ready()
    assert rank_health(cluster) == ["SERVING", "SERVING"]
    hung = cluster.engine(1)
    expected = complete(cluster, num_tokens=NUM_TOKENS, rank=0).json()["choices"][0]["text"]
    with ExitStack() as asking:
        answers = [asking.enter_context(StreamedAnswer(cluster, num_tokens=NUM_TOKENS)) for _ in range(6)]
        for answer in answers:
            assert answer.started.wait(30)
        hung.suspend()
        for answer in answers:
            answer.join()
    # Some were read from the hung one: their streams were silent, not broken.
    assert [(answer.error, answer.finish_reason) for answer in answers] == [(None, "length")] * 6
    assert {answer.text for answer in answers} == {expected}
    cluster.wait_for(lambda: cluster.state(1) == "LOST", "a rank that is LOST")
    assert rank_health(cluster) == ["SERVING", "NOT_SERVING"]
    cluster.wait_for(lambda: states_told_by_readyz(cluster) == ["ready", "lost"], "/readyz naming the lost rank")
    assert complete(cluster).status_code == 200
    cluster.wait_for_output(r"rank 1 \(pid \d+\) hangs")
    assert complete(cluster).status_code == 200
    cluster.wait_for(lambda: complete(cluster, rank=1).status_code == 200, "an answer of rank 1")
    assert cluster.engine(1).pid != hung.pid
    assert cluster.stop() == 0


def rank_health(cluster: Cluster) -> list[str]:
    """What grpc.health.v1 on the head's port says of each rank."""
    with grpc.insecure_channel(cluster.head_target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        requests = [health_pb2.HealthCheckRequest(service=rank_health_name(rank)) for rank in range(2)]
        answers = [stub.Check(request, timeout=30) for request in requests]
    return [health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status) for answer in answers]


def states_told_by_readyz(cluster: Cluster) -> list[str]:
    answer = httpx.get(f"{cluster.url}/readyz", timeout=10)
    assert answer.status_code == 200, "one rank serves"
    return [rank["state"] for rank in answer.json()["ranks"]]


def test_an_engine_that_hangs_while_it_loads_is_replaced(launch: Launch) -> None:
    cluster = launch("-dp", "2", "--heartbeat-interval", "500ms", "--heartbeat-timeout", "1.5s")
    cluster.wait_for_output(r"rank 1 on \S+ \(pid \d+\): starting")
    hung = cluster.engine(1)
    hung.suspend()
    cluster.wait_until_ready()
    assert cluster.engine(1).pid != hung.pid
    assert cluster.stop() == 0


def test_an_engine_that_hung_while_its_head_was_replaced_is_replaced_too(launch: Launch) -> None:
    """The new head never gave it a lease, so that none can end."""
    cluster = launch(
        "-dp", "2", "--heartbeat-interval", "500ms", "--heartbeat-timeout", "2s", "--shutdown-timeout", "1s"
    )
    cluster.wait_until_ready()
    hung = cluster.engine(1)
    hung.suspend()
    (head,) = cluster.children("head")
    head.kill()
    cluster.wait_for_output(rf"WARNING engine \(pid {hung.pid}\) hangs: it runs, and has not come back to the head")
    cluster.wait_for(lambda: complete(cluster, rank=1).status_code == 200, "an answer of rank 1")
    assert cluster.engine(1).pid != hung.pid
    assert cluster.stop() == 0


def test_an_engine_that_does_not_fit_is_turned_away_and_the_right_one_joins(launch: Launch) -> None:
    """T6, T7: refused at once with each field, the head's value, its own and the fix; what may differ is a warning."""
    head = launch("-dp", "2", "-dpl", "1")
    port = head.head_target.rpartition(":")[2]
    node = ("-dp", "2", "-dpl", "1", "-dpr", "1", "--headless", "-dpa", "127.0.0.1", "-dpp", port)
    wrong = launch(*node, "--dtype", "bfloat16", "--max-model-len", "512")
    wrong_size = launch("-dp", "3", *node[2:])
    assert wrong.wait() == 1
    last = wrong.output.splitlines()[-1]
    assert "engine 1 was rejected" in last
    assert "the head has 'float32', the engine has 'bfloat16'; give the same --dtype on every node" in last
    assert "the head has '1024', the engine has '512'; give the same --max-model-len on every node" in last
    assert wrong_size.wait() == 1
    assert "the head has 2, the engine has 3; give the same --data-parallel-size" in wrong_size.output
    right = launch(*node, "--max-num-seqs", "8")
    head.wait_until_ready()
    head.wait_for_output(r"WARNING rank 1 .*max-num-seqs '8', the head '64'.*--max-num-seqs on every node")
    right.wait_for_output("all ranks of this node serve")
    assert complete(head, rank=1).status_code == 200
    assert right.stop() == 0
    assert complete(head, rank=0).status_code == 200
    assert head.stop() == 0


def test_what_the_flags_alone_rule_out_starts_nothing(launch: Launch) -> None:
    cluster = launch("--max-model-len", "100000000", "--num-blocks", "2")
    assert cluster.wait() == 2
    assert "engine" not in cluster.output


def test_a_checkpoint_that_cannot_be_read_stops_everything_with_its_reason(tiny_model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_model, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with Cluster(broken, *FLAGS) as cluster:
        assert cluster.wait() == 1
    last = cluster.output.splitlines()[-1]
    assert "engine 0 failed" in last
    assert "model.safetensors" in last


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


def test_a_frozen_node_is_lost_and_one_without_a_head_does_not_outlive_it_for_long(launch: Launch) -> None:
    """T28, T29: each side notices that the other is gone, and a probe of the headless node's rank fails meanwhile."""
    head = launch("-dp", "2", "-dpl", "1", "--heartbeat-interval", "500ms", "--heartbeat-timeout", "2s")
    port = head.head_target.rpartition(":")[2]
    node = launch("-dp", "2", "-dpl", "1", "-dpr", "1", "--headless", "-dpa", "127.0.0.1", "-dpp", port,
                  "--head-timeout", "1s")  # fmt: skip
    head.wait_until_ready()
    node.wait_for_output("all ranks of this node serve")
    still = [psutil.Process(node.pid), *node.children("engine")]
    for process in still:
        process.suspend()
    head.wait_for(lambda: head.state(1) == "LOST", "a rank that is LOST")
    assert rank_health(head) == ["SERVING", "NOT_SERVING"]
    assert complete(head).status_code == 200
    for process in still:
        process.resume()
    head.wait_for(lambda: head.state(1) == "READY", "the rank's return")
    head.send(signal.SIGKILL)  # everything on the head's node dies
    head.wait_for_end(10)
    assert node.wait() == 1
    assert "engine 1 gave up" in node.output.splitlines()[-1]
    assert "--head-timeout 1 s" in node.output
