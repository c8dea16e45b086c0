"""The KV cache: claims for sequences, prefix hits, growth, reset."""

from __future__ import annotations

import pytest

from engine.kv.block_table import BlockTable
from engine.kv.cache import KVCache

TOKENS = list(range(100, 112))  # three blocks of four


def filled(cache: KVCache, token_ids: list[int], salt: str = "") -> BlockTable:
    """A sequence that claimed its blocks, was computed and published."""
    table = BlockTable(salt)
    assert cache.claim(table, token_ids) is not None
    cache.publish(table, token_ids, len(token_ids))
    return table


def test_a_cold_claim_covers_all_tokens_and_hits_nothing() -> None:
    cache, table = KVCache(8, 4), BlockTable()
    assert cache.claim(table, TOKENS[:9]) == 0
    assert len(table.block_ids) == 3
    assert cache.covers(table, 12)
    assert not cache.covers(table, 13)
    cache.check([table])


def test_a_warm_claim_shares_full_blocks() -> None:
    cache, table = KVCache(8, 4), BlockTable()
    first = filled(cache, TOKENS)
    assert cache.claim(table, [*TOKENS[:8], 1, 2]) == 8
    assert table.block_ids[:2] == first.block_ids[:2]
    assert table.block_ids[2] not in first.block_ids
    cache.check([first, table])


def test_the_last_known_token_is_always_computed() -> None:
    cache, table = KVCache(8, 4), BlockTable()
    cache.release(filled(cache, TOKENS))
    assert cache.claim(table, TOKENS) == 8
    cache.check([table])


def test_hits_survive_their_sequence() -> None:
    cache, table = KVCache(8, 4), BlockTable()
    cache.release(filled(cache, TOKENS))
    assert cache.num_free == 8
    assert cache.claim(table, [*TOKENS, 1]) == 12


def test_salts_do_not_share() -> None:
    cache, table = KVCache(8, 4), BlockTable("tenant b")
    cache.release(filled(cache, TOKENS, "tenant a"))
    assert cache.claim(table, TOKENS) == 0


@pytest.mark.parametrize("reason", ["switched off", "not wanted"])
def test_no_hits_when(reason: str) -> None:
    cache, table = KVCache(8, 4, prefix_caching=reason != "switched off"), BlockTable()
    cache.release(filled(cache, TOKENS))
    assert cache.claim(table, TOKENS, use_cache=reason != "not wanted") == 0


def test_only_computed_full_blocks_are_published() -> None:
    cache, first, second = KVCache(8, 4), BlockTable(), BlockTable()
    assert cache.claim(first, TOKENS) == 0
    cache.publish(first, TOKENS, 7)
    assert cache.claim(second, TOKENS) == 4


def test_a_claim_that_does_not_fit_changes_nothing() -> None:
    cache, table = KVCache(4, 4), BlockTable()
    first = filled(cache, TOKENS[:8])
    assert cache.claim(table, list(range(12))) is None
    assert cache.claim(table, list(range(8)), num_spare_blocks=1) is None
    assert cache.claim(table, [*TOKENS[:8], *range(9)]) is None
    assert not table.block_ids
    cache.check([first])
    assert cache.claim(table, list(range(8))) == 0


def test_hits_that_nobody_holds_count_as_room_taken() -> None:
    """Two cached blocks are free and wanted themselves, so they are no room for the other two."""
    cache, table = KVCache(3, 4), BlockTable()
    cache.release(filled(cache, TOKENS[:8]))
    assert cache.claim(table, [*TOKENS[:8], *range(8)]) is None
    assert cache.claim(table, [*TOKENS[:8], *range(4)]) == 8
    cache.check([table])


def test_growth_takes_blocks_only_when_needed_and_available() -> None:
    cache, table = KVCache(2, 4), BlockTable()
    assert cache.claim(table, [1, 2, 3]) == 0
    assert cache.grow(table, 4)
    assert len(table.block_ids) == 1
    assert cache.grow(table, 5)
    assert len(table.block_ids) == 2
    assert not cache.grow(table, 9)
    cache.check([table])


def test_eviction_drops_tails_before_heads() -> None:
    cache, other, table = KVCache(4, 4), BlockTable(), BlockTable()
    cache.release(filled(cache, TOKENS))
    assert cache.claim(other, list(range(8))) == 0  # takes the empty block and the least valuable cached one
    cache.release(other)
    assert cache.claim(table, [*TOKENS, 1]) == 8


def test_reset_forgets_and_bars_what_was_computed_before() -> None:
    cache, table = KVCache(16, 4), BlockTable()
    held = BlockTable()
    assert cache.claim(held, TOKENS) == 0
    cache.publish(held, TOKENS, 8)
    assert cache.reset() == 2
    cache.publish(held, TOKENS, 12)
    assert cache.claim(table, [*TOKENS, 1]) == 0
    cache.check([held, table])
    cache.publish(table, [*TOKENS, 1], 8)
    late = BlockTable()
    assert cache.claim(late, [*TOKENS, 1]) == 8, "the third block was computed, but from contents before the reset"
    cache.release(late)
    cache.release(held)
    cache.publish(table, [*TOKENS, 1], 13)
    assert cache.claim(held, [*TOKENS, 1]) == 12


def test_check_sees_two_writers_of_one_block() -> None:
    cache = KVCache(8, 4)
    first = filled(cache, TOKENS)
    second = BlockTable()
    assert cache.claim(second, [*TOKENS, 1]) == 12
    second.num_published = 0
    with pytest.raises(AssertionError, match="still written"):
        cache.check([first, second])


def test_a_block_holds_tokens() -> None:
    with pytest.raises(ValueError, match="block_size"):
        KVCache(8, 0)
