"""The official SDK, validating every response strictly, against a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletionUserMessageParam

from gateway.errors import EngineFailed, Overloaded
from tests.gateway.http.test_errors import fails_with
from tests.support.rest_api import RestApi
from tests.support.scripted_generator import answer_text
from tests.support.sdks import openai_client
from tests.support.tokenizer_files import tiny_tokenizer

MESSAGES: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hi"}]
PROMPT_IDS = tiny_tokenizer().encode_chat([{"role": "user", "content": "hi"}])


@pytest.fixture
async def sdk(api: RestApi) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai_client(api) as client:
        yield client


async def test_models(sdk: openai.AsyncOpenAI) -> None:
    models = [model.id async for model in sdk.models.list()]
    assert models == ["tiny", "org/tiny-chat"]
    assert (await sdk.models.retrieve("org/tiny-chat")).id == "org/tiny-chat"


async def test_chat(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model="tiny", messages=MESSAGES)
    assert answer.choices[0].message.content == answer_text(PROMPT_IDS, 0)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 1


async def test_chat_with_two_choices_and_logprobs(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model="tiny", messages=MESSAGES, n=2, logprobs=True, top_logprobs=2)
    assert [choice.message.content for choice in answer.choices] == [answer_text(PROMPT_IDS, i) for i in range(2)]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert [len(entry.top_logprobs) for entry in choice.logprobs.content] == [2] * len(choice.logprobs.content)


async def test_chat_streamed(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        n=2,
        logprobs=True,
        stream=True,
        stream_options={"include_usage": True},
    )
    texts = ["", ""]
    usages = []
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
        usages += [chunk.usage] if chunk.usage else []
    assert texts == [answer_text(PROMPT_IDS, i) for i in range(2)]
    assert len(usages) == 1


async def test_the_sdks_own_stream_helper(sdk: openai.AsyncOpenAI) -> None:
    async with sdk.chat.completions.stream(model="tiny", messages=MESSAGES) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == answer_text(PROMPT_IDS, 0)
    assert final.choices[0].finish_reason == "stop"


async def test_completions(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.completions.create(model="tiny", prompt=["hi", "ho"], n=2, logprobs=2, max_tokens=50)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[3].text == answer_text(tiny_tokenizer().encode("ho"), 1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.text_offset is not None
    assert logprobs.text_offset[:3] == [0, 1, 2]


async def test_completions_echoed(sdk: openai.AsyncOpenAI) -> None:
    """Without logprobs: the null that stands for the first prompt token is on OpenAI's wire, not in the SDK's types."""
    answer = await sdk.completions.create(model="tiny", prompt="hi", echo=True, max_tokens=50)
    assert answer.choices[0].text == "hi" + answer_text(tiny_tokenizer().encode("hi"), 0)


async def test_completions_streamed(sdk: openai.AsyncOpenAI) -> None:
    """The SDK's type has no null finish reason, although OpenAI's own chunks have; everything else must validate.
    Breakage 41.
    """
    lenient = openai.AsyncOpenAI(base_url=sdk.base_url, api_key="secret", max_retries=0)
    async with lenient:
        stream = await lenient.completions.create(
            model="tiny", prompt="hi", max_tokens=50, logprobs=1, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk.to_dict() async for chunk in stream]
    reasons = []
    for chunk in chunks:
        for choice in cast(list[dict[str, object]], chunk["choices"]):
            reasons.append(choice["finish_reason"])
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        Completion.model_validate(chunk)
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert [chunk["usage"] is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]


async def test_errors(sdk: openai.AsyncOpenAI, api: RestApi) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        await sdk.chat.completions.create(model="tiny", messages=MESSAGES, temperature=3)
    assert (wrong.value.param, wrong.value.code) == ("temperature", "invalid_value")
    with pytest.raises(openai.BadRequestError) as long:
        await sdk.completions.create(model="tiny", prompt="x" * 600)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as missing:
        await sdk.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError) as key:
        await sdk.with_options(api_key="wrong").models.list()
    assert key.value.code == "invalid_api_key"
    api.generator.script = fails_with(Overloaded("full"))
    with pytest.raises(openai.RateLimitError):
        await sdk.chat.completions.create(model="tiny", messages=MESSAGES)


async def test_an_error_within_a_stream_is_raised(sdk: openai.AsyncOpenAI, api: RestApi) -> None:
    api.generator.script = fails_with(EngineFailed("broken"), after=2)
    stream = await sdk.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="broken"):
        async for _ in stream:
            pass


async def test_a_poisonous_request_is_sent_once(sdk: openai.AsyncOpenAI, api: RestApi) -> None:
    """The SDK repeats a 500 twice unless it is told not to."""
    api.generator.script = fails_with(RuntimeError("bug"))
    with pytest.raises(openai.InternalServerError):
        await sdk.with_options(max_retries=2).chat.completions.create(model="tiny", messages=MESSAGES)
    assert len(api.generator.requests) == 1
