"""LangChain's chat model for OpenAI, unmodified: text, tools and structured output, over chat and over responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pydantic
import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from tests.gateway.http.responding import TWO_CALLS, prompt_of
from tests.support.rest_api import RestApi
from tests.support.saying import api_saying
from tests.support.scripted_generator import answer_text, vector_of

ROADS = pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])


@tool
def weather(city: str) -> str:
    """Tells the weather of a city."""
    return f"rain in {city}"


@tool
def clock() -> str:
    """Tells the time."""
    return "noon"


class Place(pydantic.BaseModel):
    """A place."""

    name: str
    people: int


@asynccontextmanager
async def model_of(api: RestApi, responses: bool) -> AsyncIterator[ChatOpenAI]:
    async with api.server() as url, openai.DefaultAsyncHttpxClient() as http:
        yield ChatOpenAI(
            model="tiny",
            base_url=f"{url}/v1",
            api_key="x",  # type: ignore[arg-type]
            max_retries=0,
            use_responses_api=responses,
            stream_usage=True,
            http_async_client=http,
        )


def text_of(message: Any) -> str:
    return str(message.text)


@ROADS
async def test_text_whole_and_streamed(api: RestApi, responses: bool) -> None:
    expected = answer_text(prompt_of(("user", "hi")), 0)
    async with model_of(api, responses) as model:
        message = await model.ainvoke("hi")
        assert text_of(message) == expected
        assert message.usage_metadata is not None
        assert message.usage_metadata["input_tokens"] == len(prompt_of(("user", "hi")))
        total: AIMessageChunk | None = None
        async for chunk in model.astream("hi"):
            assert isinstance(chunk, AIMessageChunk)
            total = chunk if total is None else total + chunk
    assert total is not None
    assert text_of(total) == expected
    assert total.usage_metadata == message.usage_metadata


@ROADS
async def test_blocking_calls_and_batches(api: RestApi, responses: bool) -> None:
    """`invoke`, `stream` and `batch` go over the client's other transport."""

    def use(url: str) -> tuple[str, str, list[str]]:
        model = ChatOpenAI(
            model="tiny",
            base_url=f"{url}/v1",
            api_key="x",  # type: ignore[arg-type]
            max_retries=0,
            use_responses_api=responses,
        )
        try:
            streamed = "".join(text_of(chunk) for chunk in model.stream("hi"))
            return text_of(model.invoke("hi")), streamed, [text_of(each) for each in model.batch(["hi", "ho", "hi"])]
        finally:
            model.root_client.close()

    async with api.server() as url:
        whole, streamed, batch = await asyncio.to_thread(use, url)
    expected = [answer_text(prompt_of(("user", text)), 0) for text in ("hi", "ho", "hi")]
    assert whole == streamed == expected[0]
    assert batch == expected


@ROADS
async def test_batches_and_what_went_wrong(api: RestApi, responses: bool) -> None:
    async with model_of(api, responses) as model:
        messages = await model.abatch(["hi", "ho"])
        assert [text_of(message) for message in messages] == [
            answer_text(prompt_of(("user", text)), 0) for text in ("hi", "ho")
        ]
        with pytest.raises(openai.BadRequestError, match="temperature"):
            await model.bind(temperature=3).ainvoke("hi")
        with pytest.raises(openai.NotFoundError):
            await model.bind(model="gpt-9").ainvoke("hi")


@ROADS
async def test_tools_there_and_back(responses: bool) -> None:
    api = api_saying(TWO_CALLS)
    async with model_of(api, responses) as model:
        bound = model.bind_tools([weather, clock])
        message = await bound.ainvoke("hi")
        assert [(call["name"], call["args"]) for call in message.tool_calls] == [
            ("weather", {"city": "Zürich 🙂"}),
            ("clock", {}),
        ]
        total: Any = None
        async for chunk in bound.astream("hi"):
            total = chunk if total is None else total + chunk
        assert [(call["name"], call["args"]) for call in total.tool_calls] == [
            (call["name"], call["args"]) for call in message.tool_calls
        ]
        results = [ToolMessage("sun", tool_call_id=call["id"]) for call in message.tool_calls]
        await bound.ainvoke([HumanMessage("hi"), message, *results])
    prompt = api.cluster.served.decode(api.generator.requests[-1].prompt_token_ids, skip_special=False)
    assert prompt.count("<|im_start|>tool\nsun") == 2


@ROADS
@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
async def test_structured_output(responses: bool, method: Any) -> None:
    arguments = '{"name": "Bonn", "people": 330000}'
    said = arguments if method != "function_calling" else f'<tool_call>\n{{"name": "Place", "arguments": {arguments}}}'
    api = api_saying(said)
    async with model_of(api, responses) as model:
        place = await model.with_structured_output(Place, method=method).ainvoke("hi")
        both = await model.with_structured_output(Place, method=method, include_raw=True).ainvoke("hi")
    assert place == Place(name="Bonn", people=330000)
    assert isinstance(both, dict)
    assert both["parsed"] == place
    assert both["parsing_error"] is None
    constraint = api.generator.requests[0].constraint
    assert constraint is not None
    assert ("people" in constraint.text) == (method != "json_mode")


@ROADS
async def test_a_tool_can_be_forced(responses: bool) -> None:
    """`any` is LangChain's word for "required"."""
    for choice in ("any", "clock"):
        api = api_saying('<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>')
        async with model_of(api, responses) as model:
            message = await model.bind_tools([weather, clock], tool_choice=choice).ainvoke("hi")
        (call,) = message.tool_calls
        assert (call["name"], call["args"]) == ("clock", {})
        assert api.generator.requests[0].constraint is not None


async def test_embeddings(api: RestApi) -> None:
    async with api.server() as url, openai.DefaultAsyncHttpxClient() as http:
        embeddings = OpenAIEmbeddings(
            model="tiny",
            base_url=f"{url}/v1",
            api_key="x",  # type: ignore[arg-type]
            http_async_client=http,
            check_embedding_ctx_length=False,  # it would count with a tokenizer of OpenAI's own models
        )
        vectors = await embeddings.aembed_documents(["hi", "hello"])
        (request,) = api.embedder.requests
        assert vectors == [list(vector_of(i, request)) for i in request.inputs]
        assert await embeddings.aembed_query("hi") == vectors[0]
