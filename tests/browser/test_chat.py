"""Talking to the model in a browser."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from playwright.sync_api import expect

from gateway.errors import EngineFailed, Overloaded
from tests.browser.conftest import Visiting
from tests.browser.talking import answers, ask, expect_answered, saying
from tests.gateway.http.test_errors import fails_with
from tests.support.background_api import BackgroundApi
from tests.support.browser import Visit
from tests.support.rest_api import RestApi
from tests.support.waiting import wait_until


def test_an_answer_grows_and_is_formatted(server: BackgroundApi, visit: Visit) -> None:
    gate = server.call(asyncio.Event)
    open_ = server.call(asyncio.Event)
    server.call(open_.set)
    server.api.generator.script = saying("Gravity **pul", "ls**:\n\n- apples\n- moons", gate=(open_, gate))
    ask(visit.page, "What is gravity?")
    expect(answers(visit.page)).to_contain_text("Gravity **pul")
    expect(answers(visit.page)).to_have_attribute("aria-busy", "true")
    server.call(gate.set)
    expect_answered(visit.page, "Gravity pulls")
    expect(answers(visit.page).locator("strong")).to_have_text("pulls")
    expect(answers(visit.page).locator("li")).to_have_text(["apples", "moons"])
    expect(answers(visit.page).locator(".facts")).to_contain_text("2 tokens")


def test_stopping_aborts_the_request(server: BackgroundApi, visit: Visit) -> None:
    """By button and by key."""
    page, generator = visit.page, server.api.generator
    open_, never = server.call(asyncio.Event), server.call(asyncio.Event)
    server.call(open_.set)
    generator.script = saying("a beginning", "never", gate=(open_, never))
    for number in (1, 2):
        ask(page, "hi")
        expect(answers(page).nth(number - 1)).to_contain_text("a beginning")
        assert server.call(lambda: generator.num_open) == 1
        if number == 1:
            page.get_by_label("Stop", exact=True).click()
        else:
            page.keyboard.press("Escape")
        expect_answered(page, "a beginning", number)
        expect(answers(page).last).to_contain_text("stopped")
        wait_until(lambda: server.call(lambda: generator.num_open) == 0, "the request was aborted")
        assert generator.num_cancelled == number
        expect(page.get_by_label("Message", exact=True)).to_be_focused()


def test_errors_say_what_and_can_be_tried_again(server: BackgroundApi, visit: Visit) -> None:
    """Before the first token, after it, and without a server."""
    page = visit.page
    server.api.generator.script = fails_with(Overloaded("All ranks are full.", retry_after_s=2))
    ask(page, "hi")
    error = page.get_by_role("alert").filter(has_text="All ranks are full.")
    expect(error).to_contain_text("Try again in 2 s.")
    expect(error).to_contain_text("HTTP 429")
    expect(error).to_contain_text("request ")
    server.api.generator.script = saying("now it works")
    error.get_by_role("button", name="Try again").click()
    expect_answered(page, "now it works")
    expect(error).to_have_count(0)
    server.api.generator.script = fails_with(EngineFailed("The rank was lost."), after=1)
    ask(page, "more")
    expect_answered(page, "text", 2)
    expect(answers(page).last.get_by_role("alert")).to_contain_text("The rank was lost.")
    page.route("**/v1/chat/completions", lambda route: route.abort())
    ask(page, "more")
    expect(answers(page).last.get_by_role("alert")).to_contain_text("cannot be reached")


def set_loaded(api: RestApi, loaded: bool) -> None:
    api.cluster.ready = api.cluster.loaded = loaded


def test_a_model_that_loads(api: RestApi, server: BackgroundApi, visiting: Visiting) -> None:
    server.call(lambda: set_loaded(api, False))
    visit = visiting()
    expect(visit.page.locator("#health")).to_have_text("0/1 loading")
    ask(visit.page, "hi")
    expect(answers(visit.page).get_by_role("alert")).to_contain_text("HTTP 503")
    server.call(lambda: set_loaded(api, True))
    visit.look_again()
    expect(visit.page.locator("#health")).to_have_text("2/2 ready")
    expect(visit.page.get_by_label("Message", exact=True)).to_have_attribute("placeholder", "Ask tiny…")


def test_history_survives_a_reload(visit: Visit) -> None:
    page = visit.page
    ask(page, "the first one")
    expect_answered(page, "hello")
    page.get_by_role("button", name="New chat").click()
    ask(page, "the second one")
    expect_answered(page, "hello")
    page.reload()
    expect(page.get_by_label("You", exact=True)).to_have_text("the second one")
    expect_answered(page, "hello")
    page.get_by_role("button", name="the first one", exact=True).click()
    expect(page.get_by_label("You", exact=True)).to_have_text("the first one")
    page.get_by_role("button", name="Delete “the first one”").click(force=True)
    expect(page.locator(".conversation")).to_have_text(["the second one"])
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".conversation")).to_have_text(["the first one", "the second one"])
    page.get_by_role("button", name="Delete all").click()
    expect(page.locator(".conversation")).to_have_count(0)


def test_what_was_said_goes_along_and_can_be_said_anew(api: RestApi, visit: Visit) -> None:
    page, requests = visit.page, api.generator.requests
    ask(page, "first try")
    expect_answered(page, "hello")
    page.get_by_label("Answer again").click()
    expect_answered(page, "hello")
    assert len(requests) == 2
    assert requests[0].prompt_token_ids == requests[1].prompt_token_ids
    ask(page, "two")
    expect_answered(page, "hello", 2)
    assert len(requests[-1].prompt_token_ids) > 1.5 * len(requests[0].prompt_token_ids)
    page.get_by_label("Edit and send again").first.click(force=True)
    expect(page.get_by_label("Message", exact=True)).to_have_value("first try")
    expect(page.get_by_label("You", exact=True)).to_have_count(0)


def test_parameters_go_with_the_message_and_are_kept(api: RestApi, visit: Visit) -> None:
    page = visit.page
    page.get_by_role("button", name="Parameters", exact=True).click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.25")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Longest answer").fill("3")
    page.locator("[name=rank]").select_option("1")
    page.reload()
    ask(page, "hi")
    expect(answers(page).locator(".facts")).to_contain_text("cut at the longest answer allowed")
    request = api.generator.requests[-1]
    assert (request.sampling.temperature, request.sampling.seed, request.max_tokens, request.rank) == (0.25, 7, 3, 1)
    assert len(request.prompt_token_ids) > 20
    page.locator("#parameters-button").click()
    page.get_by_label("Temperature").fill("9")
    ask(page, "too hot")
    expect(page.get_by_label("Temperature")).to_be_focused()
    assert len(api.generator.requests) == 1
    page.get_by_role("button", name="Back to the defaults").click()
    expect(page.locator("#parameters-summary")).to_have_text("Parameters")


def test_a_key_is_asked_for_once_and_kept(api: RestApi, server: BackgroundApi, browser: object) -> None:
    """The right one may contain what headers cannot."""
    api.settings = replace(api.settings, api_keys=("schlüssel",))
    with BackgroundApi(api) as guarded:
        visit = Visit(browser, guarded.url)  # type: ignore[arg-type]
        page = visit.page
        key, use = page.get_by_label("Key", exact=True), page.get_by_role("button", name="Use")
        expect(key).to_be_visible()
        key.fill("wrong")
        use.click()
        ask(page, "hi")
        expect(page.locator("#key-reason")).to_contain_text("No or wrong API key")
        key.fill("schlüssel")
        page.get_by_label("Keep it in this browser").check()
        use.click()
        expect_answered(page, "hello")
        page.reload()
        ask(page, "again")
        expect_answered(page, "hello", 2)
        tab = visit.open("#/deployment")
        expect(tab.locator("#ranks tr")).to_have_count(2)
        visit.close()
        visit.check()


def test_two_conversations_answer_at_once(server: BackgroundApi, visit: Visit) -> None:
    gate = server.call(asyncio.Event)
    server.api.generator.script = saying("said late", gate=(gate,))
    ask(visit.page, "slow")
    visit.page.get_by_role("button", name="New chat").click()
    ask(visit.page, "also slow")
    wait_until(lambda: server.call(lambda: server.api.generator.num_open) == 2, "both run")
    server.call(gate.set)
    expect_answered(visit.page, "said late")
    visit.page.get_by_role("button", name="slow", exact=True).click()
    expect_answered(visit.page, "said late")
