"""docs/grpcurl.md: every command runs against a real deployment and prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from muster import v1 as wire

from tests.support.cluster import Cluster
from tests.support.default_model import default_model_path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "grpcurl.md"
BLOCK = re.compile(r"```sh( doors)?(?: exit=(\d+))?\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
SERVE = re.compile(r"`muster serve (--tls-cert [^`]*)`")
ROOT = PAGE.parents[1]

pytestmark = [pytest.mark.cluster, pytest.mark.model]


@dataclass(frozen=True)
class Example:
    behind_doors: bool  # for the deployment with TLS and tokens, in the folder where these lie
    exit_code: int
    script: str
    lines: tuple[str, ...]


def examples() -> list[Example]:
    page = PAGE.read_text()
    found = [
        Example(bool(doors), int(exit_code or 0), script, tuple(line.strip() for line in output.splitlines()))
        for doors, exit_code, script, output in BLOCK.findall(page)
    ]
    assert len(found) == page.count("```sh"), "a command of the page is not followed by its output"
    return found


@dataclass
class Deployments:
    """Those of the page, each started when the first of its commands is run."""

    folder: Path
    stack: ExitStack
    open: Cluster | None = None
    guarded: Cluster | None = None

    def of(self, example: Example) -> Cluster | None:
        """None: the commands that make the certificates, before there is a deployment with them."""
        if not example.behind_doors:
            self.open = self.open or self._start("-dp", "2")
            return self.open
        if not (self.folder / "certs").exists():
            return None
        if self.guarded is None:
            (flags,) = SERVE.findall(PAGE.read_text())
            names = flags.replace("certs/", f"{self.folder}/certs/").replace(
                "file tokens", f"file {self.folder}/tokens"
            )
            self.guarded = self._start(*names.split())
        return self.guarded

    def _start(self, *flags: str) -> Cluster:
        name = ["--served-model-name", "SmolLM2-135M-Instruct"]
        ports = ["--port", "0", "--grpc-port", "0", "-dpp", "0"]
        cluster = self.stack.enter_context(Cluster(default_model_path(), *flags, *ports, *name))
        cluster.wait_until_ready()
        if "-dp" in flags:
            cluster.wait_for(lambda: num_loads(cluster) == 2, "a load report of both ranks")
        self.stack.callback(cluster.stop)
        return cluster


@pytest.fixture(scope="module")
def deployments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployments]:
    with ExitStack() as stack:
        yield Deployments(tmp_path_factory.mktemp("page"), stack)


def num_loads(cluster: Cluster) -> int:
    with grpc.insecure_channel(cluster.head_target) as channel:
        answer = wire.RendezvousServiceStub(channel).GetDeployment(wire.GetDeploymentRequest(), timeout=10)
    return len(answer.loads)


def on_its_ports(script: str, cluster: Cluster) -> str:
    """The page's default ports become those of the test's deployment."""
    script = script.replace("http://127.0.0.1:8000", cluster.url)
    script = script.replace("127.0.0.1:8001", cluster.grpc_target).replace("127.0.0.1:29550", cluster.head_target)
    return script.replace("muster status", f"muster status --head-target {cluster.head_target}")


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.script.splitlines()[-1].strip()[-60:])
def test_the_page_tells_the_truth(example: Example, deployments: Deployments) -> None:
    tools = Path(sys.executable).parent
    cluster = deployments.of(example)
    done = subprocess.run(
        ["bash", "-c", example.script if cluster is None else on_its_ports(example.script, cluster)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=deployments.folder if example.behind_doors else ROOT,
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"},
    )
    output = done.stdout + done.stderr
    assert done.returncode == example.exit_code, output
    missing = [line for line in example.lines if line.rstrip("[{").strip() not in output]
    assert not missing, f"{missing} not in:\n{output}"
