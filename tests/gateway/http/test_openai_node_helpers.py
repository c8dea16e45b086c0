"""The helpers of OpenAI's client for Node: parsing with zod, tools that are run, raw responses, errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from gateway.generation_request import GenerationEvent, GenerationRequest
from gateway.tokenizer import Tokenizer
from tests.gateway.http.test_openai_node import run
from tests.support.rest_api import RestApi
from tests.support.saying import api_saying, saying
from tests.support.tokenizer_files import tiny_tokenizer

SCRIPT = "openai_helpers.mjs"
PLACE = {"name": "Bonn", "people": 330000}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'


async def test_parsing_with_zod(installed: Path) -> None:
    api = api_saying('{"name": "Bonn", "people": 330000}')
    got = await run(installed, api, SCRIPT, MUSTER_PART="parse")
    assert got["chat"] == got["chat_streamed"] == got["response"] == got["response_streamed"] == PLACE
    assert got["raw_status"] == 200
    assert got["request_ids_agree"] is True
    assert got["bare"] == "list"
    schemas = {request.constraint.text for request in api.generator.requests[:4] if request.constraint is not None}
    assert len(schemas) == 1, "the same schema on all four roads"


async def test_tools_are_run(installed: Path) -> None:
    """The client calls the function, sends its result, and gets the text that follows it."""
    api = api_saying(CALL)

    async def script(request: GenerationRequest, tokenizer: Tokenizer) -> AsyncGenerator[GenerationEvent, None]:
        prompt = tokenizer.decode(request.prompt_token_ids, skip_special=False)
        text = "It rains." if "<|im_start|>tool\nrain in Bonn" in prompt else CALL
        async for event in saying(text)(request, tokenizer):
            yield event

    api.generator.script = script
    got = await run(installed, api, SCRIPT, MUSTER_PART="tools")
    assert got["asked"] == ["Bonn", "Bonn"]
    assert got["whole"] == got["streamed"] == "It rains."
    assert got["parsed"] == got["response"] == [{"city": "Bonn"}]


async def test_errors_have_their_classes_and_say_what_is_not_served(installed: Path, api: RestApi) -> None:
    late = tuple(tiny_tokenizer().encode("late"))
    plain = api.generator.script

    async def script(request: GenerationRequest, tokenizer: Tokenizer) -> AsyncGenerator[GenerationEvent, None]:
        if request.prompt_token_ids == late:
            await asyncio.Event().wait()
        async for event in plain(request, tokenizer):
            yield event

    api.generator.script = script
    got = await run(installed, api, SCRIPT, MUSTER_PART="errors")
    for name, error in got["unserved"].items():
        if name in ("chat.completions.list", "models.delete", "responses.compact"):  # there, with other methods
            assert (error["name"], error["status"]) == ("APIError", 405), name
            assert "is not allowed; use" in error["message"]
        else:
            assert (error["name"], error["status"]) == ("NotFoundError", 404), name
            assert error["type"] == "not_found_error"
            assert "There is no " in error["message"], name
    assert (got["wrong"]["name"], got["wrong"]["code"]) == ("BadRequestError", "invalid_value")
    assert (got["key"]["name"], got["key"]["status"]) == ("AuthenticationError", 401)
    assert (got["cancel"]["name"], got["cancel"]["code"]) == ("NotFoundError", "response_not_found")
    assert got["gone"]["name"] == "APIConnectionError"
    assert got["late"]["name"] == "APIConnectionTimeoutError"
    assert api.generator.num_cancelled == 1, "who gives up waiting cancels"
