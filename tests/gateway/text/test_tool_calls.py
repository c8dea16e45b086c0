"""Calls told from text, however the text is cut into pieces."""

from __future__ import annotations

import json

import pytest

from gateway.tool_calls import CallArguments, CallStart, Content, ToolCallParser, ToolEvent
from gateway.tool_use import HERMES, LLAMA3, MISTRAL, PLAIN, ToolFormat, format_of

NAMES = frozenset({"f", "g"})
Read = tuple[str, list[tuple[str, str]]]


def read(events: list[ToolEvent]) -> Read:
    """The text, and name and arguments of each call; checks the order of events."""
    content, calls = "", list[tuple[str, str]]()
    for event in events:
        match event:
            case Content(text):
                assert text
                content += text
            case CallStart(index, name):
                assert index == len(calls)
                calls.append((name, ""))
            case CallArguments(index, text):
                assert index == len(calls) - 1
                calls[index] = (calls[index][0], calls[index][1] + text)
    return content, calls


def parse(form: ToolFormat, text: str, size: int, *, parallel: bool = True) -> Read:
    parser = ToolCallParser(form, NAMES, parallel=parallel)
    events: list[ToolEvent] = []
    for start in range(0, len(text), size):
        events += parser.push(text[start : start + size])
    return read(events + parser.finish())


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 1000])
@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (HERMES, "", ("", [])),
        (HERMES, "Just text < with <tool marks\n ", ("Just text < with <tool marks\n ", [])),
        (
            HERMES,
            'Let me see.\n\n<tool_call>\n{"name": "f", "arguments": {"a": "}<\\"{"}}\n</tool_call>',
            ("Let me see.", [("f", '{"a": "}<\\"{"}')]),
        ),
        (
            HERMES,
            '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name":"g","arguments":'
            '{"x":[]}}\n'
            "</tool_call>\n",
            ("", [("f", "{}"), ("g", '{"x":[]}')]),
        ),
        (HERMES, '<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>', ("", [("f", '{"x": 1}')])),
        (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', ("", [("f", '{"x": 1}')])),
        (HERMES, '<tool_call>{"name": "f"}</tool_call>', ("", [("f", "{}")])),
        (
            HERMES,
            '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
            ('<tool_call>{"name": "other", "arguments": {}}</tool_call>', []),
        ),
        (HERMES, "<tool_call>nothing", ("<tool_call>nothing", [])),
        (HERMES, '<tool_call>\n{"name": "f", "arguments": {"x": [1, 2', ("", [("f", '{"x": [1, 2')])),
        (HERMES, '<tool_call>\n{"name": "f", "argu', ('<tool_call>\n{"name": "f", "argu', [])),
        (
            LLAMA3,
            '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}',
            ("", [("f", '{"a": 1}'), ("g", "{}")]),
        ),
        (LLAMA3, '\n{"name": "f", "parameters": {}}\n', ("", [("f", "{}")])),
        (LLAMA3, '{"answer": 5} is JSON', ('{"answer": 5} is JSON', [])),
        (LLAMA3, 'Say {"name": "f", "parameters": {}}', ('Say {"name": "f", "parameters": {}}', [])),
        (PLAIN, '[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]', ("", [("f", "{}"), ("g", "{}")])),
        (
            MISTRAL,
            'Let me see. [TOOL_CALLS] [{"name": "f", "arguments": {"a": [1]}}, {"name": "g", "arguments": {}}]',
            ("Let me see.", [("f", '{"a": [1]}'), ("g", "{}")]),
        ),
        (
            MISTRAL,
            '[TOOL_CALLS][{"arguments": {"x": 1}, "id": "VvvODy9mT", "name": "f"}]\n',
            ("", [("f", '{"x": 1}')]),
        ),
        (
            MISTRAL,
            '[TOOL_CALLS]f[ARGS]{"a": "]{"}[TOOL_CALLS]g[CALL_ID]VvvODy9mT[ARGS]{}',
            ("", [("f", '{"a": "]{"}'), ("g", "{}")]),
        ),
        (MISTRAL, '[TOOL_CALLS]f {"a": 1}', ("", [("f", '{"a": 1}')])),
        (MISTRAL, '[TOOL_CALLS]f[ARGS]{"a": 1', ("", [("f", '{"a": 1')])),
        (MISTRAL, '[TOOL_CALLS]other[ARGS]{"a": 1}', ('[TOOL_CALLS]other[ARGS]{"a": 1}', [])),
        (MISTRAL, "[TOOL_CALLS]nothing", ("[TOOL_CALLS]nothing", [])),
        (MISTRAL, "An [TOOL] and a list [1, 2]", ("An [TOOL] and a list [1, 2]", [])),
        (PLAIN, "[1, 2]", ("[1, 2]", [])),
        (PLAIN, "  text", ("  text", [])),
    ],
)
def test_calls_and_text(form: ToolFormat, text: str, expected: Read, size: int) -> None:
    """Breakage 35."""
    assert parse(form, text, size) == expected


def test_only_the_first_call_without_parallel_calls() -> None:
    text = '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}'
    assert parse(LLAMA3, text, 3, parallel=False) == ("", [("f", '{"a": 1}')])


def test_arguments_are_passed_on_as_they_come() -> None:
    parser = ToolCallParser(HERMES, NAMES)
    assert parser.push('<tool_call>\n{"name": "f", "arguments": {"city": "Par') == [
        CallStart(0, "f"),
        CallArguments(0, '{"city": "Par'),
    ]
    assert parser.push("is") == [CallArguments(0, "is")]
    assert parser.push('"}}\n</tool') == [CallArguments(0, '"}')]
    assert parser.finish() == []


def test_text_is_passed_on_unless_it_may_become_an_opening() -> None:
    parser = ToolCallParser(HERMES, NAMES)
    assert parser.push("a < b ") == [Content("a < b")]
    assert parser.push("<tool") == []
    assert parser.push("box>") == [Content(" <toolbox>")]


def test_a_long_object_that_is_no_call_is_read_once() -> None:
    """In pieces of one character; a scan from the beginning for each would take minutes."""
    text = json.dumps({"data": "x" * 200_000})
    assert parse(PLAIN, text, 1) == (text, [])


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{{ messages }}", None),
        ("{% if tools %}<tool_call>\n{...}</tool_call>{% endif %}", HERMES),
        ('{% if tools %}{"name": function name, "parameters": dictionary}{% endif %}', LLAMA3),
        ('{% if tools %}[TOOL_CALLS][{"name", "arguments"}]{% endif %}', MISTRAL),
        ("{% if tools %}{{ tools }}{% endif %}", PLAIN),
    ],
)
def test_formats_are_known_by_their_templates(template: str, form: ToolFormat | None) -> None:
    assert format_of(template) == form


def test_a_format_can_be_named() -> None:
    assert format_of("{{ messages }}", "hermes") == HERMES
    assert format_of("{% if tools %}<tool_call>{% endif %}", "none") is None
