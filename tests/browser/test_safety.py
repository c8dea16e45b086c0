"""What a model says can be made by anybody: nothing of it may run, load or look like the page's own."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.talking import answers, ask, expect_answered, saying
from tests.support.background_api import BackgroundApi
from tests.support.browser import Visit

_ATTACKS = (
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<svg onload='window.hacked = 1'><script>window.hacked = 1</script></svg>",
    "<iframe srcdoc='<script>parent.hacked = 1</script>'></iframe>",
    "<math><mtext><table><mglyph><style><img src=x onerror='window.hacked = 1'></style></table></mtext></math>",
    "<a href='javascript:window.hacked = 1'>link</a> <form action='https://evil.example'><button>send</button></form>",
    "[link](javascript:window.hacked=1) [link](JaVaScRiPt:window.hacked=1) [link](data:text/html,<script>1</script>)",
    "![picture](https://evil.example/spy.png) ![p](x\"onerror=\"window.hacked=1)",
    "<https://evil.example/\"onmouseover=\"window.hacked=1>",
    "```html\"onload=\"window.hacked=1\n<script>window.hacked = 1</script>\n```",
    "| a |\n|---|\n| <img src=x onerror='window.hacked = 1'> |",
    "# <style>* { display: none }</style>\n<link rel=stylesheet href=https://evil.example/x.css>",
    "[x]: javascript:window.hacked=1\n\n[x] [x][x]",
    "<div class='dialog' id='send' style='position:fixed;inset:0'>Your key, please</div>",
    "- [ ] <input autofocus onfocus='window.hacked = 1'>\n- [x] done",
    "\u2028<b onclick=window.hacked=1>bold</b>\u0000<x",
)  # fmt: skip
_CHECK = """() => {
  const log = document.querySelector("#log");
  const bad = [...log.querySelectorAll("script, img, iframe, style, link, form, object, embed, math, base, meta")];
  bad.push(...[...log.querySelectorAll("*")].filter(element =>
    [...element.attributes].some(({ name }) => name.startsWith("on") || name === "style" || name === "id")));
  const leadsOut = link => /^(https?|mailto):/.test(link.getAttribute("href") ?? "http:");
  bad.push(...[...log.querySelectorAll("a")].filter(link => !leadsOut(link)));
  return { hacked: window.hacked ?? null, bad: bad.map(element => element.outerHTML) };
}"""


def test_nothing_of_a_text_runs(server: BackgroundApi, visit: Visit) -> None:
    """As blocks of an answer, within one paragraph, and sent by the person (somebody may be made to paste it)."""
    page = visit.page
    for number, text in enumerate(("\n\n".join(_ATTACKS), " ".join(_ATTACKS)), 1):
        server.api.generator.script = saying(*(text[at : at + 40] for at in range(0, len(text), 40)), "\n\nend")
        page.get_by_role("button", name="New chat").click()
        ask(page, f"attack {number}")
        expect_answered(page, "end")
        assert "<script>window.hacked = 1</script>" in answers(page).inner_text()
        assert page.evaluate(_CHECK) == {"hacked": None, "bad": []}
    page.reload()  # and as it comes out of the history
    expect_answered(page, "end")
    assert page.evaluate(_CHECK) == {"hacked": None, "bad": []}
    ask(page, text)
    expect(page.get_by_label("You", exact=True).last).to_contain_text("<script>window.hacked = 1</script>")
    expect(answers(page).last).to_have_attribute("aria-busy", "false")
    assert page.evaluate(_CHECK) == {"hacked": None, "bad": []}


def test_links_lead_out_without_telling(server: BackgroundApi, visit: Visit) -> None:
    server.api.generator.script = saying(
        "See https://docs.example/a?b=1 and ![a picture](https://pictures.example/1.png)."
    )
    ask(visit.page, "hi")
    expect_answered(visit.page, "See")
    links = answers(visit.page).locator("a")
    expect(links).to_have_text(["https://docs.example/a?b=1", "a picture"])
    for link in links.all():
        assert link.get_attribute("rel") == "noopener noreferrer nofollow"
        assert link.get_attribute("target") == "_blank"


def test_code_keeps_every_character_and_can_be_copied(server: BackgroundApi, visit: Visit) -> None:
    code = "<b>&amp;</b>\n\tif a < b && c:\n        pass"
    server.api.generator.script = saying(f"```python\n{code}\n```")
    ask(visit.page, "hi")
    expect(answers(visit.page).locator(".code-head span")).to_have_text("python")
    assert answers(visit.page).locator("pre").text_content() == f"{code}\n"
    answers(visit.page).get_by_role("button", name="Copy").first.click()
    expect(visit.page.get_by_text("Copied.")).to_be_visible()
    assert visit.page.evaluate("navigator.clipboard.readText()") == f"{code}\n"


def test_the_page_of_the_api_works_without_inline_rights(visit: Visit) -> None:
    response = visit.page.goto(f"{visit.url}/docs")
    assert response is not None
    assert "unsafe" not in response.headers["content-security-policy"]
    expect(visit.page.locator("details.operation").first).to_be_visible()
    visit.page.locator("details.operation summary").first.click()
    expect(visit.page.locator("details.operation").first).to_have_attribute("open", "")


def test_a_damaged_history_does_not_stop_the_page(visit: Visit) -> None:
    visit.page.evaluate(
        """() => {
          localStorage.setItem("muster.conversations", "{broken");
          localStorage.setItem("muster.parameters", "[[");
          localStorage.setItem("muster.conversation", '"gone"');
        }"""
    )
    visit.page.reload()
    ask(visit.page, "hi")
    expect_answered(visit.page, "hello")


def test_a_full_storage_is_said_and_survived(visit: Visit) -> None:
    visit.page.evaluate(
        """() => {
          let filler = "x".repeat(1 << 20);
          for (let number = 0; filler; number++) {
            try {
              localStorage.setItem(`filler${number}`, filler);
            } catch {
              filler = filler.slice(filler.length / 2 + 1);
            }
          }
        }"""
    )
    ask(visit.page, "hi")
    expect_answered(visit.page, "hello")
    expect(visit.page.get_by_text("storage is full")).to_be_visible()
