"""The pictures of the documentation, of a real deployment under a small load."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import httpx
from playwright.sync_api import Page, expect

from tests.browser.talking import answers, ask
from tests.support.browser import Visit
from tests.support.cluster import Cluster

_LOAD_S = 100.0
_TOPICS = ("tides", "bread", "glass", "kites", "maps", "salt", "clocks", "rivers", "paper", "wool")


class Screenshots:
    """Writes PNG files into `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def of_chat(self, visit: Visit) -> None:
        page = visit.page
        page.get_by_role("button", name="New chat").click()
        _set(page, temperature="0.2", seed="4")
        for question in ("What is gravity?", "Write a Python function that adds two numbers."):
            number = answers(page).count()
            ask(page, question)
            expect(answers(page)).to_have_count(number + 1)
            expect(answers(page).last).to_have_attribute("aria-busy", "false")
        self._take(page, "chat")

    def of_load(self, visit: Visit, cluster: Cluster) -> None:
        """Requests come and go for a while, so that the plots have something to show."""
        page = visit.open("#/deployment")
        page.set_viewport_size({"width": 1280, "height": 1060})
        page.get_by_role("button", name="1 min", exact=True).click()
        stop = threading.Event()
        askers = [threading.Thread(target=_ask_until, args=(cluster.url, number, stop)) for number in range(6)]
        for number, asker in enumerate(askers):
            asker.start()
            stop.wait(_LOAD_S / 2 / len(askers) if number < 4 else 12)
        self._take(page, "deployment")
        stop.set()
        for asker in askers:
            asker.join()
        page.close()

    def of_error(self, visit: Visit, cluster: Cluster) -> None:
        """A request for a rank that is drained."""
        page = visit.page
        page.get_by_role("button", name="New chat").click()
        _set(page, rank="1")
        command = [sys.executable, "-m", "services.cli", "drain", "1", "--head-target", cluster.head_target]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        ask(page, "Are you there?")
        expect(answers(page).get_by_role("alert")).to_be_visible(timeout=120_000)
        expect(page.locator("#health")).to_have_text(re.compile("1/2"))
        self._take(page, "error")
        subprocess.run([*command[:3], "undrain", *command[4:]], check=True, capture_output=True, timeout=60)

    def of_phone(self, visit: Visit) -> None:
        _set(visit.page, temperature="0.2", seed="4")
        ask(visit.page, "What is gravity?")
        expect(answers(visit.page)).to_have_attribute("aria-busy", "false", timeout=120_000)
        self._take(visit.page, "phone")

    def _take(self, page: Page, name: str) -> None:
        page.mouse.move(0, 0)
        page.screenshot(path=self._folder / f"{name}.png")


def _set(page: Page, **parameters: str) -> None:
    page.locator("#parameters-button").click()
    for name, value in parameters.items():
        field = page.locator(f"#parameters-form [name={name}]")
        if name == "rank":
            field.select_option(value)
        else:
            field.fill(value)
    page.get_by_label("Close parameters").click()


def _ask_until(url: str, number: int, stop: threading.Event) -> None:
    with httpx.Client(base_url=url, timeout=120) as client:
        for turn in range(1000):
            if stop.is_set():
                return
            topic = _TOPICS[(number + turn) % len(_TOPICS)]
            messages = [{"role": "user", "content": f"You are a patient teacher. Tell me everything about {topic}."}]
            client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 150, "seed": turn})
            stop.wait(0.3 * (1 + (turn + number) % 4))
