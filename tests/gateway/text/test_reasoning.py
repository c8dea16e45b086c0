"""Thoughts told from answers, however the text is cut into pieces."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.reasoning import (
    MISTRAL,
    THINK_TAGS,
    ReasoningFormat,
    ReasoningSplitter,
    after_prompt,
    continuing,
    format_of,
)

OPEN = replace(THINK_TAGS, begins_open=True)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (THINK_TAGS, "", ("", "")),
        (THINK_TAGS, "answer", ("", "answer")),
        (THINK_TAGS, "  <b>answer", ("", "  <b>answer")),
        (THINK_TAGS, "<think>\nso it is\n</think>\n\nanswer\n", ("so it is", "answer\n")),
        (THINK_TAGS, "\n<think></think>answer", ("", "answer")),
        (THINK_TAGS, "<think>\n\n</think>\n\nanswer", ("", "answer")),
        (THINK_TAGS, "<think>a < b </thin k></think>c <think> d", ("a < b </thin k>", "c <think> d")),
        (THINK_TAGS, "<think>cut off </th", ("cut off </th", "")),
        (THINK_TAGS, "<thi", ("", "<thi")),
        (OPEN, "so it is\n</think>answer", ("so it is", "answer")),
        (OPEN, "never ending", ("never ending", "")),
        (MISTRAL, "[THINK]so[/THINK]answer", ("so", "answer")),
    ],
)
def test_any_cut_gives_the_same(form: ReasoningFormat, text: str, expected: tuple[str, str], size: int) -> None:
    splitter = ReasoningSplitter(form)
    parts = [splitter.push(text[start : start + size]) for start in range(0, len(text), size)] + [splitter.flush()]
    assert ("".join(thoughts for thoughts, _ in parts), "".join(answer for _, answer in parts)) == expected


def test_thoughts_are_passed_on_as_they_come() -> None:
    splitter = ReasoningSplitter(THINK_TAGS)
    assert splitter.push("<think>\nSo") == ("So", "")
    assert splitter.push(" it is") == (" it is", "")
    assert splitter.push(" <") == ("", "")
    assert splitter.push(" 5</think>") == (" < 5", "")
    assert splitter.push("\nYes") == ("", "Yes")


@pytest.mark.parametrize(
    ("form", "prompt", "begins_open"),
    [
        (THINK_TAGS, "<|assistant|>", False),
        (THINK_TAGS, "<|assistant|><think>\n", True),
        (THINK_TAGS, "<|assistant|><think>\n\n</think>\n\n", False),
        (THINK_TAGS, "what does <think> mean?<|assistant|>", False),
        (OPEN, "<|assistant|>", True),
        (OPEN, "<|assistant|><think>\n\n</think>\n\n", False),
    ],
)
def test_whether_an_answer_begins_within_thoughts(form: ReasoningFormat, prompt: str, begins_open: bool) -> None:
    assert after_prompt(form, prompt).begins_open is begins_open


@pytest.mark.parametrize(
    ("form", "begun", "begins_open"),
    [
        (THINK_TAGS, "The ans", False),
        (THINK_TAGS, "<think>so", True),
        (THINK_TAGS, "<think>so</think>The", False),
        (OPEN, "so", True),
        (OPEN, "so</think>The", False),
    ],
)
def test_whether_the_rest_of_an_answer_is_thought(form: ReasoningFormat, begun: str, begins_open: bool) -> None:
    assert continuing(form, begun).begins_open is begins_open


@pytest.mark.parametrize(
    ("parser", "template", "form"),
    [
        ("auto", "{{ messages }}", None),
        ("auto", "{{ content.split('</think>')[-1] }}", THINK_TAGS),
        ("auto", "[THINK]{{ x }}[/THINK]", MISTRAL),
        ("none", "<think></think>", None),
        ("qwen3", "{{ messages }}", THINK_TAGS),
        ("deepseek_r1", "{{ messages }}", OPEN),
        ("mistral", "", MISTRAL),
    ],
)
def test_formats_by_name_or_template(parser: str, template: str, form: ReasoningFormat | None) -> None:
    assert format_of(parser, template) == form
