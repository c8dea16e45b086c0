"""One scripted API per test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.support.rest_api import RestApi


@pytest.fixture
def api() -> RestApi:
    return RestApi()


@pytest.fixture
async def client(api: RestApi) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as client:
        yield client
