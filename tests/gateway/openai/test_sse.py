"""The bytes of an event."""

from __future__ import annotations

import orjson
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
