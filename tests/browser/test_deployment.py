"""Watching the deployment in a browser; a real one is in tests/cluster/test_page.py."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.conftest import Visiting
from tests.support.background_api import BackgroundApi
from tests.support.scripted_deployment import ready_rank, sample


def test_ranks_tiles_and_plots(visiting: Visiting) -> None:
    visit = visiting(hash_="#/deployment")
    page = visit.page
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
    visit = visiting(hash_="#/deployment")
    page, deployment = visit.page, server.api.deployment
    expect(page.locator("#ranks tr[data-state='ready']")).to_have_count(2)

    def tell(**changes: object) -> None:
        server.call(lambda: vars(deployment).update(changes))
        visit.look_again()

    lost = ready_rank(1, state="lost", reason="its stream broke", kv_usage=None, age_s=None)
    tell(reports=[ready_rank(0), lost])
    expect(page.locator("#ranks tr[data-rank='1'] .state")).to_have_text("lostits stream broke")
    expect(page.locator("#happenings")).to_contain_text("Rank 1: ready → lost (its stream broke)")
    joining = ready_rank(1, state="joining", phase="loading_weights", percent=40.0, kv_usage=None)
    tell(reports=[ready_rank(0), joining])
    expect(page.locator("#ranks tr[data-rank='1'] .state")).to_contain_text("loading weights")
    assert page.locator("#ranks tr[data-rank='1'] progress").evaluate("bar => bar.value") == 40
    tell(reports=[ready_rank(0)], head_connected=False)
    expect(page.locator("#ranks tr")).to_have_count(1)
    expect(page.get_by_role("alert").filter(has_text="no contact with the head")).to_be_visible()
    tell(head_connected=True)
    expect(page.get_by_role("alert").filter(has_text="head")).to_be_hidden()
    page.route("**/deployment?*", lambda route: route.abort())
    visit.look_again()
    expect(page.get_by_role("alert").filter(has_text="cannot be reached")).to_contain_text("old")


def test_many_ranks_have_one_line_and_all_their_rows(server: BackgroundApi, visiting: Visiting) -> None:
    deployment = server.api.deployment
    server.call(lambda: setattr(deployment, "reports", [ready_rank(number) for number in range(100)]))
    rates = dict.fromkeys(range(20), 1.0)
    server.call(lambda: setattr(deployment, "history", [sample(1_000.0 + second, rates) for second in range(700)]))
    visit = visiting(hash_="#/deployment")
    page = visit.page
    expect(page.locator("#ranks tr")).to_have_count(100)
    expect(page.locator("#ranks tr").last).to_have_attribute("data-rank", "99")
    expect(page.locator("#plots canvas")).to_have_count(4)
    expect(page.locator("#plots .u-legend")).to_have_count(1)


def test_the_time_shown_is_kept_and_nobody_asks_while_nobody_looks(visiting: Visiting) -> None:
    visit = visiting(hash_="#/deployment")
    page = visit.page
    page.get_by_role("button", name="1 min", exact=True).click()
    page.reload()
    expect(page.get_by_role("button", name="1 min", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#ranks tr")).to_have_count(2)
    page.get_by_role("link", name="Chat", exact=True).click()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for _ in range(2):
        with page.expect_response("**/readyz"):
            visit.look_again()
    assert len([url for url in asked if "/deployment" in url]) <= 1  # one may have been on its way
