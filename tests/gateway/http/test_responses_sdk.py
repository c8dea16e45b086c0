"""OpenAI's own client, unmodified and validating, over responses and embeddings."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import openai
import pydantic
import pytest
from openai.types.responses import FunctionToolParam, ResponseFunctionToolCall

from gateway.errors import EngineFailed
from tests.gateway.http.responding import TWO_CALLS, failing, prompt_of
from tests.support.rest_api import RestApi
from tests.support.saying import api_saying
from tests.support.scripted_generator import answer_text, vector_of
from tests.support.sdks import openai_client
from tests.support.tokenizer_files import tiny_tokenizer

WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CLOCK: FunctionToolParam = {"type": "function", "name": "clock", "parameters": {}, "strict": False}


@pytest.fixture
async def sdk(api: RestApi) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai_client(api) as client:
        yield client


async def test_create(sdk: openai.AsyncOpenAI) -> None:
    response = await sdk.responses.create(model="tiny", input="hi", temperature=0.5, metadata={"a": "b"})
    assert response.output_text == answer_text(prompt_of(("user", "hi")), 0)
    assert response.status == "completed"
    assert response.usage is not None
    assert response.usage.input_tokens_details.cached_tokens == 1


async def test_stream(sdk: openai.AsyncOpenAI) -> None:
    text, kinds = "", []
    async for event in await sdk.responses.create(
        model="tiny", input="hi", stream=True, include=["message.output_text.logprobs"], top_logprobs=2
    ):
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type == "response.completed":
            assert event.response.output_text == text
    assert text == answer_text(prompt_of(("user", "hi")), 0)
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"


async def test_the_sdks_own_stream_helper() -> None:
    async with (
        openai_client(api_saying(TWO_CALLS)) as sdk,
        sdk.responses.stream(model="tiny", input="hi", tools=[WEATHER, CLOCK]) as stream,
    ):
        final = await stream.get_final_response()
    calls = [item for item in final.output if isinstance(item, ResponseFunctionToolCall)]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("weather", {"city": "Zürich 🙂"}),
        ("clock", {}),
    ]


async def test_a_conversation_goes_on_and_can_be_looked_at(sdk: openai.AsyncOpenAI, api: RestApi) -> None:
    first = await sdk.responses.create(model="tiny", input="hi")
    second = await sdk.responses.create(model="tiny", input="more", previous_response_id=first.id)
    assert api.generator.requests[1].prompt_token_ids == prompt_of(
        ("user", "hi"), ("assistant", first.output_text), ("user", "more")
    )
    assert await sdk.responses.retrieve(second.id) == second
    items = [item async for item in sdk.responses.input_items.list(second.id, limit=2)]
    assert [item.type for item in items] == ["message"] * 3
    await sdk.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.retrieve(second.id)
    with pytest.raises(openai.BadRequestError) as missing:
        await sdk.responses.create(model="tiny", input="more", previous_response_id=second.id)
    assert missing.value.code == "previous_response_not_found"


async def test_tools_there_and_back() -> None:
    api = api_saying(TWO_CALLS)
    async with openai_client(api) as sdk:
        first = await sdk.responses.create(model="tiny", input="hi", tools=[WEATHER, CLOCK])
        calls = [item for item in first.output if isinstance(item, ResponseFunctionToolCall)]
        await sdk.responses.create(
            model="tiny",
            previous_response_id=first.id,
            input=[{"type": "function_call_output", "call_id": call.call_id, "output": "x"} for call in calls],
            tools=[WEATHER, CLOCK],
        )
    assert "<|im_start|>tool\nx" in api.cluster.served.decode(
        api.generator.requests[1].prompt_token_ids, skip_special=False
    )


class Place(pydantic.BaseModel):
    name: str
    people: int


async def test_parse() -> None:
    async with openai_client(api_saying('{"name": "Bonn", "people": 330000}')) as sdk:
        response = await sdk.responses.parse(model="tiny", input="hi", text_format=Place)
        assert response.output_parsed == Place(name="Bonn", people=330000)
        async with sdk.responses.stream(model="tiny", input="hi", text_format=Place) as stream:
            final = await stream.get_final_response()
        assert final.output_parsed == response.output_parsed


async def test_incomplete(sdk: openai.AsyncOpenAI) -> None:
    response = await sdk.responses.create(model="tiny", input="hi", max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


async def test_a_late_error_is_told(api: RestApi) -> None:
    api.generator.script = failing(EngineFailed("broken"), 4)
    async with openai_client(api) as sdk:
        events = [event async for event in await sdk.responses.create(model="tiny", input="hi", stream=True)]
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.message == "broken"


async def test_tokens_are_counted(sdk: openai.AsyncOpenAI) -> None:
    counted = await sdk.responses.input_tokens.count(model="tiny", input="hi")
    assert counted.input_tokens == len(prompt_of(("user", "hi")))


@pytest.mark.parametrize("packed", [False, True])
async def test_embeddings(sdk: openai.AsyncOpenAI, api: RestApi, packed: bool) -> None:
    """Without a format the client asks for base64 and unpacks it, but only after it has validated."""
    if packed:
        async with openai.AsyncOpenAI(base_url=sdk.base_url, api_key="secret", max_retries=0) as lenient:
            answer = await lenient.embeddings.create(model="tiny", input=["hi", "hello"], dimensions=3)
    else:
        answer = await sdk.embeddings.create(model="tiny", input=["hi", "hello"], dimensions=3, encoding_format="float")
    (request,) = api.embedder.requests
    assert [entry.embedding for entry in answer.data] == [list(vector_of(i, request)) for i in request.inputs]
    assert answer.usage.prompt_tokens == sum(len(tiny_tokenizer().encode(text)) for text in ("hi", "hello"))
