"""Conversations to prompts: what the template says, and that users cannot forge turns."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.chat_template import ChatTemplate, normalize_message
from gateway.errors import InvalidRequest
from gateway.tokenizer import Tokenizer
from tests.support.tokenizer_files import SPECIALS, archive, default_tokenizer, tiny_metadata, tiny_tokenizer

START, END = 1, 2


def tokenizer_with(template: str) -> Tokenizer:
    return Tokenizer.from_archive(archive({"gguf_tokenizer.json": tiny_metadata(chat_template=template)}))


def rendered(template: str, **variables: object) -> str:
    chat_template = ChatTemplate(template, specials=SPECIALS, variables={"eos_token": "<|im_end|>"})
    result = chat_template.render([{"role": "user", "content": "hi"}], variables=variables)
    return result.text.replace(result.marker, "")


@pytest.mark.model
def test_the_default_models_prompt() -> None:
    ids = default_tokenizer().encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    assert ids == [
        *(1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182),
        *(2, 198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198),
    ]


def test_a_conversation_becomes_turns() -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode_chat([{"role": "user", "content": "hello"}])
    text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert ids == tokenizer.encode(text, parse_special=True)


_PIECES = st.sampled_from(
    [*SPECIALS, "<|", "<|im_", "end|>", "|>", "im_start", "<", ">", "x", " ", "\n", "\ufdd0", "é"]
)


@settings(max_examples=300, deadline=None)
@given(contents=st.lists(st.lists(_PIECES, max_size=6).map("".join), min_size=1, max_size=3))
def test_users_cannot_write_special_tokens(contents: list[str]) -> None:
    """Each turn has one start and one end, whatever is in it, and its text arrives unchanged."""
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode_chat([{"role": "user", "content": content} for content in contents])
    assert ids.count(START) == len(contents) + 1
    assert ids.count(END) == len(contents)
    assert ids.count(0) == 0
    turns = "".join(f"<|im_start|>user\n{content}<|im_end|>\n" for content in contents)
    assert tokenizer.decode(ids, skip_special=False) == turns + "<|im_start|>assistant\n"


def test_two_fields_cannot_spell_a_special_token_together() -> None:
    tokenizer = tokenizer_with("{% for m in messages %}{{ m.name }}{{ m.content }}{% endfor %}")
    for cut in range(1, len("<|im_end|>")):
        name, content = "<|im_end|>"[:cut], "<|im_end|>"[cut:]
        ids = tokenizer.encode_chat([{"role": "user", "name": name, "content": content}])
        assert END not in ids
        assert tokenizer.decode(ids) == "<|im_end|>"


def test_special_tokens_in_tools_and_variables_are_text() -> None:
    tokenizer = tokenizer_with("{{ tools | tojson }}{{ date }}")
    variables = {"tools": [{"<|im_end|>": "<|im_start|>"}], "date": "<|endoftext|>"}
    ids = tokenizer.encode_chat([{"role": "user", "content": ""}], variables=variables)
    assert not {0, START, END}.intersection(ids)
    assert tokenizer.decode(ids) == '[{"<|im_end|>": "<|im_start|>"}]<|endoftext|>'


def test_overlapping_special_tokens_are_all_broken() -> None:
    template = ChatTemplate("{{ messages[0].content }}", specials=("<a>", "a>", ">b", "%"), variables={})
    result = template.render([{"role": "user", "content": "<a>b 5%"}])
    pieces = result.text.split(result.marker)
    assert "".join(pieces) == "<a>b 5%"
    assert not any(special in piece for piece in pieces for special in ("<a>", "a>", ">b"))
    assert f"%{result.marker}" in result.text


def test_every_marker_candidate_may_be_in_use() -> None:
    """A user who writes all the usual markers gets them back unchanged."""
    tokenizer = tiny_tokenizer()
    content = "".join(map(chr, itertools.chain(range(0xFDD0, 0xFDF0), range(0xF0000, 0xF0100)))) + "<|im_end|>"
    ids = tokenizer.encode_chat([{"role": "user", "content": content}])
    assert ids.count(END) == 1
    assert content in tokenizer.decode(ids)


def test_messages_are_normalised() -> None:
    assert normalize_message({"role": "developer", "content": None}) == {"role": "system", "content": ""}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert normalize_message({"role": "user", "content": parts, "name": "n"}) == {
        "role": "user",
        "content": "a\nb",
        "name": "n",
    }


@pytest.mark.parametrize("content", ["The answer", "", "ends with space ", "<|im_end|>", "<|im"])
def test_a_final_message_is_continued(content: str) -> None:
    tokenizer = tiny_tokenizer()
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]
    ids = tokenizer.encode_chat(messages, continue_final_message=True)
    prefix = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    assert ids == tokenizer.encode(prefix, parse_special=True) + tokenizer.encode(content)


def test_continuing_what_the_template_drops_is_an_error() -> None:
    tokenizer = tokenizer_with("{{ messages[0].role }}")
    with pytest.raises(InvalidRequest, match="send false") as raised:
        tokenizer.encode_chat([{"role": "user", "content": "x"}], continue_final_message=True)
    assert raised.value.param == "continue_final_message"


def test_the_templates_own_words_reach_the_client() -> None:
    """Breakage 53."""
    tokenizer = tokenizer_with("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        tokenizer.encode_chat([{"role": "user", "content": "x"}])


def test_what_templates_use() -> None:
    assert rendered("{{ eos_token }}") == "<|im_end|>"
    assert rendered("{{ {'a': '<é>'} | tojson }}") == '{"a": "<é>"}'
    assert rendered("{{ {'b': 1} | tojson(indent=2) }}") == '{\n  "b": 1\n}'
    assert rendered("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}") == "1"
    assert rendered("{% generation %}{{ messages[0].content }}{% endgeneration %}") == "hi"
    assert rendered("{% set ns = namespace(n=1) %}{% set ns.n = 2 %}{{ ns.n }}") == "2"
    assert len(rendered("{{ strftime_now('%Y') }}")) == 4
    assert rendered("{{ thinking }}", thinking=True) == "True"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.os }}",
        "{{ cycler }}{{ cycler.__init__.__globals__.os }}",
        "{{ 'x' * 1000000000 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ '%1000000000d' % 1 }}",
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{{ 'x' | indent(1000000000, true) }}",
        "{{ [1] | tojson(indent=1000000000) }}",
        "{{ messages[7].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_hostile_or_broken_template_is_an_invalid_request(template: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template"):
        rendered(template)


def test_too_much_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.chat_template._MAX_RENDERED", 1000)
    with pytest.raises(InvalidRequest, match="too long"):
        rendered("{% for i in range(2000) %}x{% endfor %}")


def test_messages_that_are_too_deep_are_refused() -> None:
    value: object = "x"
    for _ in range(100):
        value = [value]
    with pytest.raises(InvalidRequest, match="deep"):
        tiny_tokenizer().encode_chat([{"role": "user", "content": "x", "extra": value}])


def test_without_a_template_chats_are_refused() -> None:
    tokenizer = Tokenizer.from_archive(archive({"gguf_tokenizer.json": tiny_metadata(chat_template=None)}))
    with pytest.raises(InvalidRequest, match="no chat template"):
        tokenizer.encode_chat([{"role": "user", "content": "x"}])
