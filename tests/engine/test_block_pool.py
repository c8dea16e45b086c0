"""The block pool: claims, the index, eviction; and a random walk against a model of it in plain sets."""

from __future__ import annotations

import random

import pytest

from engine.kv.block_pool import BlockPool


def name(number: int) -> bytes:
    return b"content %d" % number


def test_a_new_pool_is_empty_and_free() -> None:
    pool = BlockPool(3)
    assert (pool.num_blocks, pool.num_free, pool.num_cached) == (3, 3, 0)
    pool.check([])


def test_a_pool_needs_a_block() -> None:
    with pytest.raises(ValueError, match="num_blocks"):
        BlockPool(0)


def test_allocation_hands_out_each_block_once() -> None:
    pool = BlockPool(4)
    first, second = pool.allocate(2), pool.allocate(2)
    assert sorted(first + second) == [0, 1, 2, 3]
    assert pool.num_free == 0
    pool.check([first, second])


def test_a_published_block_is_found_while_held_and_after() -> None:
    pool = BlockPool(2)
    [block_id] = pool.allocate(1)
    pool.publish(block_id, name(1))
    assert pool.find([name(1)]) == [block_id]
    pool.release([block_id])
    assert pool.find([name(1)]) == [block_id]
    assert (pool.num_free, pool.num_cached) == (2, 1)
    pool.check([])


def test_find_stops_at_the_first_gap() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(2)
    pool.publish(blocks[0], name(0))
    pool.publish(blocks[1], name(2))
    assert pool.find([name(0), name(1), name(2)]) == blocks[:1]


def test_a_shared_block_is_free_after_its_last_holder() -> None:
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    pool.publish(blocks[0], name(0))
    pool.share(blocks)
    pool.release(blocks)
    assert pool.num_free == 0
    pool.check([blocks])
    pool.release(blocks)
    assert pool.num_free == 1
    pool.check([])


def test_sharing_a_cached_block_takes_it_from_the_free_ones() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.publish(blocks[0], name(0))
    pool.release(blocks)
    assert pool.count_unheld(blocks) == 1
    pool.share(blocks)
    assert (pool.num_free, pool.num_cached, pool.count_unheld(blocks)) == (1, 0, 0)
    pool.check([blocks])


def test_empty_blocks_go_before_cached_ones() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.publish(blocks[0], name(0))
    pool.release(blocks)
    assert pool.allocate(1) != blocks
    assert pool.find([name(0)]) == blocks


def test_the_least_recently_released_goes_first_and_tails_before_heads() -> None:
    pool = BlockPool(4)
    old, new = pool.allocate(2), pool.allocate(2)
    for number, block_id in enumerate(old + new):
        pool.publish(block_id, name(number))
    pool.release(old)
    pool.release(new)
    order = [pool.allocate(1)[0] for _ in range(4)]
    assert order == [old[1], old[0], new[1], new[0]]
    assert pool.find([name(0)]) == []


def test_use_makes_a_block_recent() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(1), pool.allocate(1)
    pool.publish(first[0], name(1))
    pool.publish(second[0], name(2))
    pool.release(first)
    pool.release(second)
    pool.share(first)
    pool.release(first)
    assert pool.allocate(1) == second


def test_a_twin_stays_private() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(1), pool.allocate(1)
    pool.publish(first[0], name(1))
    pool.publish(second[0], name(1))
    assert pool.find([name(1)]) == first
    pool.release(second)
    assert pool.num_cached == 0
    pool.check([first])


def test_forgetting_makes_held_and_cached_blocks_unfindable() -> None:
    pool = BlockPool(3)
    held, cached = pool.allocate(1), pool.allocate(1)
    pool.publish(held[0], name(1))
    pool.publish(cached[0], name(2))
    pool.release(cached)
    assert pool.forget_contents() == 2
    assert pool.find([name(1)]) == pool.find([name(2)]) == []
    assert (pool.num_free, pool.num_cached) == (2, 0)
    pool.check([held])
    pool.release(held)
    pool.check([])


def test_misuse_is_caught() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    with pytest.raises(AssertionError, match="num_free"):
        pool.allocate(2)
    pool.publish(blocks[0], name(0))
    with pytest.raises(AssertionError, match="twice"):
        pool.publish(blocks[0], name(1))
    pool.release(blocks)
    with pytest.raises(AssertionError, match="nobody holds"):
        pool.release(blocks)
    with pytest.raises(AssertionError, match="nobody holds"):
        pool.publish(blocks[0], name(2))


def test_check_sees_a_wrong_claim() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    for wrong in ([], [blocks, blocks], [[1 - blocks[0]]], [blocks + blocks]):
        with pytest.raises(AssertionError):
            pool.check(wrong)


@pytest.mark.parametrize("seed", range(4))
def test_random_walk(seed: int) -> None:
    """Thousands of claims and releases; a dictionary of what each block should contain is the oracle."""
    rng = random.Random(seed)
    pool = BlockPool(rng.randint(1, 12))
    tables: list[list[int]] = []
    contents: dict[int, bytes] = {}  # of published blocks
    for step in range(3000):
        action = rng.random()
        if action < 0.4:
            num_blocks = rng.randint(0, pool.num_free)
            table = pool.allocate(num_blocks)
            for block_id in table:
                contents.pop(block_id, None)
            tables.append(table)
        elif action < 0.6 and tables:
            for block_id in rng.choice(tables):
                digest = name(rng.randrange(10))
                if block_id not in contents:
                    pool.publish(block_id, digest)
                    if digest not in contents.values():
                        contents[block_id] = digest
        elif action < 0.75:
            digests = rng.sample([name(number) for number in range(10)], rng.randint(1, 4))
            found = pool.find(digests)
            assert [contents[block_id] for block_id in found] == digests[: len(found)]
            assert len(found) == len(digests) or digests[len(found)] not in contents.values()
            pool.share(found)
            tables.append(found)
        elif action < 0.99 and tables:
            pool.release(tables.pop(rng.randrange(len(tables))))
        elif step % 7 == 0:
            assert pool.forget_contents() == len(contents)
            contents.clear()
        pool.check(tables)
        assert pool.num_free == pool.num_blocks - len({block_id for table in tables for block_id in table})
    for table in tables:
        pool.release(table)
    pool.check([])
    assert pool.num_free == pool.num_blocks
