"""Nodes on one machine: network namespaces with addresses of their own, a switch between them, cables to cut.

    with Nodes("head", "left") as nodes:
        subprocess.Popen(nodes["left"].command("muster", "serve", …, "--data-parallel-address", nodes["head"].address))
        nodes["left"].cut()

A node has its own loopback, one network card, and nothing else of this machine's network: the switch is a bridge in a
namespace of its own, so that nothing here can clash with real addresses or with another run. Leaving the block ends
every process of every node and removes the namespaces. Names carry the pid of their run; what a killed run left is
removed by the next one.

Needs root and iproute2. `unavailable` says what is missing.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")

_PREFIX = "muster-test"
_NAMESPACES = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_ROOT = Path(__file__).parents[2]
_ENDING_S = 10.0
IPV4 = ipaddress.ip_network("10.77.0.0/24")
IPV6 = ipaddress.ip_network("fd77::/64")


def unavailable() -> str | None:
    """Why there can be no nodes here; None when there can."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces need root"
    for command, package in (("ip", "iproute2"), ("bridge", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(command) is None:
            return f"missing: {command} (Debian package {package})"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "missing: /dev/net/tun"
    name = f"{_PREFIX}-{os.getpid()}-probe"
    probe = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        return f"no network namespace can be made: {probe.stderr.strip()}"
    _ip("netns", "delete", name)
    return None


class Node:
    """One machine of the deployment. `address` is what other nodes reach it by, without brackets."""

    def __init__(self, name: str, run: str, number: int, *, ipv6: bool) -> None:
        network = IPV6 if ipv6 else IPV4
        self.name = name
        self.address = str(network[number])
        self._namespace = f"{run}-{name}"
        self._switch = f"{run}-switch"
        self._port = f"port{number}"  # of the switch
        self._number = number
        self._cable: subprocess.Popen[str] | None = None
        _ip("netns", "add", self._namespace)
        self._in_node("link", "set", "lo", "up")
        self._in_switch("link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", self._namespace)
        self._in_switch("link", "set", self._port, "master", "bridge", "up")
        nodad = ("nodad",) if ipv6 else ()  # duplicate address detection takes seconds, and there are none
        self._in_node("address", "add", f"{self.address}/{network.prefixlen}", "dev", "eth0", *nodad)
        self._in_node("link", "set", "eth0", "up")

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs `arguments` in this node, as the same process."""
        return ["nsenter", f"--net={_NAMESPACES / self._namespace}", "--", *arguments]

    def enter(self) -> None:
        """Takes the calling thread into this node for good: its sockets are the node's. For threads of a test."""
        enter = ctypes.CDLL(None, use_errno=True).setns
        descriptor = os.open(_NAMESPACES / self._namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if enter(descriptor, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"cannot enter {self._namespace}")
        finally:
            os.close(descriptor)

    def call(self, function: Callable[[], T]) -> T:
        """What `function` returns when a thread in this node calls it."""
        found: list[T] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                self.enter()
                found.append(function())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=work, name=f"in {self.name}")
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        return found[0]

    def cut(self) -> None:
        """Pulls the cable: the card loses its carrier."""
        self._in_switch("link", "set", self._port, "down")

    def silence(self) -> None:
        """Drops every frame without a word: cards keep their carrier, and nobody gets a FIN or RST."""
        self._set_port_state("disabled")

    def mend(self) -> None:
        """Takes back `cut`, `silence` and `worsen`."""
        if self._cable is not None:
            self._in_switch("link", "set", self._port, "master", "bridge")
            self._end_cable()
            self._in_switch("link", "delete", f"side{self._number}")
        self._in_switch("link", "set", self._port, "up")
        # The carrier is noticed a little later, and until then the kernel refuses: "Network is down".
        deadline = time.monotonic() + 10
        while True:
            try:
                return self._set_port_state("forwarding")
            except AssertionError as error:
                if "Network is down" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def worsen(self, *, delay_ms: float, jitter_ms: float, loss_percent: float) -> None:
        """Holds back every frame, in both directions, and loses some."""
        side, near, far = (f"{part}{self._number}" for part in ("side", "near", "far"))
        command = [sys.executable, "-m", "tests.support.bad_cable", near, far]
        self._cable = subprocess.Popen(
            ["nsenter", f"--net={_NAMESPACES / self._switch}", "--", *command]
            + [str(value) for value in (delay_ms, jitter_ms, loss_percent)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
        )
        assert self._cable.stdout is not None
        assert self._cable.stdout.readline() == "ready\n", "the bad cable could not be made"
        self._in_switch("link", "add", side, "type", "bridge")
        self._in_switch("link", "set", side, "up")
        self._in_switch("link", "set", near, "master", side, "up")
        self._in_switch("link", "set", far, "master", "bridge", "up")
        self._in_switch("link", "set", self._port, "master", side)

    def pids(self) -> list[int]:
        """The processes of this node."""
        return [int(pid) for pid in _ip("netns", "pids", self._namespace).split()]

    def send(self, number: signal.Signals) -> None:
        """SIGKILL is the end of all of the node's processes, SIGSTOP and SIGCONT freeze and thaw them."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self) -> None:
        self._end_cable()
        _remove(self._namespace)

    def _end_cable(self) -> None:
        if self._cable is not None:
            self._cable.kill()
            self._cable.wait()
            assert self._cable.stdout is not None
            self._cable.stdout.close()
            self._cable = None

    def _set_port_state(self, state: str) -> None:
        _call("bridge", "-netns", self._switch, "link", "set", "dev", self._port, "state", state)

    def _in_node(self, *arguments: str) -> None:
        _ip("-netns", self._namespace, *arguments)

    def _in_switch(self, *arguments: str) -> None:
        _ip("-netns", self._switch, *arguments)


class Nodes:
    """The nodes of one test, by name, all on one switch."""

    def __init__(self, *names: str, ipv6: bool = False) -> None:
        remove_leftovers()
        self._run = f"{_PREFIX}-{os.getpid()}-{time.monotonic_ns() % 1_000_000}"
        self._switch = f"{self._run}-switch"
        self._nodes: dict[str, Node] = {}
        self._names = names
        self._ipv6 = ipv6

    def __enter__(self) -> Nodes:
        try:
            _ip("netns", "add", self._switch)
            _ip("-netns", self._switch, "link", "add", "bridge", "type", "bridge")
            _ip("-netns", self._switch, "link", "set", "bridge", "up")
            for number, name in enumerate(self._names, start=1):
                self._nodes[name] = Node(name, self._run, number, ipv6=self._ipv6)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def __getitem__(self, name: str) -> Node:
        return self._nodes[name]

    def _remove(self) -> None:
        for node in self._nodes.values():
            node.close()
        for name in (*(f"{self._run}-{name}" for name in self._names), self._switch):
            if (_NAMESPACES / name).exists():  # a node that was only half made
                _remove(name)


def remove_leftovers() -> None:
    """Removes the namespaces, and ends the processes, of runs that were killed."""
    for path in _NAMESPACES.glob(f"{_PREFIX}-*"):
        pid = path.name.removeprefix(f"{_PREFIX}-").partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            _remove(path.name)


def _remove(namespace: str) -> None:
    deadline = time.monotonic() + _ENDING_S
    while pids := _ip("netns", "pids", namespace).split():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        assert time.monotonic() < deadline, f"processes of {namespace} cannot be ended: {pids}"
        time.sleep(0.02)
    _ip("netns", "delete", namespace)


def _ip(*arguments: str) -> str:
    return _call("ip", *arguments)


def _call(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout
