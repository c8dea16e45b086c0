"""Thoughts in chat answers: apart from the content, under both names, streamed and not."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.settings import AppSettings
from tests.support.byte_tokenizer import TEMPLATE, tokenizer_archive
from tests.support.fake_engine import EngineScript, says
from tests.support.rest_api import Json, events_of
from tests.support.rest_cluster import rest_cluster

PATH = "/v1/chat/completions"
THINKING = TEMPLATE + "{# splits at </think> #}"
THINKING_ON = TEMPLATE + "{% if add_generation_prompt %}{% if think is not defined or think %}<think>\n{% else %}"
THINKING_ON += "<think>\n\n</think>\n\n{% endif %}{% endif %}"
MESSAGES = [{"role": "user", "content": "hi"}]
ANSWER = "<think>\nHello is STOP a word\n</think>\n\nThe answer STOP never"


async def ask(text: str, *, template: str = THINKING, parser: str = "auto", **fields: Any) -> tuple[Json, list[Json]]:
    """The whole answer and the streamed one; both must come to the same."""
    script = EngineScript(token=says(text), tokenizer=tokenizer_archive(template))
    async with rest_cluster(script, settings=AppSettings(reasoning_parser=parser)) as rest:
        body = {"messages": MESSAGES, "return_token_ids": True, **fields}
        whole = await rest.client.post(PATH, json=body)
        assert whole.status_code == 200, whole.text
        options = {"stream": True, "stream_options": {"include_usage": True}}
        streamed = await rest.client.post(PATH, json={**body, **options})
        *chunks, usage = events_of(streamed.content)
    answer: Json = whole.json()
    assert usage["usage"]["completion_tokens_details"] == answer["usage"]["completion_tokens_details"]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [i for choice in choices for i in choice.get("token_ids", ())] == answer["choices"][0]["token_ids"]
    message = answer["choices"][0]["message"]
    for name in ("content", "reasoning", "reasoning_content"):
        said = "".join(choice["delta"].get(name) or "" for choice in choices)
        assert said == (message.get(name) or ""), name
    return answer, choices


async def test_thoughts_have_both_names_and_are_no_content() -> None:
    """Breakage 81: clients look for either name. Breakage 5: the first delta has role and content all the same."""
    answer, chunks = await ask(ANSWER)
    message = answer["choices"][0]["message"]
    assert message["content"] == "The answer STOP never"
    assert message["reasoning"] == message["reasoning_content"] == "Hello is STOP a word"
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == len(ANSWER.partition("\n\n")[0])
    assert chunks[0]["delta"] == {"role": "assistant", "content": ""}
    thoughts = [
        (delta["reasoning"], delta["reasoning_content"]) for chunk in chunks if "reasoning" in (delta := chunk["delta"])
    ]
    assert all(name == other and name for name, other in thoughts)
    assert "".join(name for name, _ in thoughts) == "Hello is STOP a word"
    assert [choice["finish_reason"] for choice in chunks if choice["finish_reason"]] == ["stop"]


async def test_stop_strings_end_the_answer_and_not_the_thoughts() -> None:
    """Breakage 35: lm-eval sends stop strings with every chat; within thoughts they would leave nothing."""
    answer, _ = await ask(ANSWER, stop=["STOP"])
    choice = answer["choices"][0]
    assert choice["message"]["content"] == "The answer "
    assert choice["message"]["reasoning"] == "Hello is STOP a word"
    assert choice["stop_reason"] == "STOP"


async def test_an_answer_cut_within_its_thoughts() -> None:
    answer, chunks = await ask(ANSWER, max_tokens=12)
    choice = answer["choices"][0]
    assert (choice["message"]["content"], choice["message"]["reasoning"]) == ("", "Hell")
    assert choice["finish_reason"] == chunks[-1]["finish_reason"] == "length"


async def test_thoughts_that_the_prompt_has_begun() -> None:
    answer, _ = await ask("so it is</think>yes", template=THINKING_ON)
    assert answer["choices"][0]["message"]["reasoning_content"] == "so it is"
    assert answer["choices"][0]["message"]["content"] == "yes"


async def test_thinking_switched_off_by_the_template() -> None:
    answer, _ = await ask("yes", template=THINKING_ON, chat_template_kwargs={"think": False})
    message = answer["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == ("yes", None)


async def test_a_continued_message_goes_on_where_it_was() -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "<think>so"}]
    fields: Json = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    answer, _ = await ask(" it is</think>yes", **fields)
    assert answer["choices"][0]["message"]["reasoning"] == "it is"
    assert answer["choices"][0]["message"]["content"] == "yes"


async def test_thoughts_can_be_left_out() -> None:
    answer, _ = await ask(ANSWER, include_reasoning=False)
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": "The answer STOP never",
        "refusal": None,
    }


@pytest.mark.parametrize(("template", "parser"), [(THINKING, "none"), (TEMPLATE, "auto")])
async def test_without_a_parser_there_is_neither_name(template: str, parser: str) -> None:
    answer, _ = await ask(ANSWER, template=template, parser=parser)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": ANSWER, "refusal": None}


async def test_a_constrained_answer_has_no_thoughts() -> None:
    """The constraint holds from the first token on, whatever the prompt ends with."""
    answer, _ = await ask('{"a": 1}', template=THINKING_ON, response_format={"type": "json_object"})
    message = answer["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == ('{"a": 1}', None)


async def test_calls_come_after_thoughts() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    template = THINKING + "{{ tools }}{# <tool_call> #}"
    text = '<think>I <tool_call> call</think>\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    answer, _ = await ask(text, template=template, tools=tools)
    message = answer["choices"][0]["message"]
    assert message["reasoning"] == "I <tool_call> call"
    assert message["content"] is None
    assert message["tool_calls"][0]["function"]["name"] == "f"
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
