"""The page in front of a running deployment of two ranks: chat, stop, drain, a killed engine.

With MUSTER_SCREENSHOTS=1 it also takes the pictures of the documentation, into docs/images: `make screenshots`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.talking import answers, ask
from tests.cluster.conftest import FLAGS
from tests.cluster.screenshots import Screenshots
from tests.support.browser import PHONE, Visit, chromium
from tests.support.cluster import Cluster
from tests.support.default_model import default_model_path
from tests.support.metric_names import Series
from tests.support.watching_files import OF_GROUPS, alerts, documented_metrics, panels

pytestmark = [pytest.mark.cluster, pytest.mark.model]

_PORTS = FLAGS[: FLAGS.index("--dtype")]
_LONG = "Tell me a very long story about a lighthouse, a storm and two hundred ships."


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def screenshots() -> Screenshots | None:
    wanted = os.environ.get("MUSTER_SCREENSHOTS") == "1"
    return Screenshots(Path(__file__).parents[2] / "docs" / "images") if wanted else None


def metric(cluster: Cluster, pattern: str) -> float:
    """The sum over all series whose line begins like this."""
    lines = httpx.get(f"{cluster.url}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(pattern, line))


def operate(cluster: Cluster, command: str, rank: int) -> None:
    arguments = [sys.executable, "-m", "services.cli", command, str(rank), "--head-target", cluster.head_target]
    subprocess.run(arguments, check=True, capture_output=True, timeout=60)


def badge(page: Page, rank: int) -> Locator:
    return page.locator(f"#ranks tr[data-rank='{rank}'] .badge")


def set_longest_answer(page: Page, tokens: str) -> None:
    page.locator("#parameters-button").click()
    page.get_by_label("Longest answer").fill(tokens)
    page.get_by_label("Close parameters").click()


def test_chat_and_watch(browser: Browser, screenshots: Screenshots | None) -> None:
    with Cluster(default_model_path(), "-dp", "2", "--num-blocks", "600", *_PORTS) as cluster:
        cluster.wait_until_ready()
        visit = Visit(browser, cluster.url)
        page = visit.page
        _answer_streams(page)
        _stop_reaches_the_engine(page, cluster)
        if screenshots is not None:
            screenshots.of_chat(visit)
            screenshots.of_load(visit, cluster)
        watching = visit.open("#/deployment")
        _drain_is_seen(watching, cluster)
        _death_is_seen(watching, cluster)
        if screenshots is not None:
            screenshots.of_error(visit, cluster)
            phone = Visit(browser, cluster.url, viewport=PHONE, has_touch=True, color_scheme="dark")
            screenshots.of_phone(phone)
            phone.close()
            phone.check()
        visit.close()
        visit.check()
        _dashboard_and_alerts_are_true(cluster)
        assert cluster.stop() == 0


def _answer_streams(page: Page) -> None:
    """Text is there while more comes; then its tokens are counted."""
    set_longest_answer(page, "60")
    ask(page, "What is gravity?")
    expect(answers(page).locator(".text")).to_have_text(re.compile(r"\w+"))
    expect(answers(page)).to_have_attribute("aria-busy", "false")
    expect(answers(page).locator(".facts")).to_have_text(re.compile(r"\d+ tokens .* tokens/s .* first after"))


def _stop_reaches_the_engine(page: Page, cluster: Cluster) -> None:
    set_longest_answer(page, "")
    page.get_by_role("button", name="New chat").click()
    ask(page, _LONG)
    expect(answers(page).locator(".text")).to_have_text(re.compile(r"\w+"))
    page.get_by_label("Stop", exact=True).click()
    expect(answers(page)).to_contain_text("stopped")
    cancelled = r'muster:request_cancelled_total\{phase="decode"\}'
    cluster.wait_for(lambda: metric(cluster, cancelled) == 1, "the request counts as cancelled")
    running = r"muster:num_requests_running\{"
    cluster.wait_for(lambda: metric(cluster, running) == 0, "no engine runs it any more")


def _drain_is_seen(page: Page, cluster: Cluster) -> None:
    expect(page.locator("#ranks tr")).to_have_count(2)
    for rank in (0, 1):
        expect(badge(page, rank)).to_have_text("ready")
    operate(cluster, "drain", 1)
    expect(badge(page, 1)).to_have_text("draining")
    expect(page.locator("#health")).to_have_text(re.compile("1/2"))
    operate(cluster, "undrain", 1)
    expect(badge(page, 1)).to_have_text("ready")


def _death_is_seen(page: Page, cluster: Cluster) -> None:
    """The rank is lost and comes back by itself; the page saw both, and the answer that it gave goes on."""
    tab = page.context.new_page()
    tab.goto(cluster.url)
    tab.get_by_role("button", name="New chat").click()
    set_longest_answer(tab, "150")
    ask(tab, _LONG)
    expect(answers(tab).locator(".text")).to_have_text(re.compile(r"\w+"))
    rank = 0 if metric(cluster, r'muster:num_requests_running\{dp_rank="0"\}') else 1
    cluster.engine(rank).send_signal(signal.SIGKILL)
    expect(page.locator("#happenings")).to_contain_text(re.compile(rf"Rank {rank}: ready → (lost|missing|joining)"))
    expect(answers(tab)).to_have_attribute("aria-busy", "false")
    expect(answers(tab).get_by_role("alert")).to_have_count(0)
    tab.close()
    expect(badge(page, rank)).to_have_text("ready")
    expect(page.locator("#happenings")).to_contain_text(re.compile(rf"Rank {rank}: \w+ → ready"))


def _dashboard_and_alerts_are_true(cluster: Cluster) -> None:
    """After all of the above, every kind of series is there, and those that are used or documented are among them."""
    url = f"{cluster.url}/v1/completions"
    refused = httpx.post(url, json={"prompt": "a", "structured_outputs": {"regex": "("}}, timeout=60)
    assert refused.status_code == 400
    text = httpx.get(f"{cluster.url}/metrics").text
    series = Series.of(text)
    used = {**{name: [expression] for name, expression in alerts().items()}, **panels()}
    wrong = {name: found for name, each in used.items() if (found := [s for e in each for s in series.complaints(e)])}
    assert not wrong
    types = re.findall(r"^# TYPE (muster:\w+) (\w+)$", text, re.MULTILINE)
    told = {name for name, _ in types if not name.endswith("_created")}
    assert told == set(documented_metrics())
    for name, labels in documented_metrics().items():
        if name in OF_GROUPS:
            assert name not in series.labels
            continue
        shown = series.labels[name if name in series.labels else f"{name}_bucket"]
        assert labels == set(shown) - {"le"}, name
