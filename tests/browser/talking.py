"""What tests of the chat do again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from playwright.sync_api import Locator, Page, expect

from gateway.generation_request import (
    ChoiceDelta,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    GenerationUsage,
    PromptReport,
)
from gateway.tokenizer import Tokenizer
from tests.support.scripted_generator import Script


def saying(*parts: str, gate: Sequence[asyncio.Event] = ()) -> Script:
    """A script that says the parts, each after its gate, as far as there are gates."""

    async def script(request: GenerationRequest, tokenizer: Tokenizer) -> AsyncGenerator[GenerationEvent, None]:
        yield PromptReport(len(request.prompt_token_ids), 0, ())
        for number, part in enumerate(parts):
            if number < len(gate):
                await gate[number].wait()
            last = number == len(parts) - 1
            yield ChoiceDelta(0, part, (1,), (), FinishReason.STOP if last else None, None)
        yield GenerationUsage(len(request.prompt_token_ids), len(parts), 0)

    return script


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_label("Send", exact=True).click()


def answers(page: Page) -> Locator:
    return page.get_by_label("Answer", exact=True)


def expect_answered(page: Page, text: str, number: int = 1) -> None:
    """The newest of so many answers is complete and contains the text."""
    expect(answers(page)).to_have_count(number)
    expect(answers(page).last).to_contain_text(text)
    expect(answers(page).last).to_have_attribute("aria-busy", "false")
