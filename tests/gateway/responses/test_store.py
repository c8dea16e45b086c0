"""What is kept, what goes, and in which order."""

from __future__ import annotations

import random

import pytest

from gateway.errors import ResponseNotFound
from gateway.responses.archive import ResponseArchive, owner_tag
from gateway.responses.store import KeptResponse, ResponseStore
from tests.support.clock import ManualClock

TTL_S = 100.0


def kept(size: int = 488, fill: bytes = b"x") -> KeptResponse:
    """With what it costs beside, 1000 bytes by default."""
    return KeptResponse(fill * size, b"")


def store(max_bytes: int = 3000) -> tuple[ResponseStore, ManualClock]:
    clock = ManualClock()
    return ResponseStore(max_bytes, TTL_S, clock), clock


def test_the_longest_unused_makes_room() -> None:
    responses, _ = store()
    for name in "abc":
        assert responses.put(name, kept())
    assert responses.get("a") is not None
    responses.put("d", kept())
    assert [name for name in "abcd" if responses.get(name)] == ["a", "c", "d"]
    assert responses.num_bytes == 3000


def test_one_that_is_larger_than_everything_is_not_kept_and_costs_no_other() -> None:
    responses, _ = store()
    responses.put("a", kept())
    assert not responses.put("b", kept(3000))
    assert responses.get("b") is None
    assert responses.get("a") is not None


def test_time_passes_whether_or_not_it_is_used() -> None:
    responses, clock = store()
    responses.put("a", kept())
    clock.advance(TTL_S - 1)
    responses.put("b", kept())
    assert responses.get("a") is not None
    clock.advance(1)
    assert responses.get("a") is None
    assert responses.get("b") is not None
    clock.advance(TTL_S)
    assert not responses.drop("b")
    assert (len(responses), responses.num_bytes) == (0, 0)


def test_again_under_the_same_id() -> None:
    responses, clock = store()
    responses.put("a", kept())
    clock.advance(TTL_S - 1)
    responses.put("a", kept(fill=b"y"))
    clock.advance(TTL_S - 1)
    assert responses.get("a") == kept(fill=b"y")
    assert responses.num_bytes == 1000


def test_nothing_is_kept_without_room() -> None:
    responses, _ = store(0)
    assert not responses.enabled
    assert not responses.put("a", KeptResponse(b"", b""))


def test_random_walk_never_exceeds_its_room() -> None:
    randomness = random.Random(5)
    responses, clock = store(20_000)
    alive: dict[str, tuple[KeptResponse, float]] = {}
    for _ in range(5000):
        name = str(randomness.randrange(60))
        match randomness.randrange(4):
            case 0 | 1:
                response = kept(randomness.randrange(2500))
                if responses.put(name, response):
                    alive[name] = (response, clock() + TTL_S)
            case 2:
                found = responses.get(name)
                if found is not None:
                    assert found is alive[name][0]
                    assert clock() < alive[name][1]
            case 3:
                assert responses.drop(name) <= (name in alive)
                alive.pop(name, None)
        clock.advance(randomness.random() * 5)
        assert responses.num_bytes <= 20_000
    assert len(responses) > 5


class OtherGateways:
    """One that keeps a response of its own."""

    def __init__(self, name: str) -> None:
        self.owner = owner_tag(name)
        self.kept: dict[str, KeptResponse] = {}

    async def fetch(self, owner: str, response_id: str) -> KeptResponse | None:
        return self.kept.get(response_id) if owner == self.owner else None

    async def drop(self, owner: str, response_id: str) -> bool:
        return owner == self.owner and self.kept.pop(response_id, None) is not None


async def test_the_id_says_who_is_asked() -> None:
    others = OtherGateways("g1")
    archive = ResponseArchive(ResponseStore(9999, TTL_S), gateway="g0", peers=others)
    mine = archive.new_id()
    archive.keep(mine, kept())
    assert await archive.fetch(mine) == kept()
    theirs = ResponseArchive(ResponseStore(9999, TTL_S), gateway="g1").new_id()
    others.kept[theirs] = kept(fill=b"y")
    assert await archive.fetch(theirs) == kept(fill=b"y")
    await archive.drop(theirs)
    await archive.drop(mine)
    for gone in (mine, theirs, archive.new_id(), "resp_x", "", "resp_" + "0" * 32, "chatcmpl-1"):
        with pytest.raises(ResponseNotFound):
            await archive.fetch(gone)
        with pytest.raises(ResponseNotFound):
            await archive.drop(gone)
