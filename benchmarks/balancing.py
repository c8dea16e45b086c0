"""Simulates ways to choose a rank: `python -m benchmarks.balancing`; deterministic, no servers, about a minute.

Ranks batch continuously: a step computes one token for every running sequence and up to a budget of prompt tokens,
and takes longer the more it computes. Each has a KV cache that bounds what runs and remembers prompt blocks. Gateways
see the ranks as they were at the last snapshot, and of each other nothing.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from gateway.balancer import Balancer, Candidate, Placement
from gateway.prefix_affinity import BLOCK_TOKENS, PrefixAffinity
from gateway.ranks import RankLoad

STEP_S = 0.008
STEP_S_PER_SEQUENCE = 0.0006
STEP_S_PER_PROMPT_TOKEN = 0.00006
PROMPT_TOKENS_PER_STEP = 512
MAX_SEQUENCES = 64
KV_TOKENS = 48_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request; `prompt` are token ids, of which equal beginnings can be reused."""

    at_s: float
    prompt: tuple[int, ...]
    num_tokens: int


@dataclass(slots=True)
class Running:
    """A request on a rank."""

    arrival: Arrival
    keys: tuple[int, ...]
    release: Callable[[], None]
    prompt_left: int = 0
    tokens_left: int = 0
    first_token_s: float = 0.0


class Rank:
    """One engine: a queue, a batch, a KV cache of blocks with the least recently used evicted first."""

    def __init__(self, slowness: float) -> None:
        self.waiting: deque[Running] = deque()
        self.running: list[Running] = []
        self.stepping = False
        self.num_looked_up = self.num_hit = 0
        self._slowness = slowness
        self._reserved = 0
        self._cache: OrderedDict[int, None] = OrderedDict()

    @property
    def kv_usage(self) -> float:
        return self._reserved / KV_TOKENS

    def begin_step(self) -> float:
        """Admits what fits and returns how long the step takes, in seconds."""
        while self.waiting and len(self.running) < MAX_SEQUENCES:
            request = self.waiting[0]
            size = len(request.arrival.prompt) + request.arrival.num_tokens
            if self._reserved + size > KV_TOKENS:
                break
            self._reserved += size
            self._admit(self.waiting.popleft())
        budget, computed = PROMPT_TOKENS_PER_STEP, 0
        for request in self.running:
            chunk = min(request.prompt_left, budget - computed)
            request.prompt_left -= chunk
            computed += chunk
        return self._slowness * (STEP_S + STEP_S_PER_SEQUENCE * len(self.running) + STEP_S_PER_PROMPT_TOKEN * computed)

    def end_step(self, now_s: float) -> Iterator[Running]:
        """A token for every sequence whose prompt is computed; yields those that are done."""
        going_on = []
        for request in self.running:
            if not request.prompt_left:
                if request.tokens_left == request.arrival.num_tokens:
                    request.first_token_s = now_s
                    self._remember(request.keys)
                request.tokens_left -= 1
            if request.tokens_left:
                going_on.append(request)
            else:
                self._reserved -= len(request.arrival.prompt) + request.arrival.num_tokens
                yield request
        self.running = going_on

    def _admit(self, request: Running) -> None:
        num_hit = 0
        while num_hit < len(request.keys) and request.keys[num_hit] in self._cache:
            self._cache.move_to_end(request.keys[num_hit])
            num_hit += 1
        prompt = len(request.arrival.prompt)
        self.num_looked_up += prompt
        self.num_hit += min(num_hit * BLOCK_TOKENS, prompt - 1)
        request.prompt_left = max(1, prompt - num_hit * BLOCK_TOKENS)
        request.tokens_left = request.arrival.num_tokens
        self.running.append(request)

    def _remember(self, keys: Sequence[int]) -> None:
        for key in keys:
            self._cache[key] = None
            self._cache.move_to_end(key)
        while len(self._cache) > KV_TOKENS // BLOCK_TOKENS:
            self._cache.popitem(last=False)


Choose = Callable[[Arrival, list[Candidate]], tuple[int, Callable[[], None]]]


def _nothing() -> None:
    return None


def muster(chance: random.Random, index: int, num_gateways: int, num_ranks: int) -> Choose:
    balancer = Balancer()
    balancer.configure(num_gateways=num_gateways, gateway_index=index, num_ranks=num_ranks)

    def choose(arrival: Arrival, candidates: list[Candidate]) -> tuple[int, Callable[[], None]]:
        lease = balancer.acquire(Placement(prompt_token_ids=arrival.prompt), candidates)
        assert lease is not None
        return lease.rank, lease.release

    return choose


def muster_without_affinity(chance: random.Random, index: int, num_gateways: int, num_ranks: int) -> Choose:
    with_prompt = muster(chance, index, num_gateways, num_ranks)
    return lambda arrival, candidates: with_prompt(Arrival(arrival.at_s, (), 0), candidates)


