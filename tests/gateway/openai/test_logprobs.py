"""Log-probabilities on the wire: what cannot be said in JSON, and tokens that look the same."""

from __future__ import annotations

import math

import orjson
import pytest

from gateway.generation_request import TokenLogprob
from gateway.openai.logprobs import LogprobWriter, TextOffsets
from tests.support.tokenizer_files import tiny_tokenizer

# Two bytes that are no character on their own, and so have the same text.
FIRST_HALF, OTHER_HALF = 3 + 0xC3, 3 + 0xC4
LETTER = 3 + ord("a")


@pytest.fixture
def writer() -> LogprobWriter:
    return LogprobWriter(tiny_tokenizer(), as_ids=False)


def test_minus_infinity_is_a_number(writer: LogprobWriter) -> None:
    entry = TokenLogprob(LETTER, -math.inf, 300, ((LETTER, -math.inf),))
    body = orjson.loads(orjson.dumps([writer.chat([entry], 1), writer.legacy([entry], 1, [0]), writer.prompt([entry])]))
    assert body[0]["content"][0]["logprob"] == -9999.0
    assert body[1]["token_logprobs"] == [-9999.0]
    assert body[2][0][str(LETTER)]["logprob"] == -9999.0


def test_not_a_number_is_a_number(writer: LogprobWriter) -> None:
    assert writer.legacy([TokenLogprob(LETTER, math.nan, 1)], 0, [0])["token_logprobs"] == [-9999.0]


def test_alternatives_with_equal_text(writer: LogprobWriter) -> None:
    """The legacy dict keeps the likelier one's value, the chat list keeps both. Breakages 37, 40."""
    entry = TokenLogprob(OTHER_HALF, -2.0, 2, ((FIRST_HALF, -1.0), (OTHER_HALF, -2.0)))
    assert writer.legacy([entry], 2, [0])["top_logprobs"] == [{"\ufffd": -1.0}]
    content = writer.chat([entry], 2)["content"]
    assert isinstance(content, list)
    assert [top["bytes"] for top in content[0]["top_logprobs"]] == [[0xC3], [0xC4]]


def test_bytes_are_the_real_ones(writer: LogprobWriter) -> None:
    """Not those of the byte-level alphabet, in which a space is U+0120. Breakage 38."""
    content = writer.chat([TokenLogprob(3 + ord(" "), -1.0, 1)], 0)["content"]
    assert isinstance(content, list)
    assert (content[0]["token"], content[0]["bytes"]) == (" ", [32])


def test_the_chosen_token_is_among_the_alternatives(writer: LogprobWriter) -> None:
    entry = TokenLogprob(LETTER, -5.0, 30, ((3 + ord("b"), -1.0),))
    assert writer.legacy([entry], 1, [0])["top_logprobs"] == [{"b": -1.0, "a": -5.0}]
    assert set(writer.prompt([entry])[0] or {}) == {str(LETTER), str(3 + ord("b"))}


def test_offsets_count_characters_and_skip_special_tokens() -> None:
    tokenizer = tiny_tokenizer()
    ids = [LETTER, 2, *tokenizer.encode("é🙂"), LETTER]
    assert TextOffsets(tokenizer, skip_special=True).push(ids) == [0, 1, 1, 1, 2, 2, 2, 2, 3]
    assert TextOffsets(tokenizer, skip_special=False, start=5).push(ids[:3]) == [5, 6, 16]
