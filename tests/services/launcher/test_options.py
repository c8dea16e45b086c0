from __future__ import annotations

import pytest

from services.launcher.combinations import FlagCombinationError, check
from tests.services.launcher.serve_options import serve_options


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "-dp 4",
        "-dp 4 -dpl 0 -dpa 10.0.0.1",
        "-dp 4 -dpl 2",
        "-dp 4 -dpl 2 --api-server-count 3",
        "-dp 4 -dpl 2 -dpr 2 --headless -dpa 10.0.0.1",
        "-dp 4 -dpl 4 -dpr 0 --headless -dpa 10.0.0.1 --api-server-count 0",
        "-dp 4 -dpl 2 --data-parallel-hybrid-lb",
        "-dp 4 -dpl 2 -dpr 2 -dph -dpa 10.0.0.1 --engine-host 10.0.0.2 -asc 2",
        "-dp 2 --data-parallel-rank 0",
        "-dp 2 -dpl 1 -dpa 10.0.0.1 --engine-host 10.0.0.1 --engine-advertise-host n1",
        "-dp 2 -dpn 1 -dpe -dpl 1 -dpa 10.0.0.1",
        "--port 0 --grpc-port 0 --data-parallel-rpc-port 0",
        "--num-blocks 64 --block-size 16 --max-model-len 1024",
        "-dp 2 --max-data-parallel-size 4",
        "-dp 2 -dpl 0 -dpa h --max-data-parallel-size 2",
    ],
)
def test_sensible_combinations_pass(flags: str) -> None:
    check(serve_options(flags))


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("-dp 2 -dpl 3", ["--data-parallel-size-local 3", "--data-parallel-size 2"]),
        ("-dp 4 -dpl 2 -dpr 3 --headless -dpa h", ["--data-parallel-start-rank 3", "--data-parallel-size 4", "rank 4"]),
        ("-dp 4 -dpr 4 -dpl 0 --headless -dpa h", ["--headless", "--data-parallel-size-local 0"]),
        ("-dp 4 -dpl 2 -dpr 2", ["--data-parallel-start-rank 2", "--headless"]),
        ("-dp 4 -dpl 2 -dph -dpe -dpn 1", ["--data-parallel-rank 1", "--data-parallel-hybrid-lb"]),
        ("-dp 4 -dpl 2 -dph -dpe", ["--data-parallel-external-lb", "--data-parallel-hybrid-lb"]),
        ("-dp 4 -dpl 2 -dph --headless -dpa h", ["--headless", "--data-parallel-hybrid-lb"]),
        ("-dp 4 -dph", ["--data-parallel-hybrid-lb", "--data-parallel-size-local", "--data-parallel-size"]),
        ("-dp 4 -dpl 0 -dph", ["--data-parallel-hybrid-lb", "--data-parallel-size-local 0"]),
        ("-dp 4 -dpl 4 -dph", ["--data-parallel-hybrid-lb", "--data-parallel-size-local 4", "--data-parallel-size 4"]),
        ("-dp 4 -dpl 2 -dpr 3 -dph -dpa h", ["--data-parallel-start-rank 3", "--data-parallel-size 4"]),
        ("-dp 4 -dpl 2 -dpr 2 -dph", ["first rank is 2", "--data-parallel-address"]),
        ("-dp 4 -dpl 2 -dpr 2 -dph -dpa h -dpp 0", ["first rank is 2", "--data-parallel-rpc-port 0"]),
        ("-dp 4 -dpl 2 -dph --api-server-count 0", ["--api-server-count 0"]),
        ("-dp 4 -dpe", ["--data-parallel-external-lb", "--data-parallel-rank", "0 to 3"]),
        ("-dp 4 -dpn 1 --headless -dpa h", ["--headless", "--data-parallel-rank 1", "--data-parallel-start-rank 1"]),
        ("-dpn 0", ["--data-parallel-rank 0", "--data-parallel-size 1"]),
        ("-dp 2 -dpn 2 -dpa h", ["--data-parallel-rank 2", "--data-parallel-size 2", "0 to 1"]),
        ("-dp 4 -dpn 1 -dpl 2 -dpa h", ["--data-parallel-rank 1", "--data-parallel-size-local 2", "hybrid-lb"]),
        ("-dp 4 -dpn 1 -dpr 1 -dpa h", ["--data-parallel-rank 1", "--data-parallel-start-rank 1"]),
        ("-dp 4 -dpn 1", ["first rank is 1", "--data-parallel-address"]),
        ("-dp 4 -dpn 1 -dpa h --data-parallel-bind-address ::", ["first rank is 1", "--data-parallel-bind-address ::"]),
        ("--quantization int8 --device cuda", ["--quantization int8", "--device cuda"]),
        ("--headless", ["--headless", "--data-parallel-address"]),
        ("--headless -dpa h --api-server-count 2", ["--headless", "--api-server-count 2"]),
        ("--headless -dpa h -dpp 0", ["--headless", "--data-parallel-rpc-port 0"]),
        ("--headless -dpa h --data-parallel-bind-address ::", ["--headless", "--data-parallel-bind-address ::"]),
        ("--api-server-count 0", ["--api-server-count 0", "--headless"]),
        ("--engine-host 10.0.0.2", ["--engine-host 10.0.0.2", "--headless", "127.0.0.1", "--data-parallel-address"]),
        ("--engine-advertise-host n2", ["--engine-advertise-host n2", "--headless", "--data-parallel-address"]),
        ("-dp 2 -dpl 0 -dpa h --engine-host ::", ["--engine-host ::", "--data-parallel-size-local 0"]),
        ("-dp 4 --max-data-parallel-size 3", ["--max-data-parallel-size 3", "--data-parallel-size 4"]),
        ("-dp 4 -dpl 2 -dph --max-data-parallel-size 8", ["--max-data-parallel-size 8", "--data-parallel-hybrid-lb"]),
        ("-dp 4 -dpl 2 --headless -dpa h --max-data-parallel-size 8", ["--max-data-parallel-size 8", "--headless"]),
        (
            "-dp 2 --max-data-parallel-size 4 --enable-expert-parallel",
            ["--max-data-parallel-size 4", "--enable-expert-"],
        ),
        ("-dp 2 --shrink-expert-group-after 5", ["--shrink-expert-group-after 5", "without --enable-expert-parallel"]),
        (
            "-dp 2 -dpl 1 --headless -dpa h -ep --shrink-expert-group-after 5",
            ["--shrink-expert-group-after 5", "on the head's node"],
        ),
        ("--port 8001", ["--port", "--grpc-port", "8001"]),
        ("--port 29550", ["--port", "--data-parallel-rpc-port", "29550"]),
        ("--grpc-port 29550", ["--grpc-port", "--data-parallel-rpc-port", "29550"]),
        ("--heartbeat-interval 8", ["--heartbeat-timeout 10", "--heartbeat-interval 8"]),
        ("--num-blocks 9 --kv-cache-memory 1GiB", ["--num-blocks 9", "--kv-cache-memory"]),
        ("--max-num-seqs 600", ["--max-num-batched-tokens 512", "--max-num-seqs 600"]),
        ("--num-blocks 8 --max-model-len 129", ["--num-blocks 8", "--block-size 16", "--max-model-len 129"]),
    ],
)
def test_contradictions_name_flags_and_values(flags: str, named: list[str]) -> None:
    with pytest.raises(FlagCombinationError) as caught:
        check(serve_options(flags))
    assert [name for name in named if name not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("flags", "ranks"),
    [
        ("-dp 3", (0, 1, 2)),
        ("-dp 3 -dpl 1", (0,)),
        ("-dp 3 -dpl 0", ()),
        ("-dp 4 -dpl 2 -dpr 2 --headless -dpa h", (2, 3)),
        ("-dp 4 -dpl 2 --headless -dpa h", (None, None)),
        ("-dp 2 --headless -dpa h", (0, 1)),
        ("-dp 4 -dpl 2 -dpr 2 -dph -dpa h", (2, 3)),
        ("-dp 4 -dpn 3 -dpa h", (3,)),
    ],
)
def test_ranks_of_this_node(flags: str, ranks: tuple[int | None, ...]) -> None:
    assert serve_options(flags).local_ranks == ranks


@pytest.mark.parametrize(
    ("flags", "runs_head", "served"),
    [
        ("-dp 4 -dpl 2", True, None),
        ("-dp 4 -dpl 2 -dph", True, range(2)),
        ("-dp 4 -dpl 2 -dpr 2 -dph -dpa h", False, range(2, 4)),
        ("-dp 4 -dpn 0", True, range(1)),
        ("-dp 4 -dpn 3 -dpe -dpa h", False, range(3, 4)),
        ("-dp 4 -dpl 2 -dpr 2 --headless -dpa h", False, None),
    ],
)
def test_scope_of_this_nodes_gateways(flags: str, runs_head: bool, served: range | None) -> None:
    options = serve_options(flags)
    assert (options.runs_head, options.gateway_ranks) == (runs_head, served)
