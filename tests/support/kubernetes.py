"""What Kubernetes does with the manifests, in network namespaces: pods with addresses, probes, endpoints, rollouts.

The commands, environment variables, probes, grace periods and orders are those of the rendered manifests. Not played
are images, users, limits and policies. A Service's name leads to its pods by /etc/hosts, and endpoints change a while
after the pods, as they do in a cluster.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.nodes import Node

RENDERED = Path(__file__).parents[2] / "deploy" / "kubernetes" / "rendered"
_START_S = 90.0
# From a pod's change until kube-proxy on every node has heard of it.
ENDPOINTS_LAG_S = 1.0
# Puts the pod's names into place of the machine's, for this process and its children alone.
_WITH_HOSTS = 'mount --bind "$0" /etc/hosts && exec "$@"'

Manifest = dict[str, Any]


def manifests(example: str) -> dict[tuple[str, str], Manifest]:
    """The rendered objects of an example, by kind and name."""
    documents = yaml.safe_load_all((RENDERED / f"{example}.yaml").read_text())
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


class Pod:
    """One pod of a workload, with the kubelet that watches it. Only the first container is run."""

    def __init__(
        self,
        name: str,
        node: Node,
        workload: Manifest,
        *,
        index: int = 0,
        adapt: Callable[[list[str]], list[str]],
        hosts: Path,
        log: Path,
    ) -> None:
        """`adapt` replaces what the manifests take from volumes and images; the arguments come after `muster`."""
        self.name = name
        self.node = node
        self.is_ready = False
        self.is_terminating = False
        self.complaints: list[str] = []  # of the liveness probe, which would have restarted it
        spec = workload["spec"]["template"]["spec"]
        self._container = spec["containers"][0]
        self._grace_s = float(spec["terminationGracePeriodSeconds"]) if "terminationGracePeriodSeconds" in spec else 30
        self._facts = {"status.podIP": node.address, "metadata.name": name}
        self._facts["metadata.labels['apps.kubernetes.io/pod-index']"] = str(index)
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1", **self._variables()}
        command = [
            sys.executable,
            "-m",
            "services.cli",
            *adapt([self._expanded(arg) for arg in self._container["args"]]),
        ]
        self._command = node.command("unshare", "--mount", "--", "sh", "-c", _WITH_HOSTS, str(hosts), *command)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()
        self._kubelet = threading.Thread(target=self._watch, name=f"kubelet of {name}")

    @property
    def log(self) -> str:
        return self._log.read_text()

    def start(self) -> Pod:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )
        self._kubelet.start()
        return self

    def wait_until_ready(self) -> Pod:
        deadline = time.monotonic() + _START_S
        while not self.is_ready:
            assert self._running.poll() is None, f"{self.name} ended with {self._running.returncode}:\n{self.log}"
            assert time.monotonic() < deadline, f"{self.name} is not ready after {_START_S:g} s:\n{self.log}"
            time.sleep(0.02)
        return self

    def terminate(self) -> int:
        """SIGTERM, and SIGKILL when the grace period is over; the exit code."""
        self.is_terminating = True
        self._running.terminate()
        try:
            return self._running.wait(self._grace_s)
        except subprocess.TimeoutExpired:
            return self._end(signal.SIGKILL)
        finally:
            self._stop_watching()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._end(signal.SIGKILL)
        self._stop_watching()

    def probe(self, kind: str) -> bool:
        """One look as the manifest's probe of that kind."""
        probe = self._container[kind]
        limit_s = float(probe.get("timeoutSeconds", 1))
        if "grpc" in probe:
            return self._check(probe["grpc"]["port"], probe["grpc"].get("service", ""), limit_s)
        port = self._port(probe["httpGet"]["port"])
        url = f"http://{self.node.address}:{port}{probe['httpGet']['path']}"
        with suppress(httpx.TransportError):
            return self.node.call(lambda: httpx.get(url, timeout=limit_s)).is_success
        return False

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    def _end(self, number: signal.Signals) -> int:
        self._running.send_signal(number)
        return self._running.wait(10)

    def _stop_watching(self) -> None:
        self._ended.set()
        if self._kubelet.is_alive():
            self._kubelet.join()

    def _check(self, port: int, service: str, limit_s: float) -> bool:
        command = ["grpcurl", "-plaintext", "-max-time", str(limit_s), "-d", json.dumps({"service": service})]
        command += [f"{self.node.address}:{port}", "grpc.health.v1.Health/Check"]
        # It asks by reflection; the health port has none, so that it gets the packaged description.
        described = Path(__file__).parent / "health.proto"
        command[1:1] = ["-import-path", str(described.parent), "-proto", described.name]
        found = Path(sys.executable).with_name("grpcurl")
        command[0] = str(found)
        done = subprocess.run(self.node.command(*command), capture_output=True, text=True, check=False)
        return done.returncode == 0 and '"SERVING"' in done.stdout

    def _watch(self) -> None:
        """Start-up, then readiness and liveness, each at its period."""
        failures = 0
        while not self.probe("startupProbe"):
            failures += 1
            if failures >= self._container["startupProbe"]["failureThreshold"]:
                self.complaints.append("it did not start in time")
            if self._ended.wait(min(0.25, self._container["startupProbe"]["periodSeconds"])):
                return
        threads = [
            threading.Thread(target=self._repeat, args=(kind, heard), name=f"{kind} of {self.name}")
            for kind, heard in (("readinessProbe", self._note_ready), ("livenessProbe", self._note_alive))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _repeat(self, kind: str, heard: Callable[[bool], None]) -> None:
        probe, failures = self._container[kind], 0
        while not self._ended.is_set():
            succeeded = self.probe(kind)
            failures = 0 if succeeded else failures + 1
            if succeeded or failures >= probe.get("failureThreshold", 3):
                heard(succeeded)
            self._ended.wait(probe["periodSeconds"])

    def _note_ready(self, ready: bool) -> None:
        self.is_ready = ready

    def _note_alive(self, alive: bool) -> None:
        if not alive and not self._ended.is_set() and self._running.poll() is None:
            self.complaints.append("it does not live")

    def _variables(self) -> dict[str, str]:
        given = {}
        for variable in self._container.get("env", ()):
            if "value" in variable:
                given[variable["name"]] = variable["value"]
            elif "fieldRef" in variable["valueFrom"]:
                given[variable["name"]] = self._facts[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            else:
                assert variable["valueFrom"]["secretKeyRef"]["optional"], "there are no secrets as variables here"
        return given

    def _expanded(self, argument: str) -> str:
        """`$(NAME)` is a variable of the container; one that is not defined stays, as in Kubernetes."""
        variables = self._variables()
        return re.sub(r"\$\((\w+)\)", lambda found: variables.get(found[1], found[0]), argument)

    def _port(self, port: int | str) -> int:
        if isinstance(port, int):
            return port
        return next(int(each["containerPort"]) for each in self._container["ports"] if each["name"] == port)


class Endpoints:
    """The pods behind a Service as clients on other nodes see them: late."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._pods: list[Pod] = []
        self._shown: Sequence[str] = ()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="endpoints")
        self._thread.start()

    def add(self, pod: Pod) -> None:
        self._pods.append(pod)

    def url(self) -> str:
        """That of any pod that is ready and not terminating, as far as is known."""
        while not (shown := self._shown):
            assert not self._closed.is_set()
            time.sleep(0.02)
        return random.choice(shown)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _follow(self) -> None:
        history: list[tuple[float, Sequence[str]]] = []
        while not self._closed.wait(0.02):
            now = [
                f"http://{pod.node.address}:{self._port}"
                for pod in self._pods
                if pod.is_ready and not pod.is_terminating
            ]
            history.append((time.monotonic(), now))
            while history and history[0][0] <= time.monotonic() - ENDPOINTS_LAG_S:
                self._shown = history.pop(0)[1]


def hosts_file(path: Path, names: Mapping[str, str]) -> Path:
    """A file of names and their addresses, besides localhost."""
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in names.items())]
    path.write_text("\n".join(lines) + "\n")
    return path
