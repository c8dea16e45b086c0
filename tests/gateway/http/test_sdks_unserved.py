"""Methods of the SDKs for what is not served here: a clear 404 in the client's own class, never a guess."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anthropic
import openai
import pytest

from tests.support.rest_api import RestApi

_OPENAI: dict[str, Callable[[openai.AsyncOpenAI], Awaitable[object]]] = {
    "chat.completions.retrieve": lambda sdk: sdk.chat.completions.retrieve("x"),
    "chat.completions.delete": lambda sdk: sdk.chat.completions.delete("x"),
    "chat.completions.messages": lambda sdk: sdk.chat.completions.messages.list("x")._get_page(),
    "images.generate": lambda sdk: sdk.images.generate(model="tiny", prompt="x"),
    "images.edit": lambda sdk: sdk.images.edit(model="tiny", prompt="x", image=b"x"),
    "audio.speech": lambda sdk: sdk.audio.speech.create(model="tiny", voice="alloy", input="x"),
    "audio.transcriptions": lambda sdk: sdk.audio.transcriptions.create(model="tiny", file=b"x"),
    "moderations": lambda sdk: sdk.moderations.create(input="x"),
    "files.create": lambda sdk: sdk.files.create(file=b"{}", purpose="batch"),
    "files.retrieve": lambda sdk: sdk.files.retrieve("x"),
    "batches.create": lambda sdk: sdk.batches.create(
        completion_window="24h", endpoint="/v1/chat/completions", input_file_id="x"
    ),
    "batches.retrieve": lambda sdk: sdk.batches.retrieve("x"),
    "uploads.create": lambda sdk: sdk.uploads.create(bytes=1, filename="x", mime_type="x", purpose="batch"),
    "fine_tuning": lambda sdk: sdk.fine_tuning.jobs.retrieve("x"),
    "vector_stores": lambda sdk: sdk.vector_stores.retrieve("x"),
    "conversations": lambda sdk: sdk.conversations.retrieve("x"),
    "containers": lambda sdk: sdk.containers.retrieve("x"),
    "evals": lambda sdk: sdk.evals.retrieve("x"),
    "skills": lambda sdk: sdk.skills.retrieve("x"),
    "realtime": lambda sdk: sdk.realtime.client_secrets.create(),
}
_OTHER_METHOD: dict[str, Callable[[openai.AsyncOpenAI], Awaitable[object]]] = {
    "models.delete": lambda sdk: sdk.models.delete("tiny"),
    "responses.compact": lambda sdk: sdk.responses.compact(model="gpt-5.1", input="x"),
}
_ANTHROPIC: dict[str, Callable[[anthropic.AsyncAnthropic], Awaitable[object]]] = {
    "messages.batches.create": lambda sdk: sdk.messages.batches.create(requests=[]),
    "messages.batches.retrieve": lambda sdk: sdk.messages.batches.retrieve("x"),
    "messages.batches.cancel": lambda sdk: sdk.messages.batches.cancel("x"),
    "beta.messages.batches": lambda sdk: sdk.beta.messages.batches.retrieve("x"),
    "beta.files": lambda sdk: sdk.beta.files.retrieve_metadata("x"),
}


async def test_openai(api: RestApi) -> None:
    async with api.server() as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as sdk:
        for name, call in _OPENAI.items():
            with pytest.raises(openai.NotFoundError, match="There is no ") as caught:
                await call(sdk)
            assert caught.value.type == "not_found_error", name


async def test_paths_that_are_there_for_something_else(api: RestApi) -> None:
    async with api.server() as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as sdk:
        for name, call in _OTHER_METHOD.items():
            with pytest.raises(openai.APIStatusError, match="is not allowed; use ") as caught:
                await call(sdk)
            assert caught.value.status_code == 405, name


async def test_nothing_runs_in_the_background(api: RestApi) -> None:
    async with api.server() as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as sdk:
        response = await sdk.responses.create(model="tiny", input="hi")
        with pytest.raises(openai.BadRequestError, match="Only background responses"):
            await sdk.responses.cancel(response.id)
        with pytest.raises(openai.NotFoundError) as missing:
            await sdk.responses.cancel("resp_x")
        assert missing.value.code == "response_not_found"
        with pytest.raises(openai.BadRequestError, match="background"):
            await sdk.responses.create(model="tiny", input="hi", background=True)


async def test_anthropic(api: RestApi) -> None:
    async with api.server() as url, anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0) as sdk:
        for name, call in _ANTHROPIC.items():
            with pytest.raises(anthropic.NotFoundError, match="There is no ") as caught:
                await call(sdk)
            assert isinstance(caught.value.body, dict), name
            assert ("request_id" in caught.value.body) == ("files" not in name), "only messages have Anthropic's shape"
