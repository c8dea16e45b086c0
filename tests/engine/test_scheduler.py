"""The scheduler's decisions, step by step."""

from __future__ import annotations

from engine.config import SchedulerLimits
from engine.kv.cache import KVCache
from engine.request import Request
from engine.scheduler import Scheduler
from engine.sequence import Sequence


class Steps:
    """A scheduler whose steps all succeed; a sequence that caught up gets a next token."""

    def __init__(
        self,
        num_blocks: int = 100,
        *,
        block_size: int = 4,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 16,
        prefix_caching: bool = False,
    ) -> None:
        self.cache = KVCache(num_blocks, block_size, prefix_caching=prefix_caching)
        self.scheduler = Scheduler(self.cache, SchedulerLimits(max_num_seqs, max_num_batched_tokens, max_queued=100))
        self.sequences: dict[str, Sequence] = {}

    def add(
        self, request_id: str, num_prompt_tokens: int, *, first: int = 0, priority: int = 0, max_total_tokens: int = 50
    ) -> Sequence:
        prompt = tuple(range(first, first + num_prompt_tokens))
        sequence = Sequence(
            Request(request_id, prompt, priority=priority),
            arrival=len(self.sequences),
            max_total_tokens=min(max_total_tokens, self.cache.num_slots),
        )
        self.sequences[request_id] = sequence
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> dict[str, int]:
        """Tokens by request, in the order of the batch."""
        scheduled = self.scheduler.schedule()
        for item in scheduled:
            samples = item.samples
            self.scheduler.advance(item.sequence, item.num_new_tokens)
            if samples:
                item.sequence.token_ids.append(1000 + item.sequence.num_tokens)
        self.scheduler.check()
        return {item.sequence.request_id: item.num_new_tokens for item in scheduled}

    def steps(self, count: int) -> list[dict[str, int]]:
        return [self.step() for _ in range(count)]


def test_nothing_to_do() -> None:
    assert Steps().step() == {}


def test_a_short_prompt_is_computed_at_once_and_then_decodes() -> None:
    steps = Steps()
    steps.add("a", 5)
    assert steps.steps(3) == [{"a": 5}, {"a": 1}, {"a": 1}]


def test_a_long_prompt_is_computed_in_chunks() -> None:
    steps = Steps(max_num_batched_tokens=16)
    steps.add("a", 40)
    assert steps.steps(4) == [{"a": 16}, {"a": 16}, {"a": 8}, {"a": 1}]


def test_prompts_share_the_budget_in_order_of_arrival() -> None:
    steps = Steps(max_num_batched_tokens=16)
    steps.add("a", 10)
    steps.add("b", 10)
    assert steps.steps(3) == [{"a": 10, "b": 6}, {"a": 1, "b": 4}, {"a": 1, "b": 1}]


def test_decodes_go_before_prompts() -> None:
    """Also before prompts that came earlier: a long prompt delays no one's next token beyond its chunk."""
    steps = Steps(max_num_batched_tokens=16)
    steps.add("long", 40, priority=-1)
    steps.add("short", 2, priority=-2)
    assert list(steps.step()) == ["short", "long"]
    for step in steps.steps(2):
        assert list(step) == ["short", "long"]
        assert step["short"] == 1


def test_sequences_join_and_leave_while_others_run() -> None:
    steps = Steps()
    first = steps.add("a", 3)
    steps.step()
    steps.add("b", 4)
    assert steps.step() == {"a": 1, "b": 4}
    steps.scheduler.remove(first)
    assert steps.step() == {"b": 1}


def test_no_more_than_max_num_seqs_run() -> None:
    steps = Steps(max_num_seqs=2)
    for name in "abc":
        steps.add(name, 2)
    assert list(steps.step()) == ["a", "b"]
    steps.scheduler.remove(steps.sequences["a"])
    assert list(steps.step()) == ["b", "c"]


def test_lower_priority_numbers_are_admitted_first() -> None:
    steps = Steps(max_num_seqs=1)
    for name, priority in (("late", 5), ("normal", 0), ("early", -5), ("normal too", 0)):
        steps.add(name, 2, priority=priority)
    order = []
    for _ in range(4):
        [name] = steps.step()
        order.append(name)
        steps.scheduler.remove(steps.sequences[name])
    assert order == ["early", "normal", "normal too", "late"]


def test_nothing_overtakes_a_prompt_that_does_not_fit_yet() -> None:
    steps = Steps(num_blocks=8)
    steps.add("a", 16)
    steps.step()
    steps.add("large", 20)
    steps.add("small", 1)
    assert list(steps.step()) == ["a"]
    steps.scheduler.remove(steps.sequences["a"])
    assert list(steps.step()) == ["large"]


