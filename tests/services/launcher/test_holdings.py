"""Where a node's engines listen, beside their Unix sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.launcher import devices
from services.launcher.devices import Assignment, DeviceAssignmentError
from services.launcher.holdings import Holdings
from services.rpc.listening import ListenError, is_loopback
from tests.services.launcher.serve_options import serve_options

PORTS = "--port 0 --grpc-port 0 --data-parallel-rpc-port 0"


def engine_host(flags: str, runtime_dir: Path) -> str:
    options = serve_options(f"{flags} --runtime-dir {runtime_dir}")
    with Holdings(options, Path("/models/tiny"), ("tiny",)) as holdings:
        return holdings.places.engine_host


@pytest.mark.parametrize(
    ("flags", "host"),
    [
        (f"-dp 2 {PORTS}", "127.0.0.1"),
        (f"-dp 2 --host 0.0.0.0 {PORTS}", "127.0.0.1"),  # the front is open, the deployment is not
        (f"-dp 2 -dpa localhost {PORTS}", "127.0.0.1"),
        (f"-dp 2 -dpl 1 --data-parallel-bind-address 0.0.0.0 {PORTS}", "0.0.0.0"),
        (f"-dp 2 -dpl 1 --data-parallel-bind-address :: -dpa n1 {PORTS}", "::"),
        (f"-dp 2 -dpl 1 --data-parallel-bind-address 0.0.0.0 --engine-host 127.0.0.2 {PORTS}", "127.0.0.2"),
        ("--headless -dp 2 -dpl 1 -dpr 1 -dpa 127.0.0.1", "127.0.0.1"),
        ("--headless -dp 2 -dpl 1 -dpr 1 -dpa [::1]", "::1"),
        ("--headless -dp 2 -dpl 1 -dpr 1 -dpa 127.0.0.1 --engine-host 10.0.0.9", "10.0.0.9"),
    ],
)
def test_engines_listen_beyond_loopback_only_in_a_deployment_of_several_nodes(
    flags: str, host: str, tmp_path: Path
) -> None:
    assert engine_host(flags, tmp_path) == host


def test_a_head_that_has_no_address_is_named(tmp_path: Path) -> None:
    with pytest.raises(ListenError, match=r"cannot resolve 'no\.such\.host\.invalid' given by --data-parallel-address"):
        engine_host("--headless -dp 2 -dpl 1 -dpr 1 -dpa no.such.host.invalid", tmp_path)


def test_auto_quantises_on_a_cpu_and_names_the_gpus_that_are_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = serve_options(f"-dp 2 --quantization int8 {PORTS} --runtime-dir {tmp_path}")
    assert options.device == "auto"

    def assigned(assignment: Assignment) -> Assignment | None:
        monkeypatch.setattr(devices, "assign", lambda *given, **found: assignment)
        with Holdings(options, Path("/models/tiny"), ("tiny",)) as holdings:
            return holdings.places.assignment

    assert assigned(Assignment("cpu")) == Assignment("cpu")
    with pytest.raises(DeviceAssignmentError, match=r"--quantization int8 with --device auto.*\(0, 1\).*--device cpu"):
        assigned(Assignment("cuda", ("0", "1")))
    with pytest.raises(DeviceAssignmentError, match=r"--quantization int8 .* on the Ray cluster's GPUs"):
        assigned(Assignment("cuda"))  # as Ray does, which shows each actor its own


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "[fd00::1]", "node1", ""])
def test_beyond_loopback(host: str) -> None:
    assert not is_loopback(host)
