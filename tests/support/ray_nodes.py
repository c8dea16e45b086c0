"""A Ray cluster on this machine: each node is a raylet of its own, on an address of its own of the loopback network.

    with RayNodes() as nodes:
        nodes.start("one")
        two = nodes.start("two")
        ...
        two.raylet.kill()

Needs the extra `ray`; `unavailable` says whether it is there.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil

_START_S = 150.0
# Whoever joins this cluster has to show the token, and no token of the user's is looked for or written.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}
# What Ray tries to have, and what would be a part of the machine's memory without being said.
_OBJECT_STORE_BYTES = 80_000_000

_LIST_RESERVED = """
import json, sys
import ray
from ray.util.placement_group import placement_group_table
ray.init(address=sys.argv[1], log_to_driver=False)
groups = [group["name"] for group in placement_group_table().values() if group["state"] != "REMOVED"]
actors = [actor["ActorClassName"] for actor in ray._private.state.actors().values() if actor["State"] != "DEAD"]
used = ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0.0)
print(json.dumps([*groups, *actors, *([f"{used:g} CPUs"] if used else [])]))
"""


def unavailable() -> str | None:
    """Why there can be no Ray here, or None."""
    if importlib.util.find_spec("ray") is None:
        return "the Python module ray is not installed: pip install -c .ci/constraints.txt -e '.[cpu,dev,ray]'"
    return None


class RayNode:
    """`ray start --block` and everything it started; the first one has the cluster's head."""

    def __init__(self, name: str, host: str, num_cpus: int, log: Path, *where: str) -> None:
        self.name = name
        self.host = host
        self._log = log
        self._seen: dict[int, psutil.Process] = {}
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        command += ["--node-name", name, "--node-ip-address", host, "--num-cpus", str(num_cpus), *where]
        command += ["--object-store-memory", str(_OBJECT_STORE_BYTES)]
        with log.open("w") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **ENVIRONMENT},
            )

    def wait_until_started(self) -> None:
        deadline = time.monotonic() + _START_S
        while "will now block" not in self._log.read_text():
            assert self._process.poll() is None, f"ray start ended:\n{self._log.read_text()}"
            assert time.monotonic() < deadline, f"no Ray within {_START_S:g} s:\n{self._log.read_text()}"
            time.sleep(0.05)

    @property
    def raylet(self) -> psutil.Process:
        """What manages the node. Without it `ray start` ends, and with both everything on the node."""
        (found,) = [process for process in self.processes() if _title(process).split(" ")[0].endswith("/raylet")]
        return found

    def is_gone(self) -> bool:
        return not self.actors() and not self.engines() and self._process.poll() is not None

    def close(self) -> None:
        """Everything that is left, whatever it is."""
        for process in self.processes():
            _kill(process)
        self._process.wait()
        psutil.wait_procs(list(self._seen.values()), timeout=10)

    def processes(self) -> list[psutil.Process]:
        """Those that live, also orphans that were seen once."""
        with suppress(psutil.Error):
            for process in (own := psutil.Process(self._process.pid), *own.children(recursive=True)):
                self._seen.setdefault(process.pid, process)
        return [process for process in self._seen.values() if process.is_running()]

    def actors(self) -> list[psutil.Process]:
        """The processes of Ray that run an engine each, in the order of their start."""
        found = [process for process in self.processes() if _title(process).startswith("ray::EngineActor")]
        return sorted(found, key=lambda process: (process.create_time(), process.pid))

    def engines(self) -> list[psutil.Process]:
        return [process for process in self.processes() if "services.cli engine" in _title(process)]


class RayNodes:
    """The cluster. Leaving the block ends all of it."""

    def __init__(self, num_cpus: int = 2) -> None:
        self._num_cpus = num_cpus
        self._base = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # Ray's sockets are below it: a short path
        self._nodes: list[RayNode] = []
        self.address = ""  # what `--ray-address` takes, once a node runs

    def __enter__(self) -> RayNodes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in reversed(self._nodes):
            node.close()
        if kind is not None:
            for node in self._nodes:
                print(node.name, node._log.read_text())
        shutil.rmtree(self._base, ignore_errors=True)

    def start(self, name: str) -> RayNode:
        """One more node; the first is the head. Ray takes 127.0.0.1 for an outer address, so that none has it."""
        number = len(self._nodes)
        host, log = f"127.0.0.{2 + number}", self._base / f"{number}.log"
        if self.address:
            where = ["--address", self.address]
        else:
            where = ["--head", "--port", "0", "--include-dashboard", "false", "--dashboard-port", str(_free_port(host))]
            where += ["--ray-client-server-port", str(_free_port(host)), "--temp-dir", str(self._base / "t")]
        node = RayNode(name, host, self._num_cpus, log, *where)
        self._nodes.append(node)
        node.wait_until_started()
        if not self.address:
            found = re.search(r"ray start --address='?([0-9.:]+)", log.read_text())
            assert found is not None, log.read_text()
            self.address = found[1]
        return node

    def reserved(self) -> list[str]:
        """What is left in the cluster of who has used it: placement groups, actors, and CPUs in use."""
        done = subprocess.run(
            [sys.executable, "-c", _LIST_RESERVED, self.address],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, **ENVIRONMENT},
        )
        assert done.returncode == 0, done.stderr
        found: list[str] = json.loads(done.stdout.splitlines()[-1])
        return found


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.Error):
        process.kill()


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