def round_robin(chance: random.Random, index: int, num_gateways: int, num_ranks: int) -> Choose:
    turn = count(num_ranks * index // num_gateways)
    return lambda arrival, candidates: (next(turn) % num_ranks, _nothing)


def at_random(chance: random.Random, index: int, num_gateways: int, num_ranks: int) -> Choose:
    return lambda arrival, candidates: (chance.randrange(num_ranks), _nothing)


def power_of_two(chance: random.Random, index: int, num_gateways: int, num_ranks: int) -> Choose:
    def choose(arrival: Arrival, candidates: list[Candidate]) -> tuple[int, Callable[[], None]]:
        first, second = chance.sample(candidates, 2)
        return min(first, second, key=_busy).rank, _nothing

    return choose


def four_waiting(chance: random.Random, index: int, num_gateways: int, num_ranks: int) -> Choose:
    """The score that vLLM used before: 4 × waiting + running, own choices added until the next snapshot."""
    added = [0] * num_ranks
    seen: list[Candidate] = []

    def choose(arrival: Arrival, candidates: list[Candidate]) -> tuple[int, Callable[[], None]]:
        nonlocal seen
        if candidates is not seen:
            seen = candidates
            added[:] = [0] * num_ranks

        def score(rank: int) -> int:
            load = candidates[rank].load
            assert load is not None
            return 4 * (load.waiting + added[rank]) + load.running

        rank = min(((index * num_ranks // num_gateways + offset) % num_ranks for offset in range(num_ranks)), key=score)
        added[rank] += num_gateways
        return rank, _nothing

    return choose


def _busy(candidate: Candidate) -> int:
    assert candidate.load is not None
    return candidate.load.waiting + candidate.load.running


POLICIES: dict[str, Callable[[random.Random, int, int, int], Choose]] = {
    "Muster": muster,
    "Muster, no affinity": muster_without_affinity,
    "4 × waiting + running": four_waiting,
    "power of two": power_of_two,
    "round-robin": round_robin,
    "random": at_random,
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """What comes in, and how much the gateways know."""

    name: str
    arrivals: Callable[[random.Random], list[Arrival]]
    num_ranks: int = 8
    num_gateways: int = 4
    snapshot_s: float = 0.1
    slowness: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of all requests of one run; times in seconds, the hit rate of prompt tokens 0 to 1."""

    mean_first_token_s: float
    p99_first_token_s: float
    mean_total_s: float
    p99_total_s: float
    hit_rate: float


def simulate(scenario: Scenario, policy: str, seed: int = 1) -> Figures:
    """The same arrivals for every policy."""
    arrivals = scenario.arrivals(random.Random(seed))
    chance = random.Random(seed + 1)
    ranks = [Rank(scenario.slowness.get(number, 1.0)) for number in range(scenario.num_ranks)]
    make = POLICIES[policy]
    choosers = [
        make(chance, index, scenario.num_gateways, scenario.num_ranks) for index in range(scenario.num_gateways)
    ]
    keys = PrefixAffinity()
    done: list[tuple[Running, float]] = []
    number = count()
    events: list[tuple[float, int, int]] = []  # (time, tie-break, rank whose step ends)
    snapshot, taken_s = _snapshot(ranks), 0.0

    def step(rank: int, now_s: float) -> None:
        ranks[rank].stepping = bool(ranks[rank].waiting or ranks[rank].running)
        if ranks[rank].stepping:
            heapq.heappush(events, (now_s + ranks[rank].begin_step(), next(number), rank))

    def run_until(limit_s: float) -> None:
        nonlocal snapshot, taken_s
        while events and events[0][0] <= limit_s:
            now_s, _, rank = heapq.heappop(events)
            if now_s >= taken_s + scenario.snapshot_s:
                snapshot, taken_s = _snapshot(ranks), now_s
            for request in ranks[rank].end_step(now_s):
                request.release()
                done.append((request, now_s))
            step(rank, now_s)

    for arrival in arrivals:
        run_until(arrival.at_s)
        rank, release = choosers[chance.randrange(scenario.num_gateways)](arrival, snapshot)
        ranks[rank].waiting.append(Running(arrival, keys.keys(arrival.prompt), release))
        if not ranks[rank].stepping:
            step(rank, arrival.at_s)
    run_until(float("inf"))
    return _figures(done, ranks)


def _snapshot(ranks: Sequence[Rank]) -> list[Candidate]:
    return [
        Candidate(
            number,
            RankLoad(number, 1, waiting=len(rank.waiting), running=len(rank.running), kv_usage=rank.kv_usage),
        )
        for number, rank in enumerate(ranks)
    ]


def _figures(done: Sequence[tuple[Running, float]], ranks: Sequence[Rank]) -> Figures:
    first = sorted(request.first_token_s - request.arrival.at_s for request, _ in done)
    total = sorted(end_s - request.arrival.at_s for request, end_s in done)
    looked_up = sum(rank.num_looked_up for rank in ranks)
    return Figures(
        statistics.fmean(first),
        first[len(first) * 99 // 100],
        statistics.fmean(total),
        total[len(total) * 99 // 100],
        sum(rank.num_hit for rank in ranks) / looked_up,
    )


_fresh_token = count(1 << 40)


def _unique(length: int) -> tuple[int, ...]:
    return tuple(next(_fresh_token) for _ in range(length))


def _poisson(
    chance: random.Random, *, per_s: float, seconds: float, length: Callable[[], int], prompt: Callable[[], int]
) -> list[Arrival]:
    arrivals, now_s = [], 0.0
    while (now_s := now_s + chance.expovariate(per_s)) < seconds:
        arrivals.append(Arrival(now_s, _unique(prompt()), length()))
    return arrivals


def equal(chance: random.Random) -> list[Arrival]:
    return _poisson(chance, per_s=85.0, seconds=60.0, length=lambda: 100, prompt=lambda: 200)


def skewed(chance: random.Random) -> list[Arrival]:
    def length() -> int:
        return min(2000, max(1, round(chance.lognormvariate(4.0, 1.1))))

    return _poisson(chance, per_s=80.0, seconds=60.0, length=length, prompt=lambda: round(chance.uniform(20, 800)))


def bursts(chance: random.Random) -> list[Arrival]:
    arrivals = []
    for second in range(0, 60, 3):
        for _ in range(240):
            length = min(1000, max(1, round(chance.lognormvariate(4.0, 1.0))))
            arrivals.append(Arrival(second + chance.uniform(0.0, 0.05), _unique(200), length))
    return sorted(arrivals, key=lambda arrival: arrival.at_s)


def shared_prefixes(chance: random.Random) -> list[Arrival]:
    """48 system prompts of 1,600 tokens with Zipf's popularity, more than one rank's cache holds."""
    prefixes = [_unique(1600) for _ in range(48)]
    weights = [1.0 / (place + 1) for place in range(len(prefixes))]
    arrivals, now_s = [], 0.0
    while (now_s := now_s + chance.expovariate(55.0)) < 60.0:
        (prefix,) = chance.choices(prefixes, weights)
        arrivals.append(Arrival(now_s, prefix + _unique(100), max(1, round(chance.lognormvariate(3.8, 0.7)))))
    return arrivals


def conversations(chance: random.Random) -> list[Arrival]:
    """Turns that each repeat everything before, thinking pauses between them."""
    arrivals = []
    start_s = 0.0
    while (start_s := start_s + chance.expovariate(9.0)) < 50.0:
        prompt, now_s = _unique(300), start_s
        for _ in range(chance.randint(2, 9)):
            length = round(chance.uniform(40, 160))
            arrivals.append(Arrival(now_s, prompt, length))
            prompt += _unique(length + round(chance.uniform(20, 120)))
            now_s += 4.0 + chance.expovariate(0.3)
    return sorted(arrivals, key=lambda arrival: arrival.at_s)


SCENARIOS = (
    Scenario("equal lengths", equal),
    Scenario("skewed lengths", skewed),
    Scenario("skewed lengths, snapshots 2 s old", skewed, snapshot_s=2.0),
    Scenario("bursts of 240, one gateway", bursts, num_gateways=1),
    Scenario("bursts of 240, eight gateways", bursts, num_gateways=8),
    Scenario("bursts of 240, snapshots 2 s old", bursts, snapshot_s=2.0),
    Scenario("shared system prompts", shared_prefixes),
    Scenario("conversations", conversations),
    Scenario("skewed lengths, one rank at half speed", skewed, slowness={3: 2.0}),
)


def table(scenario: Scenario) -> list[str]:
    """Markdown."""
    lines = [
        f"### {scenario.name[0].upper()}{scenario.name[1:]}",
        "",
        "| choice | first token, mean | p99 | whole answer, mean | p99 | prefix hits |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for policy in POLICIES:
        found = simulate(scenario, policy)
        lines.append(
            f"| {policy} | {found.mean_first_token_s:.3f} s | {found.p99_first_token_s:.2f} s | "
            f"{found.mean_total_s:.2f} s | {found.p99_total_s:.2f} s | {found.hit_rate:.0%} |"
        )
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="scenarios whose name has this in it")
    wanted = parser.parse_args().only
    for scenario in SCENARIOS:
        if wanted in scenario.name:
            print("\n".join(table(scenario)), flush=True)


if __name__ == "__main__":
    main()
