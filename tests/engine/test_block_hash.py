"""Content addresses of blocks."""

from __future__ import annotations

from engine.kv.block_hash import BlockHashes


def digests(token_ids: list[int], salt: str = "", block_size: int = 4) -> list[bytes]:
    return BlockHashes(salt).extend(token_ids, len(token_ids) // block_size, block_size)


def test_equal_contents_have_equal_digests() -> None:
    assert digests([1, 2, 3, 4, 5, 6, 7, 8]) == digests([1, 2, 3, 4, 5, 6, 7, 8])


def test_a_digest_covers_everything_before_its_block() -> None:
    first, second = digests([1, 2, 3, 4, 5, 6, 7, 8]), digests([9, 2, 3, 4, 5, 6, 7, 8])
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_equal_blocks_at_different_places_differ() -> None:
    first, second = digests([5, 5, 5, 5, 5, 5, 5, 5])
    assert first != second


def test_salts_separate() -> None:
    assert not set(digests([1, 2, 3, 4, 5, 6, 7, 8], "a")) & set(digests([1, 2, 3, 4, 5, 6, 7, 8], "b"))
    assert digests([1, 2, 3, 4], "a") == digests([1, 2, 3, 4], "a")


def test_any_text_is_a_salt() -> None:
    assert digests([1, 2, 3, 4], "\ud800") != digests([1, 2, 3, 4], "ü" * 1000)


def test_extending_step_by_step_is_extending_at_once() -> None:
    token_ids = list(range(40))
    hashes = BlockHashes("s")
    for num_blocks in (1, 1, 3, 2, 10):
        assert len(hashes.extend(token_ids[: num_blocks * 4], num_blocks, 4)) >= num_blocks
    assert hashes.extend(token_ids, 10, 4) == digests(token_ids, "s")


def test_digests_are_strong_enough_to_separate_callers() -> None:
    assert len(digests([1, 2, 3, 4])[0]) == 32