def test_admission_leaves_room_for_those_who_grow() -> None:
    steps = Steps(num_blocks=4)
    steps.add("a", 4)
    steps.step()  # holds one block and wants another one now
    steps.add("b", 8)
    assert steps.step() == {"a": 1}, "b would be thrown out in the next step"


def test_the_last_in_order_is_preempted_and_returns_to_its_place() -> None:
    steps = Steps(num_blocks=6)
    steps.add("a", 7)
    steps.add("b", 7)
    assert steps.step() == {"a": 7, "b": 7}
    steps.add("c", 1)
    while "b" in (step := steps.step()):
        pass
    assert list(step) == ["a"]
    assert steps.scheduler.num_preemptions == 1
    assert steps.sequences["b"].num_preemptions == 1
    assert steps.sequences["b"].num_computed == 0
    num_known = steps.sequences["b"].num_tokens
    steps.scheduler.remove(steps.sequences["a"])
    assert steps.step() == {"b": num_known}, "all that is known is recomputed, and c does not go before b"


def test_the_lowest_priority_is_preempted_not_the_latest() -> None:
    steps = Steps(num_blocks=6)
    steps.add("unimportant", 7, priority=1)
    steps.add("important", 7, priority=0)
    steps.step()
    while len(step := steps.step()) == 2:
        pass
    assert list(step) == ["important"]


def test_a_prompt_in_progress_is_preempted_for_one_that_decodes() -> None:
    steps = Steps(num_blocks=8, max_num_seqs=2, max_num_batched_tokens=4)
    steps.add("a", 4)
    steps.step()
    steps.add("b", 16)
    while not steps.scheduler.num_preemptions:
        assert steps.step()["a"] == 1
    assert steps.sequences["b"].num_computed == 0


def test_one_sequence_alone_may_use_the_whole_cache() -> None:
    steps = Steps(num_blocks=3)
    sequence = steps.add("a", 4, max_total_tokens=12)
    while sequence.finish_reason is None:
        assert steps.step()
    assert sequence.num_tokens == 12
    assert steps.scheduler.num_preemptions == 0


def test_a_prefix_hit_shortens_the_prompt() -> None:
    steps = Steps(prefix_caching=True)
    steps.add("a", 10)
    steps.step()
    steps.add("b", 10)
    assert steps.step() == {"a": 1, "b": 2}
    assert steps.sequences["b"].num_cached_tokens == 8
    assert (steps.scheduler.num_lookup_tokens, steps.scheduler.num_hit_tokens) == (20, 8)


def test_a_preempted_sequence_finds_its_own_blocks_and_is_not_counted_again() -> None:
    steps = Steps(num_blocks=6, prefix_caching=True)
    steps.add("a", 7)
    steps.add("b", 7, first=500)
    steps.step()
    while not steps.scheduler.num_preemptions:
        steps.step()
    lookups = steps.scheduler.num_lookup_tokens
    steps.scheduler.remove(steps.sequences["a"])
    sequence = steps.sequences["b"]
    assert steps.step()["b"] < sequence.num_tokens
    assert sequence.num_cached_tokens == 0
    assert steps.scheduler.num_lookup_tokens == lookups


def test_prompt_logprobs_take_no_hits_until_they_are_reported() -> None:
    steps = Steps(prefix_caching=True)
    steps.add("a", 10)
    steps.step()
    sequence = Sequence(Request("s", tuple(range(10)), prompt_logprobs=1), arrival=1, max_total_tokens=50)
    steps.scheduler.add(sequence)
    assert steps.step() == {"a": 1, "s": 10}


def test_removing_frees_at_once_wherever_the_sequence_is() -> None:
    steps = Steps(num_blocks=8)
    running, waiting = steps.add("a", 16), steps.add("b", 20)
    steps.step()
    assert steps.scheduler.num_waiting_tokens == 20
    steps.scheduler.remove(waiting)
    steps.scheduler.remove(running)
    steps.scheduler.check()
    assert (steps.scheduler.num_running, steps.scheduler.num_waiting, steps.scheduler.num_waiting_tokens) == (0, 0, 0)
    assert steps.cache.num_free == 8
    assert steps.step() == {}


def test_decisions_are_reproducible() -> None:
    def run() -> list[dict[str, int]]:
        steps = Steps(num_blocks=12, prefix_caching=True, max_num_seqs=4)
        for index in range(6):
            steps.add(f"r{index}", 3 + index, priority=index % 2)
        return [dict(sorted(step.items())) for step in steps.steps(40)]

    assert run() == run()
