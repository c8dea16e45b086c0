"""The bytes of an event."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import sse


@given(
    text=st.text(
        st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("\n\r\x0b\x0c\x1c\x85\u2028\u2029"))
    )
)
def test_an_event_is_one_line_to_everybody(text: str) -> None:
    """Breakage 11."""
    frame = sse.event({"text": text})
    assert frame.startswith(b"data: {")
    assert frame.endswith(b"}\n\n")
    assert len(frame.decode().splitlines()) == 2
    assert orjson.loads(frame.removeprefix(b"data: ")) == {"text": text}


def test_the_json_is_compact() -> None:
    assert sse.event({"a": [1, None]}) == b'data: {"a":[1,null]}\n\n'


@given(text=st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from('"\\\x00\u2028'))))
def test_a_filled_form_is_the_event_that_is_written_whole(text: str) -> None:
    form = sse.EventForm({"a": {"text": sse.EventForm.HOLE}, "b": None})
    assert form.fill(text) == sse.event({"a": {"text": text}, "b": None})


def test_a_form_without_a_hole_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="no hole"):
        sse.EventForm({"a": 1})
