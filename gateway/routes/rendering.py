"""What a conversation becomes before it reaches the model: its text, its ids, how many they are."""

from __future__ import annotations

from typing import Annotated, TypedDict

from starlette.requests import Request
from starlette.responses import Response

from gateway.openai.chat_request import Conversation, ConversationBody, parse_conversation
from gateway.openai.fields import Fields
from gateway.openai.tools import ToolsBody, parse_tools
from gateway.prompts import off_loop
from gateway.responses.bodies import InputTokens
from gateway.routes.serving import ServedModel, Serving, json_response, read_object


class RenderBody(ToolsBody, ConversationBody, total=False):
    """A chat's body; only what the chat template sees of it matters."""

    model: Annotated[str, "A served name; absent, the one that is served."]


class Rendered(TypedDict):
    """A conversation as the model sees it."""

    prompt: str
    prompt_token_ids: list[int]
    count: int
    max_model_len: int


class Rendering:
    """Bodies are those of /v1/chat/completions; only what the chat template sees of them matters."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def render(self, request: Request) -> Response:
        """POST /v1/chat/completions/render and /apply-template: the prompt as text and as ids."""
        model, conversation, size = await self._read(request)
        text, token_ids = await off_loop(size, lambda: _rendered(conversation, model))
        rendered: Rendered = {
            "prompt": text,
            "prompt_token_ids": token_ids,
            "count": len(token_ids),
            "max_model_len": model.info.max_model_len,
        }
        return json_response(rendered)

    async def count(self, request: Request) -> Response:
        """POST /v1/chat/completions/input_tokens: how many tokens the prompt has."""
        model, conversation, size = await self._read(request)
        _, token_ids = await off_loop(size, lambda: _rendered(conversation, model))
        size_body: InputTokens = {"object": "response.input_tokens", "input_tokens": len(token_ids)}
        return json_response(size_body)

    async def _read(self, request: Request) -> tuple[ServedModel, Conversation, int]:
        model, conversation = await read_object(request, self._parse)
        return model, conversation, len(await request.body())

    def _parse(self, body: dict[str, object]) -> tuple[ServedModel, Conversation]:
        fields = Fields(body, shape=RenderBody)
        parse_tools(fields)  # the template gets them as they are, if they are good
        return self._serving.model(body.get("model")), parse_conversation(fields)


def _rendered(conversation: Conversation, model: ServedModel) -> tuple[str, list[int]]:
    """The text is what the ids say, so that special tokens which users wrote look like what they are: text."""
    token_ids = model.tokenizer.encode_chat(
        conversation.messages,
        add_generation_prompt=conversation.add_generation_prompt,
        continue_final_message=conversation.continue_final_message,
        variables=conversation.variables,
        add_special=conversation.add_special,
    )
    return model.tokenizer.decode(token_ids, skip_special=False), token_ids
