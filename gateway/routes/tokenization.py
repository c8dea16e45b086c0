"""POST /tokenize and /detokenize."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import InvalidRequest
from gateway.openai.chat_request import parse_conversation
from gateway.openai.fields import Fields
from gateway.prompts import off_loop
from gateway.routes.serving import Serving, json_response, read_object
from gateway.tokenizer import Tokenizer

_TEXT_FIELDS = ("prompt", "content", "text")
_MAX_TEXT = 64 << 20
_MAX_IDS = 4 << 20


class Tokenization:
    """Text, or messages through the chat template, to ids, and ids to text."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def tokenize(self, request: Request) -> Response:
        body = await read_object(request, dict)
        fields = Fields(body)
        model = self._serving.model(fields.raw("model"))
        length = len(await request.body())  # kept since it was read; a chunked body has no declared length
        token_ids = await off_loop(length, lambda: _token_ids(fields, model.tokenizer))
        answer: dict[str, object] = {
            "count": len(token_ids),
            "max_model_len": model.info.max_model_len,
            "tokens": token_ids,
        }
        if fields.boolean("return_token_strs"):
            answer["token_strs"] = [model.tokenizer.token_text(token_id) for token_id in token_ids]
        return json_response(answer)

    async def detokenize(self, request: Request) -> Response:
        fields = Fields(await read_object(request, dict))
        model = self._serving.model(fields.raw("model"))
        if fields.raw("tokens") is None:
            fields.missing("tokens")
        token_ids = fields.token_ids("tokens", vocab_size=model.info.vocab_size, max_items=_MAX_IDS)
        skip_special = fields.boolean("skip_special_tokens")
        text = await off_loop(len(token_ids), lambda: model.tokenizer.decode(token_ids, skip_special=skip_special))
        # The name of the answer's field differs between servers.
        return json_response({"prompt": text, "content": text, "text": text})


def _token_ids(fields: Fields, tokenizer: Tokenizer) -> list[int]:
    if fields.raw("messages") is not None:
        conversation = parse_conversation(fields)
        return tokenizer.encode_chat(
            conversation.messages,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            variables=conversation.variables,
        )
    text = next(
        (t for t in (fields.string(name, max_length=_MAX_TEXT) for name in _TEXT_FIELDS) if t is not None), None
    )
    if text is None:
        raise InvalidRequest("prompt", "Send 'prompt' (text) or 'messages'.", "missing_required_parameter")
    return tokenizer.encode(
        text,
        parse_special=fields.boolean("parse_special", True),
        add_special=fields.boolean("add_special_tokens", True),
    )
