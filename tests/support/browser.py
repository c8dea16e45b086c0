"""Headless Chromium as Debian packages it, watched: whatever a page does that it must not do fails the test."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Page, ViewportSize, expect, sync_playwright

DESKTOP = ViewportSize(width=1280, height=800)
PHONE = ViewportSize(width=360, height=740)
# Two busy cores are slow; a condition that never comes true still fails.
PATIENCE_MS = 60_000


# The first has no windows at all, and is the quickest.
_COMMANDS = ("chromium-headless-shell", "chromium", "google-chrome")
_ARGUMENTS = (
    "--no-sandbox",  # it needs privileges that containers lack, and only pages of ours are visited
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-gpu",
    "--renderer-process-limit=1",
)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; skips the test where there is none, unless MUSTER_TEST_BROWSER is "required"."""
    path = os.environ.get("MUSTER_TEST_CHROMIUM") or next(filter(None, map(shutil.which, _COMMANDS)), None)
    if path is None and os.environ.get("MUSTER_TEST_BROWSER") == "required":
        pytest.fail("MUSTER_TEST_BROWSER is required, but there is none: apt-get install chromium-headless-shell")
    if path is None:
        pytest.skip("no browser: apt-get install chromium-headless-shell, or name one in MUSTER_TEST_CHROMIUM")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_ARGUMENTS))
        yield browser
        browser.close()


class Visit:
    """One browser profile, opened at `url`; `check` fails when a page misbehaved."""

    def __init__(
        self, browser: Browser, url: str, viewport: ViewportSize = DESKTOP, *, hash_: str = "", **options: Any
    ) -> None:
        self.url = url
        self.misdeeds: list[str] = []
        self._context = browser.new_context(
            viewport=viewport, reduced_motion="reduce", permissions=["clipboard-read", "clipboard-write"], **options
        )
        self._context.set_default_timeout(PATIENCE_MS)
        self._context.on("request", lambda request: self._saw_request(request.url))
        self._context.on("console", lambda message: self._saw_console(message.type, message.text))
        # The page's clock runs as usual, and `look_again` can turn it on.
        self._context.clock.install()
        self.page = self.open(hash_)

    def open(self, hash_: str = "") -> Page:
        """A further tab of the same profile."""
        page = self._context.new_page()
        page.on("pageerror", lambda error: self.misdeeds.append(f"error: {error}"))
        page.on("dialog", self._saw_dialog)
        page.goto(f"{self.url}/{hash_}")
        return page

    def look_again(self) -> None:
        """Nobody has to wait for the next time that the page asks the server."""
        self.page.clock.fast_forward(5_000)

    def close(self) -> None:
        self._context.close()

    def check(self) -> None:
        assert not self.misdeeds, self.misdeeds

    def _saw_request(self, url: str) -> None:
        """A page that works offline asks nobody else for anything."""
        if not url.startswith((self.url, "blob:", "data:")):
            self.misdeeds.append(f"asked {url}")

    def _saw_dialog(self, dialog: Dialog) -> None:
        self.misdeeds.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _saw_console(self, kind: str, text: str) -> None:
        # Chromium reports answers of 400 and above, which tests cause on purpose.
        if kind in ("error", "warning") and not text.startswith("Failed to load resource"):
            self.misdeeds.append(f"{kind}: {text}")


def scrolls_sideways(page: Page) -> list[str]:
    """Elements that stick out of the viewport and are not inside something that scrolls by itself."""
    found: list[str] = page.evaluate(
        """() => {
          const wide = document.scrollingElement.scrollWidth > innerWidth ? ["the page"] : [];
          for (const element of document.querySelectorAll("main *, header *, dialog[open] *")) {
            const box = element.getBoundingClientRect();
            if (!box.width || !box.height || (box.right <= innerWidth + 1 && box.left >= -1)) continue;
            if (!element.checkVisibility({ visibilityProperty: true })) continue;
            let scrolls = false;
            for (let around = element.parentElement; around; around = around.parentElement)
              scrolls ||= ["auto", "scroll", "hidden"].includes(getComputedStyle(around).overflowX) &&
                around !== document.body && around.clientWidth < around.scrollWidth &&
                around.getBoundingClientRect().right <= innerWidth + 1;
            if (!scrolls) wide.push(`${element.tagName}.${element.className} to ${Math.round(box.right)}`);
          }
          return wide;
        }"""
    )
    return found
