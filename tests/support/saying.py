"""Applications whose model says a given text, in a chat template that knows tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from gateway.generation_request import (
    ChoiceDelta,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    GenerationUsage,
    PromptReport,
)
from gateway.tokenizer import Tokenizer
from tests.support.rest_api import RestApi
from tests.support.scripted_generator import Script, ScriptedCluster, ScriptedGenerator, logprob_of
from tests.support.tokenizer_files import CHAT_TEMPLATE, archive, tiny_metadata

HERMES_TEMPLATE = "{% if tools %}{{ tools | tojson }}Answer with <tool_call></tool_call>{% endif %}" + CHAT_TEMPLATE


def saying(text: str, reason: FinishReason = FinishReason.STOP) -> Script:
    """Answers each choice with `text`, three characters at a time."""

    async def script(request: GenerationRequest, tokenizer: Tokenizer) -> AsyncGenerator[GenerationEvent, None]:
        yield PromptReport(len(request.prompt_token_ids), 0)
        for start in range(0, len(text), 3):
            for index in range(request.n):
                part = text[start : start + 3]
                ids = tuple(tokenizer.encode(part))
                yield ChoiceDelta(index, part, ids, tuple(e for i in ids for e in logprob_of(i, request.logprobs)))
        for index in range(request.n):
            yield ChoiceDelta(index, "", (2,), logprob_of(2, request.logprobs), reason)
        yield GenerationUsage(len(request.prompt_token_ids), len(text), 0)

    return script


def api_saying(text: str, reason: FinishReason = FinishReason.STOP, template: str = HERMES_TEMPLATE) -> RestApi:
    metadata = tiny_metadata(chat_template=template)
    cluster = ScriptedCluster(served=Tokenizer.from_archive(archive({"gguf_tokenizer.json": metadata})))
    return RestApi(generator=ScriptedGenerator(script=saying(text, reason)), cluster=cluster)
