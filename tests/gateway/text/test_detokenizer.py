"""A stream of tokens decodes to the same text as the whole, however it is cut."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.detokenizer import IncrementalDetokenizer
from gateway.tokenizer import Tokenizer
from tests.support.random_text import random_text
from tests.support.tokenizer_files import default_tokenizer, tiny_tokenizer


def cuts(ids: Sequence[int], source: random.Random) -> Iterator[Sequence[int]]:
    """The ids in random pieces, some of them empty."""
    position = 0
    while position < len(ids):
        length = source.choice((0, 1, 1, 1, 2, 5))
        yield ids[position : position + length]
        position += length


def streamed(tokenizer: Tokenizer, pieces: Iterator[Sequence[int]], *, skip_special: bool) -> str:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special=skip_special)
    return "".join([detokenizer.push(piece) for piece in pieces]) + detokenizer.flush()


@settings(max_examples=300, deadline=None)
@given(
    ids=st.lists(st.integers(0, 263), max_size=40),
    skip_special=st.booleans(),
    source=st.randoms(use_true_random=False),
)
def test_any_ids_in_any_pieces(ids: list[int], skip_special: bool, source: random.Random) -> None:
    """Random bytes are mostly no UTF-8 at all, which is the hard case."""
    tokenizer = tiny_tokenizer()
    text = streamed(tokenizer, cuts(ids, source), skip_special=skip_special)
    assert text == tokenizer.decode(ids, skip_special=skip_special)


@settings(max_examples=300, deadline=None)
@given(
    ids=st.lists(st.integers(0, 270), max_size=40),
    skip_special=st.booleans(),
    kept=st.booleans(),
    source=st.randoms(use_true_random=False),
)
def test_each_token_gets_the_text_it_gets_alone(
    ids: list[int], skip_special: bool, kept: bool, source: random.Random
) -> None:
    tokenizer = tiny_tokenizer()
    keep = frozenset(sorted(tokenizer.special_token_ids)[:1]) if kept else frozenset()
    together = IncrementalDetokenizer(tokenizer, skip_special=skip_special, keep=keep)
    alone = IncrementalDetokenizer(tokenizer, skip_special=skip_special, keep=keep)
    for piece in cuts(ids, source):
        assert together.push_each(piece) == [alone.push((token_id,)) for token_id in piece]
    assert together.flush() == alone.flush()


@pytest.mark.model
def test_the_default_models_ids_in_random_pieces() -> None:
    tokenizer = default_tokenizer()
    source = random.Random(42)
    for round_number in range(3000):
        if round_number % 2:
            ids = tokenizer.encode(random_text(source), parse_special=True)
        else:
            ids = [source.randrange(tokenizer.vocab_size) for _ in range(source.randrange(30))]
        skip_special = source.random() < 0.5
        text = streamed(tokenizer, cuts(ids, source), skip_special=skip_special)
        assert text == tokenizer.decode(ids, skip_special=skip_special)


def test_half_a_character_is_withheld() -> None:
    """Breakage 36."""
    tokenizer = tiny_tokenizer()
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special=True)
    first, *rest = tokenizer.encode("🙂")
    assert detokenizer.push([first]) == ""
    assert detokenizer.push(rest[:-1]) == ""
    assert detokenizer.push(rest[-1:]) == "🙂"
    assert detokenizer.flush() == ""


def test_half_a_character_at_the_end_becomes_a_replacement() -> None:
    tokenizer = tiny_tokenizer()
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special=True)
    assert detokenizer.push(tokenizer.encode("a🙂")[:-1]) == "a"
    assert detokenizer.flush() == "\ufffd"


def test_a_special_token_within_a_character_is_skipped() -> None:
    """The bytes around a skipped token join; the whole text is decoded the same way."""
    tokenizer = tiny_tokenizer()
    first, *rest = tokenizer.encode("é")
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special=True)
    assert "".join(detokenizer.push([token_id]) for token_id in (first, 2, *rest)) == "é"
