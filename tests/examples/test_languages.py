"""examples/: each language's client is built, runs against a real deployment and prints what its README says.

MUSTER_TEST_EXAMPLES names the languages that must run; others are skipped. What one needs of the system is installed by
`examples/build LANGUAGE`, as root, which `.ci/run` and `make nightly` call. Python and Node need nothing of the system.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from muster import v1 as wire

from services.rpc.channels import Dialer
from services.rpc.security import OPEN, Security
from tests.support.certificates import TestAuthority, write_tokens
from tests.support.cluster import Cluster
from tests.support.default_model import default_model_path
from tests.support.examples import BUILD_TIMEOUT_S, EXAMPLES, tools

LANGUAGES = ("python", "node", "go", "cpp", "java", "ruby")
MUST_RUN = os.environ.get("MUSTER_TEST_EXAMPLES", "python node").split()
TOKEN = "examples-0123456789abcdef"

pytestmark = [pytest.mark.cluster, pytest.mark.model]

# What every language prints, line by line.
_LOAD = r"load    snapshot \d+: (rank \d+ waiting \d+ running \d+(, )?)+"
EXPECTED = (
    *(_LOAD, _LOAD, _LOAD),
    r"chat    Gravity \S.*",
    r"chat    FINISH_REASON_LENGTH, 34 prompt tokens, 24 generated",
    r"tokens  rank 1: (\d+ ){8}= (['\"]).*\2",
    r"tokens  FINISH_REASON_LENGTH, 4 prompt tokens, 8 generated",
    r"error   INVALID_ARGUMENT: .*sampling\.temperature.*",
    r"error   reason INVALID_REQUEST, domain muster\.dev",
    r"error   field sampling\.temperature: is 9; must be between 0 and 2",
    r"cancel  CANCELLED after ([3-9]|\d\d+) tokens",
)


def languages() -> list[object]:
    reason = "MUSTER_TEST_EXAMPLES does not name it; see examples/build"
    return [
        language if language in MUST_RUN else pytest.param(language, marks=pytest.mark.skip(reason=reason))
        for language in LANGUAGES
    ]


@contextmanager
def deployment(security: Security = OPEN) -> Iterator[Cluster]:
    """Two ranks that serve and have reported their load."""
    flags = ("-dp", "2", "--port", "0", "--grpc-port", "0", "-dpp", "0", "--served-model-name", "SmolLM2-135M-Instruct")
    with Cluster(default_model_path(), *flags, *security.flags()) as cluster:
        cluster.wait_until_ready()

        def num_loads() -> int:
            with Dialer(security).dial_blocking(cluster.head_target) as channel:
                stub = wire.RendezvousServiceStub(channel)
                return len(stub.GetDeployment(wire.GetDeploymentRequest(), timeout=10).loads)

        cluster.wait_for(lambda: num_loads() == 2, "a load report of both ranks")
        yield cluster
        assert cluster.stop() == 0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with deployment() as cluster:
        yield cluster


def run(language: str, cluster: Cluster, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        [EXAMPLES / "run", language],
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
        env={
            **tools(),
            "PYTHON": sys.executable,
            "MUSTER_HEAD": cluster.head_target,
            "MUSTER_GATEWAY": cluster.grpc_target,
            "MUSTER_RANK": "1",
            **(environment or {}),
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(output: str) -> None:
    lines = output.splitlines()
    wrong = [
        f"{line!r} is not {expected!r}"
        for line, expected in zip(lines, EXPECTED, strict=False)
        if not re.fullmatch(expected, line.rstrip())
    ]
    assert not wrong, "\n".join([*wrong, "all of it:", output])
    assert len(lines) == len(EXPECTED), output


@pytest.mark.parametrize("language", languages())
def test_a_client_watches_chats_generates_reads_an_error_and_cancels(language: str, cluster: Cluster) -> None:
    check(run(language, cluster))


@pytest.mark.parametrize("language", LANGUAGES)
def test_its_readme_shows_what_it_prints(language: str) -> None:
    page = (EXAMPLES / language / "README.md").read_text()
    (shown,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    check(shown)


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Mapping[str, str]]]:
    """A deployment behind mutual TLS and a token, and the environment of a client that may come in."""
    directory = tmp_path_factory.mktemp("doors")
    authority = TestAuthority(directory / "authority")
    node, caller = authority.node("node"), authority.node("caller")
    environment = {
        "MUSTER_TOKEN": TOKEN,
        "MUSTER_TLS_CA": str(authority.certificate),
        "MUSTER_TLS_CERT": str(caller.tls_cert),
        "MUSTER_TLS_KEY": str(caller.tls_key),
    }
    with deployment(write_tokens(directory / "tokens", TOKEN, node)) as cluster:
        yield cluster, environment


@pytest.mark.skipif("MUSTER_NIGHTLY" not in os.environ, reason="runs with `make nightly`")
@pytest.mark.parametrize("language", languages())
def test_a_client_comes_in_through_tls_and_token(language: str, doors: tuple[Cluster, Mapping[str, str]]) -> None:
    cluster, environment = doors
    check(run(language, cluster, environment))
