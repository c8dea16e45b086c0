"""Fields that are known, change the result, and are not implemented: refusing beats silently dropping them."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.errors import InvalidRequest
from gateway.openai.fields import Fields

# Refused whenever they hold anything but null or an empty value.
REFUSED: Mapping[str, str] = {
    "suffix": "infilling is not supported",
    "use_beam_search": "beam search is not supported",
    "guided_json": "'structured_outputs.json' has this meaning here",
    "guided_regex": "'structured_outputs.regex' has this meaning here",
    "guided_choice": "'structured_outputs.choice' has this meaning here",
    "guided_grammar": "'structured_outputs.grammar' has this meaning here",
    "grammar": "'structured_outputs.grammar' has this meaning here",
    "json_schema": "'structured_outputs.json' has this meaning here",
    "regex": "'structured_outputs.regex' has this meaning here",
    "ebnf": "'structured_outputs.grammar' has this meaning here",
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
    for name, reason in REFUSED.items():
        if fields.raw(name):
            raise _unsupported(fields.path(name), f"{reason}; remove the field")
    _refuse_outputs(fields)
    _refuse_functions(fields)
    modalities = fields.raw("modalities")
    if modalities is not None and modalities != ["text"]:
        raise _unsupported("modalities", 'only ["text"] is served')


def _refuse_outputs(fields: Fields) -> None:
    outputs = fields.nested("structured_outputs")
    for name in ("structural_tag", "whitespace_pattern"):
        if outputs is not None and outputs.raw(name):
            raise _unsupported(outputs.path(name), "only json, regex, choice, grammar and json_object are; remove it")


def _refuse_functions(fields: Fields) -> None:
    """What came before tools."""
    if fields.raw("functions"):
        raise _unsupported("functions", "'tools' has this meaning")
    if fields.raw("function_call") not in (None, "none", "auto"):
        raise _unsupported("function_call", "'tool_choice' has this meaning")


def _unsupported(param: str, reason: str) -> InvalidRequest:
    return InvalidRequest(param, f"Unsupported parameter '{param}': {reason}.", "unsupported_parameter")
