"""Only keys, only a phone, only the dark."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visiting
from tests.browser.talking import answers, ask, expect_answered, saying
from tests.support.background_api import BackgroundApi
from tests.support.browser import PHONE, Visit, scrolls_sideways

_WIDE = (
    "A_word_that_is_longer_than_a_phone_is_wide_" * 6
    + "\n\n```\n" + "code " * 60 + "\n```\n\n"
    + "| " + " | ".join(f"column {number}" for number in range(12)) + " |\n|" + "---|" * 12 + "\n"
    + "| " + " | ".join("value" for _ in range(12)) + " |\n\n1. " + "https://example.org/" + "path/" * 30
)  # fmt: skip


def press_until_focused(page: Page, key: str, name: str, most: int = 40) -> None:
    """As somebody without a mouse would; fails when it cannot be reached."""
    for _ in range(most):
        if (
            page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText")
            == name
        ):
            return
        page.keyboard.press(key)
    raise AssertionError(f"{name} is not reached by {key}")


def test_everything_is_done_with_keys(server: BackgroundApi, visit: Visit) -> None:
    page = visit.page
    message = page.get_by_label("Message", exact=True)
    expect(message).to_be_focused()
    page.keyboard.type("a line")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("another")
    page.keyboard.press("Enter")
    expect(page.get_by_label("You", exact=True)).to_have_text("a line\nanother")
    expect_answered(page, "hello")
    press_until_focused(page, "Shift+Tab", "Answer again")
    page.keyboard.press("Enter")
    expect_answered(page, "hello")
    page.locator("#log").focus()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("d")
    expect(page.locator("#ranks tr")).to_have_count(2)
    page.keyboard.press("/")
    expect(message).to_be_focused()
    page.locator("#log").focus()
    page.keyboard.press("p")
    expect(page.get_by_label("System prompt")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_label("System prompt")).to_be_hidden()
    page.locator("#log").focus()
    page.keyboard.press("n")
    expect(answers(page)).to_have_count(0)


def test_the_first_stop_skips_and_every_control_has_a_name(visiting: Visiting) -> None:
    page = visiting(hash_="#/deployment").page  # the chat starts in its message box
    page.keyboard.press("Tab")
    expect(page.locator("#skip")).to_be_focused()
    expect(page.locator("#skip")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    nameless = page.evaluate(
        """() => {
          const named = element =>
            element.getAttribute("aria-label") || element.textContent.trim() || element.labels?.length;
          const controls = [...document.querySelectorAll("button, a[href], input, textarea, select")];
          return controls.filter(element => !named(element)).map(element => element.outerHTML);
        }"""
    )
    assert nameless == []


@pytest.mark.parametrize("width", [320])
def test_a_phone_never_scrolls_sideways(server: BackgroundApi, visiting: Visiting, width: int) -> None:
    server.api.generator.script = saying(_WIDE)
    page = visiting(viewport={"width": width, "height": 740}, has_touch=True).page
    assert scrolls_sideways(page) == []
    ask(page, "A_question_without_a_break_" * 10)
    expect_answered(page, "column 11")
    assert scrolls_sideways(page) == []
    page.locator("#parameters-button").click()
    expect(page.get_by_label("System prompt")).to_be_visible()
    assert scrolls_sideways(page) == []
    page.get_by_label("Close parameters").click()
    page.get_by_role("button", name="API key").click()
    assert scrolls_sideways(page) == []
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("link", name="Deployment", exact=True).click()
    expect(page.locator("#plots canvas")).to_have_count(4)
    assert scrolls_sideways(page) == []


def test_conversations_on_a_phone_are_behind_a_button(visiting: Visiting) -> None:
    page = visiting(viewport=PHONE, has_touch=True).page
    ask(page, "on the phone")
    expect_answered(page, "hello")
    expect(page.get_by_role("button", name="New chat")).to_be_hidden()
    page.get_by_label("Conversations", exact=True).first.click()
    page.get_by_role("button", name="New chat").click()
    expect(page.get_by_role("button", name="New chat")).to_be_hidden()
    expect(answers(page)).to_have_count(0)


def test_light_and_dark(visiting: Visiting) -> None:
    page = visiting(color_scheme="dark").page
    ground = "() => getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_label("Theme: automatic").click()
    light = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == light
    page.get_by_label("Theme: light").click()
    assert page.evaluate(ground) == dark
