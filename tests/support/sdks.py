"""The official Python clients on a scripted API, as strict as they can be, behind a server that asks for a key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import anthropic
import openai

from tests.support.rest_api import RestApi

KEY = "secret"


@asynccontextmanager
async def openai_client(api: RestApi) -> AsyncIterator[openai.AsyncOpenAI]:
    """Answers that do not fit the client's types are errors."""
    async with (
        _guarded(api).server() as url,
        openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key=KEY, max_retries=0, _strict_response_validation=True
        ) as client,
    ):
        yield client


@asynccontextmanager
async def anthropic_client(api: RestApi) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Answers that do not fit the client's types are errors."""
    async with (
        _guarded(api).server() as url,
        anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0, _strict_response_validation=True) as client,
    ):
        yield client


def _guarded(api: RestApi) -> RestApi:
    api.settings = replace(api.settings, api_keys=(KEY,))
    return api
