"""The helpers of Anthropic's client: events of streams, tools that are run, raw responses, timeouts, error classes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import anthropic
import pytest
from anthropic import beta_async_tool

from gateway.errors import Draining, EngineFailed, GatewayError, NoBackend, Overloaded, RequestTimeout
from gateway.generation_request import GenerationEvent, GenerationRequest
from gateway.tokenizer import Tokenizer
from tests.gateway.http.responding import prompt_of
from tests.gateway.http.test_anthropic_sdk import MESSAGES, TOOLS
from tests.gateway.http.test_errors import fails_with
from tests.gateway.http.test_messages import TWO_CALLS
from tests.support.rest_api import RestApi
from tests.support.saying import api_saying, saying
from tests.support.scripted_generator import CACHED_TOKENS, answer_text
from tests.support.sdks import anthropic_client
from tests.support.waiting import eventually

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'


async def test_the_stream_helpers_text_and_events(api: RestApi) -> None:
    expected = answer_text(prompt_of(("user", "hi")), 0)
    async with anthropic_client(api) as sdk:
        async with sdk.messages.stream(model="tiny", max_tokens=100, messages=MESSAGES) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        assert text == await stream.get_final_text() == expected
        async with sdk.messages.stream(model="tiny", max_tokens=100, messages=MESSAGES) as stream:
            kinds = [event.type async for event in stream]
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert {"text", "content_block_stop"} <= set(kinds)
    assert final.usage.cache_read_input_tokens == CACHED_TOKENS
    assert final.stop_reason == "end_turn"


async def test_pieces_of_a_tools_input_make_it(api: RestApi) -> None:
    async with (
        anthropic_client(api_saying(TWO_CALLS)) as sdk,
        sdk.messages.stream(model="tiny", max_tokens=100, messages=MESSAGES, tools=TOOLS) as stream,
    ):
        pieces = [event.partial_json async for event in stream if event.type == "input_json"]
        final = await stream.get_final_message()
    assert "".join(pieces).startswith('{"city": "Zürich 🙂"}')
    assert [block.type for block in final.content] == ["text", "tool_use", "tool_use"]


async def test_tools_are_run_until_there_is_an_answer() -> None:
    @beta_async_tool
    async def weather(city: str) -> str:
        """Tells the weather of a city."""
        return f"rain in {city}"

    async def script(request: GenerationRequest, tokenizer: Tokenizer) -> AsyncGenerator[GenerationEvent, None]:
        prompt = tokenizer.decode(request.prompt_token_ids, skip_special=False)
        said = "It rains." if "<|im_start|>tool\nrain in Bonn" in prompt else CALL
        async for event in saying(said)(request, tokenizer):
            yield event

    api = api_saying(CALL)
    api.generator.script = script
    async with anthropic_client(api) as sdk:
        runner = sdk.beta.messages.tool_runner(model="tiny", max_tokens=100, messages=[*MESSAGES], tools=[weather])  # type: ignore[list-item]
        final = await runner.until_done()
    assert [block.to_dict()["text"] for block in final.content] == ["It rains."]
    assert len(api.generator.requests) == 2


async def test_models_and_raw_responses(api: RestApi) -> None:
    async with anthropic_client(api) as sdk:
        card = await sdk.models.retrieve("org/tiny-chat")
        assert card.id == "org/tiny-chat"
        assert card.type == "model"
        with pytest.raises(anthropic.NotFoundError):
            await sdk.models.retrieve("claude")
        raw = await sdk.messages.with_raw_response.create(model="tiny", max_tokens=9, messages=MESSAGES)
        assert raw.headers["request-id"]
        message = await raw.parse()
        assert message._request_id == raw.headers["request-id"]
        counted = await sdk.beta.messages.count_tokens(model="tiny", messages=[*MESSAGES])  # type: ignore[list-item]
        assert counted.input_tokens == len(prompt_of(("user", "hi")))


async def test_a_timeout_of_the_client_cancels(api: RestApi) -> None:
    async def never(request: GenerationRequest, tokenizer: Tokenizer) -> AsyncGenerator[GenerationEvent, None]:
        await asyncio.Event().wait()
        yield  # type: ignore[misc]

    api.generator.script = never
    async with anthropic_client(api) as sdk:
        with pytest.raises(anthropic.APITimeoutError):
            await sdk.with_options(timeout=0.2).messages.create(model="tiny", max_tokens=9, messages=MESSAGES)
        await eventually(lambda: api.generator.num_cancelled == 1, "it was cancelled")


_CLASSES: list[tuple[GatewayError, type[anthropic.APIStatusError], int, str]] = [
    (Overloaded("full"), anthropic.RateLimitError, 429, "rate_limit_error"),
    (EngineFailed("broken"), anthropic.InternalServerError, 500, "api_error"),
    (NoBackend("none"), anthropic.InternalServerError, 503, "overloaded_error"),
    (Draining("bye"), anthropic.InternalServerError, 503, "overloaded_error"),
    (RequestTimeout("late"), anthropic.InternalServerError, 504, "timeout_error"),
]


async def test_each_failure_has_its_class(api: RestApi) -> None:
    async with anthropic_client(api) as sdk:
        for failure, kind, status, error_type in _CLASSES:
            api.generator.script = fails_with(failure)
            for stream in (False, True):
                arguments: Any = {"model": "tiny", "max_tokens": 9, "messages": MESSAGES, "stream": stream}
                with pytest.raises(anthropic.APIStatusError) as caught:
                    await sdk.messages.create(**arguments)
                assert isinstance(caught.value, kind)
                assert caught.value.status_code == status
                body: Any = caught.value.body
                assert body["error"] == {"type": error_type, "message": failure.message}
                assert body["request_id"] == caught.value.request_id
