"""Fields that are known, change the result, and are not implemented: refusing beats silently dropping them."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.errors import InvalidRequest
from gateway.openai.fields import Fields, shown

# Refused whenever they hold anything but null or an empty value.
_REFUSED: Mapping[str, str] = {
    "suffix": "infilling is not supported",
    "use_beam_search": "beam search is not supported",
    "structured_outputs": "constrained decoding is not supported",
    "guided_json": "constrained decoding is not supported",
    "guided_regex": "constrained decoding is not supported",
    "guided_choice": "constrained decoding is not supported",
    "guided_grammar": "constrained decoding is not supported",
    "grammar": "constrained decoding is not supported",
    "json_schema": "constrained decoding is not supported",
    "regex": "constrained decoding is not supported",
    "ebnf": "constrained decoding is not supported",
    "chat_template": "a template per request is not allowed; the checkpoint's own is used",
    "prompt_embeds": "prompts are text or token ids",
    "audio": "only text is served",
    "web_search_options": "there is no web search",
    "logits_processors": "custom logits processors are not supported",
    "custom_logit_processor": "custom logits processors are not supported",
    "lora_path": "adapters are not supported",
    "kv_transfer_params": "KV transfer is not supported",
    "return_hidden_states": "hidden states are not returned",
    "repetition_detection": "repetition detection is not supported",
    "thinking_token_budget": "thinking budgets are not supported",
    "logprob_token_ids": "log-probabilities of chosen ids are not supported",
}


def refuse_unsupported(fields: Fields) -> None:
    """Raises InvalidRequest naming the first field that asks for something that is not there."""
    for name, reason in _REFUSED.items():
        if fields.raw(name):
            raise _unsupported(fields.path(name), f"{reason}; remove the field")
    _refuse_formats(fields)
    _refuse_tools(fields)
    modalities = fields.raw("modalities")
    if modalities is not None and modalities != ["text"]:
        raise _unsupported("modalities", 'only ["text"] is served')


def _refuse_formats(fields: Fields) -> None:
    response_format = fields.nested("response_format")
    if response_format is not None and response_format.raw("type") != "text":
        kind = shown(response_format.raw("type"))
        raise _unsupported("response_format", f'type {kind} is not supported; send {{"type": "text"}}')


def _refuse_tools(fields: Fields) -> None:
    """Tools are shown to the template; forcing a call would need constrained decoding."""
    for name in ("tool_choice", "function_call"):
        choice = fields.raw(name)
        if choice not in (None, "none", "auto"):
            raise _unsupported(name, 'forcing a call is not supported; send "auto" or "none"')


def _unsupported(param: str, reason: str) -> InvalidRequest:
    return InvalidRequest(param, f"Unsupported parameter '{param}': {reason}.", "unsupported_parameter")
