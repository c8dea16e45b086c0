"""Watching the deployment in a browser; a real one is in tests/cluster/test_page.py."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.conftest import Visiting
from tests.support.background_api import BackgroundApi
from tests.support.scripted_deployment import ready_rank, sample


def cells(page: Page, rank: int) -> str:
    return page.locator(f"#ranks tr[data-rank='{rank}']").inner_text()


def test_ranks_tiles_and_plots(visiting: Visiting) -> None:
    page = visiting().open("#/deployment")
    expect(page.locator("#ranks tr")).to_have_count(2)
    expect(page.locator("#deployment-title")).to_have_text("tiny")
    tiles = page.locator("#tiles .tile strong")
    expect(tiles).to_have_text(["2/2", "200", "40", "4", "25 %", "50 %"])
    expect(page.locator("#plots canvas")).to_have_count(4)
    expect(page.locator("#plots .u-legend").first).to_contain_text("rank 1")
    drawn = page.locator("#plots canvas").first.evaluate(
        "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(value => value !== 0)"
    )
    assert drawn


def test_changes_are_seen_and_noted(server: BackgroundApi, visiting: Visiting) -> None:
    page = visiting().open("#/deployment")
    expect(page.locator("#ranks tr[data-state='ready']")).to_have_count(2)
    lost = ready_rank(1, state="lost", reason="its stream broke", kv_usage=None, age_s=None)
    joining = ready_rank(1, state="joining", phase="loading_weights", percent=40.0, kv_usage=None)
    deployment = server.api.deployment
    server.call(lambda: setattr(deployment, "reports", [ready_rank(0), lost]))
    expect(page.locator("#ranks tr[data-rank='1'] .state")).to_have_text("lostits stream broke")
    expect(page.locator("#happenings")).to_contain_text("Rank 1: ready → lost (its stream broke)")
    server.call(lambda: setattr(deployment, "reports", [ready_rank(0), joining]))
    expect(page.locator("#ranks tr[data-rank='1'] .state")).to_contain_text("loading weights")
    assert page.locator("#ranks tr[data-rank='1'] progress").evaluate("bar => bar.value") == 40
    server.call(lambda: setattr(deployment, "reports", [ready_rank(0)]))
    expect(page.locator("#ranks tr")).to_have_count(1)


def test_without_the_head_the_page_says_so(server: BackgroundApi, visiting: Visiting) -> None:
    page = visiting().open("#/deployment")
    expect(page.locator("#ranks tr")).to_have_count(2)
    server.call(lambda: setattr(server.api.deployment, "head_connected", False))
    expect(page.get_by_role("alert").filter(has_text="no contact with the head")).to_be_visible()
    server.call(lambda: setattr(server.api.deployment, "head_connected", True))
    expect(page.get_by_role("alert").filter(has_text="head")).to_be_hidden()
    page.route("**/deployment?*", lambda route: route.abort())
    expect(page.get_by_role("alert").filter(has_text="cannot be reached")).to_contain_text("old")


def test_many_ranks_have_one_line_and_all_their_rows(server: BackgroundApi, visiting: Visiting) -> None:
    deployment = server.api.deployment
    server.call(lambda: setattr(deployment, "reports", [ready_rank(number) for number in range(100)]))
    rates = dict.fromkeys(range(20), 1.0)
    server.call(lambda: setattr(deployment, "history", [sample(1_000.0 + second, rates) for second in range(700)]))
    page = visiting().open("#/deployment")
    expect(page.locator("#ranks tr")).to_have_count(100)
    expect(page.locator("#ranks tr").last).to_have_attribute("data-rank", "99")
    expect(page.locator("#plots canvas")).to_have_count(4)
    expect(page.locator("#plots .u-legend")).to_have_count(1)


def test_the_time_shown_is_kept(visiting: Visiting) -> None:
    page = visiting().open("#/deployment")
    page.get_by_role("button", name="1 min", exact=True).click()
    page.reload()
    expect(page.get_by_role("button", name="1 min", exact=True)).to_have_attribute("aria-pressed", "true")


def test_nobody_asks_while_nobody_looks(visiting: Visiting) -> None:
    visit = visiting()
    asked: list[str] = []
    visit.page.on("request", lambda request: asked.append(request.url))
    with visit.page.expect_response("**/readyz"):
        pass
    with visit.page.expect_response("**/readyz"):
        pass
    assert not [url for url in asked if "/deployment" in url]
