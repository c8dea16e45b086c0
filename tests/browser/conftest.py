"""One browser for all tests, a profile and a scripted server for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser

from tests.support.background_api import BackgroundApi
from tests.support.browser import Visit, chromium
from tests.support.rest_api import RestApi

Visiting = Callable[..., Visit]


# Playwright's event loop lives in this thread until it ends: tests of other folders need the thread for their own.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def api() -> RestApi:
    return RestApi()


@pytest.fixture
def server(api: RestApi) -> Iterator[BackgroundApi]:
    with BackgroundApi(api) as server:
        yield server


@pytest.fixture
def visiting(browser: Browser, server: BackgroundApi) -> Iterator[Visiting]:
    """Opens the page in a fresh profile; at the end, none may have done what it must not."""
    with ExitStack() as closing:
        visits: list[Visit] = []

        def visit(**options: object) -> Visit:
            visits.append(Visit(browser, server.url, **options))  # type: ignore[arg-type]
            closing.callback(visits[-1].close)
            return visits[-1]

        yield visit
        for each in visits:
            each.check()


@pytest.fixture
def visit(visiting: Visiting) -> Visit:
    return visiting()
