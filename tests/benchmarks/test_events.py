"""Streams are read whatever pieces they come in."""

from __future__ import annotations

import pytest

from benchmarks.load.events import EventStream, StreamEvent, read_event

BODY = b': ping\n\ndata: {"a": 1}\n\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\ndata: [DONE]\n\n'


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(BODY)])
def test_pieces_of_any_size_give_the_same_events(size: int) -> None:
    stream = EventStream()
    found = [data for start in range(0, len(BODY), size) for data in stream.feed(BODY[start : start + size])]
    assert found == [b'{"a": 1}', b"two\nlines", b"[DONE]"]


def test_an_event_without_its_blank_line_is_not_there_yet() -> None:
    stream = EventStream()
    assert list(stream.feed(b"data: late\n")) == []
    assert list(stream.feed(b"\n")) == [b"late"]


@pytest.mark.parametrize(
    ("data", "event"),
    [
        (b"[DONE]", StreamEvent(is_done=True)),
        (b'{"choices": [{"text": "hi"}], "usage": null}', StreamEvent(has_text=True)),
        (b'{"choices": [{"text": "", "finish_reason": "length"}]}', StreamEvent()),
        (b'{"choices": [{"delta": {"role": "assistant", "content": ""}}]}', StreamEvent()),
        (b'{"choices": [{"delta": {"content": "hi"}}]}', StreamEvent(has_text=True)),
        (b'{"choices": [{"delta": {"reasoning_content": "hm"}}]}', StreamEvent(has_text=True)),
        (
            b'{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 0}}',
            StreamEvent(num_prompt_tokens=3, num_output_tokens=0),
        ),
        (b'{"error": {"message": "lost"}}', StreamEvent(error="{'message': 'lost'}")),
    ],
)
def test_what_an_event_says(data: bytes, event: StreamEvent) -> None:
    assert read_event(data) == event


@pytest.mark.parametrize("data", [b"nonsense", b"[1]"])
def test_what_is_no_event_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        read_event(data)
