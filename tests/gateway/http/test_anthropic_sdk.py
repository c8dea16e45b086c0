"""Anthropic's own client, unmodified, over /v1/messages."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import pydantic
import pytest
from anthropic.types import MessageParam, TextBlock, ToolParam, ToolUseBlock

from gateway.errors import EngineFailed, Overloaded
from tests.gateway.http.responding import failing, prompt_of
from tests.gateway.http.test_messages import TWO_CALLS
from tests.support.rest_api import RestApi
from tests.support.saying import api_saying
from tests.support.scripted_generator import answer_text
from tests.support.sdks import anthropic_client

MESSAGES: list[MessageParam] = [{"role": "user", "content": "hi"}]
TOOLS: list[ToolParam] = [
    {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}},
    {"name": "clock", "input_schema": {"type": "object"}},
]


@pytest.fixture
async def sdk(api: RestApi) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic_client(api) as client:
        yield client


async def test_create(sdk: anthropic.AsyncAnthropic) -> None:
    message = await sdk.messages.create(model="tiny", max_tokens=100, messages=MESSAGES, system="x")
    (block,) = message.content
    assert isinstance(block, TextBlock)
    assert block.text == answer_text(prompt_of(("system", "x"), ("user", "hi")), 0)
    assert message.stop_reason == "end_turn"
    assert message._request_id


async def test_raw_stream(sdk: anthropic.AsyncAnthropic) -> None:
    stream = await sdk.messages.create(model="tiny", max_tokens=100, messages=MESSAGES, stream=True)
    kinds = [event.type async for event in stream]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


async def test_the_sdks_own_stream_helper(sdk: anthropic.AsyncAnthropic) -> None:
    async with sdk.messages.stream(model="tiny", max_tokens=100, messages=MESSAGES) as stream:
        text = "".join([part async for part in stream.text_stream])
        final = await stream.get_final_message()
    assert text == answer_text(prompt_of(("user", "hi")), 0)
    assert isinstance(final.content[0], TextBlock)
    assert final.content[0].text == text
    assert final.usage.output_tokens > 0


async def test_tools_there_and_back() -> None:
    api = api_saying(TWO_CALLS)
    async with anthropic_client(api) as sdk:
        async with sdk.messages.stream(model="tiny", max_tokens=100, messages=MESSAGES, tools=TOOLS) as stream:
            streamed = await stream.get_final_message()
        whole = await sdk.messages.create(model="tiny", max_tokens=100, messages=MESSAGES, tools=TOOLS)
        for message in (streamed, whole):
            calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
            assert [(call.name, call.input) for call in calls] == [("weather", {"city": "Zürich 🙂"}), ("clock", {})]
            assert message.stop_reason == "tool_use"
        results: list[MessageParam] = [
            *MESSAGES,
            {"role": "assistant", "content": whole.content},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sun"} for call in calls],
            },
        ]
        await sdk.messages.create(model="tiny", max_tokens=100, messages=results, tools=TOOLS)
    assert "<|im_start|>tool\nsun" in api.cluster.served.decode(
        api.generator.requests[-1].prompt_token_ids, skip_special=False
    )


async def test_count_tokens(sdk: anthropic.AsyncAnthropic) -> None:
    counted = await sdk.messages.count_tokens(model="tiny", messages=MESSAGES, tools=TOOLS)
    assert counted.input_tokens == len(prompt_of(("user", "hi")))


class Place(pydantic.BaseModel):
    name: str


async def test_parse() -> None:
    async with anthropic_client(api_saying('{"name": "Bonn"}')) as sdk:
        message = await sdk.messages.parse(model="tiny", max_tokens=100, messages=MESSAGES, output_format=Place)
    assert message.parsed_output == Place(name="Bonn")


async def test_errors(sdk: anthropic.AsyncAnthropic, api: RestApi) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        await sdk.messages.create(model="tiny", max_tokens=100, messages=MESSAGES, extra_body={"temperature": 3})
    with pytest.raises(anthropic.NotFoundError):
        await sdk.messages.create(model="claude", max_tokens=100, messages=MESSAGES)
    with pytest.raises(anthropic.AuthenticationError):
        await sdk.with_options(api_key="wrong").messages.create(model="tiny", max_tokens=100, messages=MESSAGES)
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        await sdk.messages.create(model="tiny", max_tokens=9, messages=[{"role": "user", "content": "x" * 600}])
    api.generator.script = failing(Overloaded("full"), 0)
    with pytest.raises(anthropic.RateLimitError):
        await sdk.messages.create(model="tiny", max_tokens=100, messages=MESSAGES)
    api.generator.script = failing(EngineFailed("broken"), 4)
    with pytest.raises(anthropic.APIStatusError, match="broken"):
        async for _ in await sdk.messages.create(model="tiny", max_tokens=100, messages=MESSAGES, stream=True):
            pass


async def test_models(sdk: anthropic.AsyncAnthropic) -> None:
    models = [model.id async for model in sdk.models.list()]
    assert models == ["tiny", "org/tiny-chat"]
