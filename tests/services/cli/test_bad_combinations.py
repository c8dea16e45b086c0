"""Every bad combination of flags that is known of vLLM, line by line, and what `muster serve` makes of it.

The lines are those of the reference's section 2.2; each is refused before anything is started, with the flags, their
values and the fix, or is no mistake here. What only shows between nodes is in tests/cluster/test_starred.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.main import main
from services.launcher.combinations import check
from tests.services.launcher.serve_options import serve_options

REFUSED = [
    ("multi-port with external or hybrid", "--data-parallel-multi-port-external-lb -dpe",
     ["--data-parallel-multi-port-external-lb:", "--data-parallel-rank"]),
    ("external with hybrid", "-dp 4 -dpl 2 -dph -dpe",
     ["--data-parallel-external-lb", "--data-parallel-hybrid-lb", "leave"]),
    ("headless with API servers", "--headless -dpa h -asc 2",
     ["--headless", "--api-server-count 2", "leave"]),
    ("headless with hybrid", "-dp 4 -dpl 2 -dpa h --headless -dph",
     ["--headless", "--data-parallel-hybrid-lb", "leave"]),
    ("headless with the smg router", "--headless -dpa h --smg",
     ["--headless", "--smg", "leave"]),
    ("headless without local ranks", "-dp 4 -dpl 0 -dpa h --headless",
     ["--headless", "--data-parallel-size-local 0", "1 or more"]),
    ("hybrid without a local size", "-dp 4 -dph",
     ["--data-parallel-hybrid-lb", "--data-parallel-size-local", "say how many"]),
    ("external without a rank", "-dp 4 -dpe",
     ["--data-parallel-external-lb", "--data-parallel-rank", "0 to 3"]),
    ("external with another local size than 1", "-dp 4 -dpn 1 -dpl 2 -dpa h",
     ["--data-parallel-rank 1", "--data-parallel-size-local 2", "leave"]),
    ("several nodes for one rank, with Ray", "--nnodes 2 --data-parallel-backend ray",
     ["--nnodes 2:", "--data-parallel-size-local"]),
    ("nodes that do not divide the world", "--nnodes 3 -dp 2",
     ["--nnodes 3:", "--data-parallel-address"]),
    ("a node's rank out of range", "--node-rank 5 -dp 2",
     ["--node-rank 5:", "--data-parallel-address"]),
    ("external with a rank that only nodes could tell", "-dpe --nnodes 3 -dp 2",
     ["--nnodes 3:", "--data-parallel-address"]),
    ("more local ranks than ranks", "-dp 2 -dpl 3",
     ["--data-parallel-size-local 3", "--data-parallel-size 2", "raise"]),
    ("a rank out of range", "-dp 2 -dpn 2 -dpa h",
     ["--data-parallel-rank 2", "--data-parallel-size 2", "0 to 1"]),
    ("a first rank out of range", "-dp 4 -dpl 2 -dpr 3 --headless -dpa h",
     ["--data-parallel-start-rank 3", "--data-parallel-size-local 2", "--data-parallel-size 4", "lower"]),
    ("external with one rank", "-dpn 0",
     ["--data-parallel-rank 0", "--data-parallel-size 1", "leave the flag out"]),
    ("fault tolerance without external balancing", "-dp 2 --enable-fault-tolerance",
     ["--enable-fault-tolerance:", "--max-rank-losses"]),
    ("elastic experts without their balancer", "-dp 2 --enable-elastic-ep",
     ["--enable-elastic-ep:", "--data-parallel-size"]),
    ("a node with later ranks that is not headless", "-dp 4 -dpl 2 -dpr 2",
     ["--data-parallel-start-rank 2", "--headless"]),
    ("microbatch thresholds below their number", "--ubatch-size 4 --dbo-decode-token-threshold 2",
     ["--ubatch-size 4:", "leave it out"]),
    ("the head's port is the HTTP port", "--port 29550",
     ["--port", "--data-parallel-rpc-port", "29550", "each its own"]),
    ("the head's port is the gRPC port", "--grpc-port 29550",
     ["--grpc-port", "--data-parallel-rpc-port", "29550"]),
    ("a headless node without an address", "-dp 2 -dpl 1 --headless",
     ["--headless", "--data-parallel-address", "give"]),
    ("an address that cannot be resolved", "-dp 2 -dpl 1 --headless -dpa no-such-host.invalid",
     ["'no-such-host.invalid'", "--data-parallel-address"]),
    ("a head at an address of another machine", "-dp 2 -dpl 1 -dpa 192.0.2.1",
     ["192.0.2.1", "--data-parallel-address", "not an address of this host"]),
    ("spread experts with kernels for dense models", "-dp 2 -ep --kernels native",
     ["--enable-expert-parallel", "--kernels native", "leave one"]),
    ("spread experts over nodes with TLS", "-dp 2 -dpl 1 -ep -dpa h --headless --tls-cert c --tls-key k",
     ["--enable-expert-parallel", "--tls-cert c", "cannot encrypt", "one node"]),
    ("tensor parallelism", "-tp 2",
     ["-tp 2:", "--data-parallel-size"]),
]  # fmt: skip
ALLOWED = [
    # Ranks of a dense model compute alone, and still one roster, one `muster status` and global ranks are worth having.
    ("external with a dense model", "-dp 2 -dpn 1 -dpa h"),
    ("the head's port chosen by the system", "-dpp 0"),
    # Each of its processes is a rank: `muster run-batch -- MODEL -dp 2`, OfflineRunner(data_parallel_size=2).
    ("several ranks offline", "-dp 2"),
]


@pytest.mark.parametrize(("flags", "named"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_is_refused_before_anything_starts(
    flags: str, named: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").touch()  # a model as far as flags are concerned: addresses are tried when there is one
    assert main(["serve", str(tmp_path), *flags.split()]) in {1, 2}
    told = capsys.readouterr()
    assert told.out == ""
    assert [name for name in named if name not in told.err] == []


@pytest.mark.parametrize("flags", [case[1] for case in ALLOWED], ids=[case[0] for case in ALLOWED])
def test_is_no_mistake_here(flags: str) -> None:
    check(serve_options(flags))
