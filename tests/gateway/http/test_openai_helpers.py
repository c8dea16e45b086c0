"""The helpers of OpenAI's client for Python: parsing, tools that are run, raw responses, timeouts, retries, errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import openai
import pydantic
import pytest
from openai.lib.responses_tool_runner import AsyncRegisteredFunction, AsyncResponsesToolRunner

from gateway.errors import (
    Draining,
    EngineFailed,
    GatewayError,
    NoBackend,
    NotSupported,
    Overloaded,
    RequestTimeout,
)
from gateway.generation_request import FinishReason, GenerationEvent, GenerationRequest
from gateway.tokenizer import Tokenizer
from tests.gateway.http.responding import TWO_CALLS
from tests.gateway.http.test_errors import fails_with
from tests.support.rest_api import RestApi
from tests.support.saying import api_saying, saying
from tests.support.scripted_generator import answer
from tests.support.sdks import openai_client
from tests.support.waiting import eventually

MESSAGES: Any = [{"role": "user", "content": "hi"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'


class Place(pydantic.BaseModel):
    name: str
    people: int


class Weather(pydantic.BaseModel):
    """Tells the weather."""

    city: str


WEATHER = openai.pydantic_function_tool(Weather, name="weather")


async def test_parse_whole_and_streamed() -> None:
    api = api_saying('{"name": "Bonn", "people": 330000}')
    async with openai_client(api) as sdk:
        whole = await sdk.chat.completions.parse(model="tiny", messages=MESSAGES, response_format=Place)
        assert whole.choices[0].message.parsed == Place(name="Bonn", people=330000)
        async with sdk.chat.completions.stream(model="tiny", messages=MESSAGES, response_format=Place) as stream:
            kinds = {event.type async for event in stream}
            final = await stream.get_final_completion()
    assert final.choices[0].message.parsed == whole.choices[0].message.parsed
    assert kinds == {"chunk", "content.delta", "content.done"}
    constraint = api.generator.requests[0].constraint
    assert constraint is not None
    assert '"people"' in constraint.text


async def test_what_was_cut_is_no_place() -> None:
    """The helper says so instead of giving half of one."""
    async with openai_client(api_saying('{"name": "Bo', FinishReason.LENGTH)) as sdk:
        with pytest.raises(openai.LengthFinishReasonError):
            await sdk.chat.completions.parse(model="tiny", messages=MESSAGES, response_format=Place)


async def test_parsed_arguments_whole_and_streamed() -> None:
    async with openai_client(api_saying(CALL)) as sdk:
        whole = await sdk.chat.completions.parse(model="tiny", messages=MESSAGES, tools=[WEATHER])
        async with sdk.chat.completions.stream(model="tiny", messages=MESSAGES, tools=[WEATHER]) as stream:
            done = [event async for event in stream if event.type == "tool_calls.function.arguments.done"]
            final = await stream.get_final_completion()
    for completion in (whole, final):
        calls = completion.choices[0].message.tool_calls
        assert calls is not None
        (call,) = calls
        assert call.function.parsed_arguments == Weather(city="Bonn")
        assert completion.choices[0].finish_reason == "tool_calls"
    assert [event.parsed_arguments for event in done] == [Weather(city="Bonn")]


async def test_tools_are_run_until_there_is_an_answer() -> None:
    """The client calls, sends the result as a turn of its own, and gets the text that follows."""

    async def script(request: GenerationRequest, tokenizer: Tokenizer) -> AsyncGenerator[GenerationEvent, None]:
        prompt = tokenizer.decode(request.prompt_token_ids, skip_special=False)
        said = "It rains." if "<|im_start|>tool\nrain in Bonn" in prompt else CALL
        async for event in saying(said)(request, tokenizer):
            yield event

    async def weather(arguments: dict[str, object]) -> str:
        return f"rain in {arguments['city']}"

    api = api_saying(CALL)
    api.generator.script = script
    runner = AsyncResponsesToolRunner(
        functions=[
            AsyncRegisteredFunction(
                {"type": "function", "name": "weather", "parameters": Weather.model_json_schema(), "strict": False},
                weather,
            )
        ]
    )
    async with openai_client(api) as sdk:
        for stream in (False, True):
            response = await runner.run(sdk, {"model": "tiny", "input": "hi"}, stream=stream, max_steps=4)
            assert response.output_text == "It rains."
    assert len(api.generator.requests) == 4


async def test_the_stream_helpers_events_of_responses() -> None:
    async with (
        openai_client(api_saying(TWO_CALLS)) as sdk,
        sdk.responses.stream(
            model="tiny", input="hi", tools=[{"type": "function", "name": "weather", "parameters": {}, "strict": False}]
        ) as stream,
    ):
        kinds = [event.type async for event in stream]
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert {"response.output_text.delta", "response.function_call_arguments.done"} <= set(kinds)


async def test_raw_and_streamed_responses(api: RestApi) -> None:
    async with openai_client(api) as sdk:
        raw = await sdk.chat.completions.with_raw_response.create(
            model="tiny", messages=MESSAGES, extra_headers={"x-request-id": "mine"}
        )
        assert raw.headers["x-request-id"] == "mine"
        completion = raw.parse()
        assert completion.id == "chatcmpl-mine"
        assert completion._request_id == "mine"
        async with sdk.chat.completions.with_streaming_response.create(model="tiny", messages=MESSAGES) as streamed:
            assert streamed.status_code == 200
            assert (await streamed.parse()).choices[0].message.content == completion.choices[0].message.content


async def test_a_timeout_of_the_client_cancels(api: RestApi) -> None:
    async def never(request: GenerationRequest, tokenizer: Tokenizer) -> AsyncGenerator[GenerationEvent, None]:
        await asyncio.Event().wait()
        yield  # type: ignore[misc]

    api.generator.script = never
    async with openai_client(api) as sdk:
        with pytest.raises(openai.APITimeoutError):
            await sdk.with_options(timeout=0.2).chat.completions.create(model="tiny", messages=MESSAGES)
        await eventually(lambda: api.generator.num_cancelled == 1, "it was cancelled")


_CLASSES: list[tuple[GatewayError, type[openai.APIStatusError], int, str]] = [
    (Overloaded("full"), openai.RateLimitError, 429, "server_overloaded"),
    (EngineFailed("broken"), openai.InternalServerError, 500, "engine_failed"),
    (NotSupported("cannot"), openai.InternalServerError, 501, "not_supported"),
    (NoBackend("none"), openai.InternalServerError, 503, "no_backend"),
    (Draining("bye"), openai.InternalServerError, 503, "draining"),
    (RequestTimeout("late"), openai.InternalServerError, 504, "request_timeout"),
]


async def test_each_failure_has_its_class(api: RestApi) -> None:
    async with openai_client(api) as sdk:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: sdk.chat.completions.create(model="tiny", messages=MESSAGES),
            lambda: sdk.chat.completions.create(model="tiny", messages=MESSAGES, stream=True),
            lambda: sdk.completions.create(model="tiny", prompt="hi"),
            lambda: sdk.responses.create(model="tiny", input="hi"),
        ]
        for failure, kind, status, code in _CLASSES:
            api.generator.script = fails_with(failure)
            for call in calls:
                with pytest.raises(openai.APIStatusError) as caught:
                    await call()
                assert isinstance(caught.value, kind)
                assert (caught.value.status_code, caught.value.code) == (status, code)
                assert isinstance(caught.value.body, dict)
                assert caught.value.body["message"] == failure.message
                assert caught.value.request_id


async def test_too_much_is_said(api: RestApi) -> None:
    api.settings = replace(api.settings, max_body_bytes=2000)
    async with openai_client(api) as sdk:
        with pytest.raises(openai.APIStatusError) as large:
            await sdk.completions.create(model="tiny", prompt="x" * 4000)
    assert (large.value.status_code, large.value.code) == (413, "request_too_large")


async def test_a_full_server_is_asked_again(api: RestApi) -> None:
    """When it says: the client obeys `retry-after-ms`."""
    refusals = iter([Overloaded("full", retry_after_s=0.01)])

    async def script(request: GenerationRequest, tokenizer: Tokenizer) -> AsyncGenerator[GenerationEvent, None]:
        if (refusal := next(refusals, None)) is not None:
            raise refusal
        async for event in answer(request, tokenizer):
            yield event

    api.generator.script = script
    async with openai_client(api) as sdk:
        completion = await sdk.with_options(max_retries=1).chat.completions.create(model="tiny", messages=MESSAGES)
    assert completion.choices[0].message.content
    assert len(api.generator.requests) == 2


async def test_the_client_that_blocks(api: RestApi) -> None:
    """The same over its other transport."""

    def use(url: str) -> tuple[str | None, str, list[str]]:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, _strict_response_validation=True) as sdk:
            whole = sdk.chat.completions.create(model="tiny", messages=MESSAGES).choices[0].message.content
            text = ""
            for chunk in sdk.chat.completions.create(model="tiny", messages=MESSAGES, stream=True):
                text += chunk.choices[0].delta.content or ""
            return whole, text, [model.id for model in sdk.models.list()]

    async with api.server() as url:
        whole, streamed, models = await asyncio.to_thread(use, url)
    assert whole == streamed
    assert models == ["tiny", "org/tiny-chat"]
