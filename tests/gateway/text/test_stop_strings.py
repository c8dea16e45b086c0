"""Stop strings: the same result however the text is cut, and nothing held back that could not still match."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.stop_strings import StopStrings


def expected(text: str, strings: Sequence[str], *, include: bool) -> tuple[str, str | None]:
    """The definition, in slow motion: look at every end of the text, one character further each time."""
    for end in range(1, len(text) + 1):
        matches = [string for string in strings if text[:end].endswith(string)]
        if matches:
            matched = max(matches, key=len)
            return text[: end if include else end - len(matched)], matched
    return text, None


def run(pieces: Sequence[str], strings: Sequence[str], *, include: bool) -> tuple[str, str | None]:
    watcher = StopStrings(strings, include)
    text, matched = "", None
    for piece in pieces:
        released = watcher.push(piece)
        text += released.text
        matched = matched or released.matched
    return text + watcher.flush(), matched


def pieces_of(text: str, source: random.Random) -> list[str]:
    pieces, position = [], 0
    while position < len(text):
        length = source.choice((0, 1, 2, 3, 7))
        pieces.append(text[position : position + length])
        position += length
    return pieces


# Few letters, so that texts are full of near misses and overlaps.
_TEXTS = st.text("abc", max_size=30)
_STRINGS = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4)


@settings(max_examples=1000, deadline=None)
@given(text=_TEXTS, strings=_STRINGS, include=st.booleans(), source=st.randoms(use_true_random=False))
def test_any_cut_gives_the_same(text: str, strings: list[str], include: bool, source: random.Random) -> None:
    """Breakages 30, 33."""
    assert run(pieces_of(text, source), strings, include=include) == expected(text, strings, include=include)


@settings(max_examples=500, deadline=None)
@given(text=_TEXTS, strings=_STRINGS)
def test_no_more_is_held_back_than_could_become_a_stop_string(text: str, strings: list[str]) -> None:
    """Breakage 31."""
    watcher = StopStrings(strings, include=False)
    released = ""
    for position, character in enumerate(text, start=1):
        result = watcher.push(character)
        released += result.text
        if result.matched is not None:
            return
        held = text[len(released) : position]
        longest = next(
            (
                position - start
                for start in range(position)
                if any(string.startswith(text[start:position]) for string in strings)
            ),
            0,
        )
        assert len(held) == longest


@settings(max_examples=300, deadline=None)
@given(text=_TEXTS, strings=_STRINGS)
def test_nothing_is_held_back_when_the_match_is_kept(text: str, strings: list[str]) -> None:
    watcher = StopStrings(strings, include=True)
    for character in text:
        result = watcher.push(character)
        if result.matched is not None:
            assert result.text == character
            return
        assert result.text == character


def test_text_behind_a_match_is_dropped() -> None:
    """Breakage 32."""
    watcher = StopStrings(["END"], include=False)
    assert watcher.push("so ENDless").text == "so "
    assert watcher.push("more").text == ""
    assert watcher.flush() == ""


def test_held_text_comes_at_the_end() -> None:
    watcher = StopStrings(["\n\nUser:"], include=False)
    assert watcher.push("fine\n\nUse").text == "fine"
    assert watcher.flush() == "\n\nUse"


def test_without_stop_strings_text_passes() -> None:
    watcher = StopStrings([], include=False)
    assert watcher.push("anything").text == "anything"
    assert watcher.flush() == ""
