"""POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, NotRequired, Required, TypedDict

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import InvalidRequest
from gateway.openai.chat_request import MessageBody, parse_conversation
from gateway.openai.fields import Fields
from gateway.openai.options import TokenId
from gateway.openai.tools import ToolsBody
from gateway.prompts import off_loop
from gateway.routes.serving import ServedModel, Serving, json_response, read_object
from gateway.schema.limits import Chars, Items
from gateway.tokenizer import Tokenizer

_TEXT_FIELDS = ("prompt", "content", "text")
_MAX_TEXT = 64 << 20
_MAX_IDS = 4 << 20
_Text = Annotated[str, Chars(_MAX_TEXT)]


class TokenizeBody(ToolsBody, total=False):
    """Text as `prompt`, `content` or `text`, or `messages`, which go through the chat template."""

    model: str
    prompt: _Text
    content: _Text
    text: _Text
    messages: Annotated[list[MessageBody], Items(4096, fewest=1)]
    add_generation_prompt: bool
    continue_final_message: bool
    chat_template_kwargs: dict[str, object]
    add_special_tokens: bool
    parse_special: bool
    return_token_strs: bool


class Tokens(TypedDict):
    """Ids of a text."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: NotRequired[list[str]]


class DetokenizeBody(TypedDict, total=False):
    """Ids to spell."""

    model: str
    tokens: Required[Annotated[list[TokenId], Items(_MAX_IDS)]]
    skip_special_tokens: bool


class Text(TypedDict):
    """The text, under the names that clients look for."""

    prompt: str
    content: str
    text: str


class Tokenization:
    """Text, or messages through the chat template, to ids, and ids to text."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def tokenize(self, request: Request) -> Response:
        body = await read_object(request, dict)
        fields = Fields(body, shape=TokenizeBody)
        model = self._serving.model(fields.raw("model"))
        length = len(await request.body())  # kept since it was read; a chunked body has no declared length
        return await off_loop(length, lambda: json_response(_tokens(fields, model)))

    async def detokenize(self, request: Request) -> Response:
        fields = Fields(await read_object(request, dict), shape=DetokenizeBody)
        model = self._serving.model(fields.raw("model"))
        if fields.raw("tokens") is None:
            fields.missing("tokens")
        token_ids = fields.token_ids("tokens", vocab_size=model.info.vocab_size)
        skip_special = fields.boolean("skip_special_tokens")
        text = await off_loop(len(token_ids), lambda: model.tokenizer.decode(token_ids, skip_special=skip_special))
        # The name of the answer's field differs between servers.
        answer: Text = {"prompt": text, "content": text, "text": text}
        return json_response(answer)


def _tokens(fields: Fields, model: ServedModel) -> Tokens:
    token_ids = _token_ids(fields, model.tokenizer)
    answer: Tokens = {"count": len(token_ids), "max_model_len": model.info.max_model_len, "tokens": token_ids}
    if fields.boolean("return_token_strs"):
        answer["token_strs"] = [model.tokenizer.token_text(token_id) for token_id in token_ids]
    return answer


def _token_ids(fields: Fields, tokenizer: Tokenizer) -> list[int]:
    if fields.raw("messages") is not None:
        conversation = parse_conversation(fields)
        return tokenizer.encode_chat(
            conversation.messages,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            variables=conversation.variables,
            add_special=conversation.add_special,
        )
    text = next((t for t in (fields.string(name) for name in _TEXT_FIELDS) if t is not None), None)
    if text is None:
        raise InvalidRequest("prompt", "Send 'prompt' (text) or 'messages'.", "missing_required_parameter")
    return tokenizer.encode(
        text,
        parse_special=fields.boolean("parse_special", True),
        add_special=fields.boolean("add_special_tokens", True),
    )
