"""Random walks over the whole core on tiny pools; the scripted runner is the oracle.

It answers from the contents of the blocks, so a token differs from the undisturbed generation when a block was given to
two sequences, freed too early, matched wrongly or not recomputed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from engine.config import SchedulerLimits
from engine.core import EngineCore
from engine.errors import QueueFullError
from engine.request import FinishReason, Output, Request, StopConditions
from tests.support.scripted_runner import VOCAB_SIZE, ScriptedRunner, continuation


@dataclass
class Life:
    """What is expected of one accepted request, and what came."""

    request: Request
    order: tuple[int, int]
    max_output_tokens: int
    num_steps: int = 0
    num_ahead: int = 0  # requests that were ever live and before it
    token_ids: list[int] = field(default_factory=list)
    num_prompts: int = 0
    end: FinishReason | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt_token_ids) + self.max_output_tokens


class Walk:
    """Adds, steps, aborts, breaks and resets at random, and checks after each."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.block_size = self.rng.choice([1, 2, 4, 16])
        num_blocks = self.rng.randint(-(-16 // self.block_size), 40 // self.block_size + 4)
        self.capacity = min(num_blocks * self.block_size, 48)
        max_num_seqs = self.rng.randint(1, 6)
        self.limits = SchedulerLimits(max_num_seqs, max_num_seqs + self.rng.randint(0, 12), self.rng.randint(0, 8))
        self.runner = ScriptedRunner(num_blocks, self.block_size)
        self.core = EngineCore(
            self.runner,
            num_blocks=num_blocks,
            block_size=self.block_size,
            vocab_size=VOCAB_SIZE,
            max_model_len=self.capacity,
            eos_token_ids=(0,),
            limits=self.limits,
            prefix_caching=self.rng.random() < 0.8,
        )
        self.live: dict[str, Life] = {}
        self.ended: list[Life] = []
        self.num_added = 0
        self.num_refused = 0
        self.max_live = max_num_seqs + self.limits.max_queued

    def add(self) -> None:
        rng = self.rng
        prompt = tuple(rng.choice([1, 2]) for _ in range(rng.randint(1, rng.choice([8, self.capacity - 1]))))
        max_output_tokens = min(rng.randint(0, rng.choice([8, 40])), self.capacity - len(prompt))
        generated = tuple(continuation(prompt, rng.randint(0, max_output_tokens))) if rng.random() < 0.3 else ()
        request = Request(
            f"r{self.num_added}",
            prompt,
            stop=StopConditions(max_tokens=max_output_tokens),
            generated_token_ids=generated,
            prompt_logprobs=rng.choice([None, None, None, 0]),
            priority=rng.choice([0, 0, 0, -1, 1]),
            cache_salt=rng.choice(["", "", "x"]),
        )
        try:
            self.core.add(request)
        except QueueFullError:
            assert len(self.live) >= self.max_live
            self.num_refused += 1
            return
        life = Life(request, (request.priority, self.num_added), max_output_tokens, token_ids=list(generated))
        self.num_added += 1
        life.num_ahead = sum(other.order < life.order for other in self.live.values())
        for other in self.live.values():
            other.num_ahead += life.order < other.order
        self.live[request.request_id] = life

    def step(self) -> None:
        for output in self.core.step().outputs:
            self.take(output)
        for life in self.live.values():
            life.num_steps += 1
            # The first running in order computes a token in each step and is never preempted, and nothing behind
            # the first waiting one is admitted. So it waits for those before it and for those that ran already.
            limit = (life.num_ahead + self.limits.max_num_seqs + 1) * (self.capacity + 1)
            assert life.num_steps <= limit, f"{life.request.request_id} starves"

    def fail(self) -> None:
        def fail(_: object) -> None:
            raise RuntimeError("broken")

        self.runner.on_execute = fail
        try:
            outputs = self.core.step().outputs
        except RuntimeError:
            outputs = self.core.fail_step("broken").outputs
        self.runner.on_execute = None
        for output in outputs:
            self.take(output)

    def abort(self) -> None:
        request_id = f"r{self.rng.randrange(max(1, self.num_added))}"
        output = self.core.abort(request_id)
        if output is not None:
            assert output.finish_reason is FinishReason.ABORT
            self.take(output)

    def take(self, output: Output) -> None:
        life = self.live[output.request_id]  # an unknown or ended request has no output
        life.token_ids += output.token_ids
        life.num_prompts += output.prompt is not None
        if output.prompt is not None and life.request.prompt_logprobs is not None:
            scored = tuple(entry.token_id for entry in output.prompt.logprobs)
            assert scored == life.request.prompt_token_ids
        expected = continuation(life.request.prompt_token_ids, life.max_output_tokens)
        assert life.token_ids == expected[: len(life.token_ids)]
        if output.finish_reason is None:
            return
        life.end = output.finish_reason
        if life.end is FinishReason.LENGTH:
            assert life.token_ids == expected
            assert life.num_prompts == 1
        assert output.usage is not None
        assert output.usage.completion_tokens == len(life.token_ids)
        assert output.usage.cached_tokens <= output.usage.prompt_tokens == len(life.request.prompt_token_ids)
        del self.live[output.request_id]
        self.ended.append(life)

    def check(self) -> None:
        self.core.check()
        load = self.core.load()
        assert load.running <= self.limits.max_num_seqs
        assert load.running + load.waiting == self.core.num_live <= len(self.live)

    def run(self, num_operations: int) -> None:
        actions = [self.add, self.step, self.abort, self.fail, self.reset]
        for _ in range(num_operations):
            [action] = self.rng.choices(actions, [30, 60, 6, 1, 1])
            action()
            self.check()
        while self.core.has_work:
            self.step()
            self.check()

    def reset(self) -> None:
        self.core.reset_prefix_cache()


@pytest.mark.parametrize("seed", range(12))
def test_random_walk(seed: int) -> None:
    walk = Walk(seed)
    walk.run(1200)
    load = walk.core.load()
    assert not walk.live, "every accepted request ends"
    assert len(walk.ended) == walk.num_added, "and ends once"
    assert load.free_blocks == load.total_blocks, "no block is lost"
    computed = {name for batch in walk.runner.batches for name, _, _ in batch}
    assert computed <= set(walk.runner.forgotten), "the runner may forget whatever it has seen"
    assert len(walk.runner.forgotten) == len(set(walk.runner.forgotten))
    for batch in walk.runner.batches:
        assert sum(num_tokens for _, _, num_tokens in batch) <= walk.limits.max_num_batched_tokens


def test_the_walks_reach_what_they_are_meant_to_test() -> None:
    walks = [Walk(seed) for seed in range(12)]
    for walk in walks:
        walk.run(600)
    loads = [walk.core.load() for walk in walks]
    assert sum(load.preemptions_total for load in loads) > 20
    assert sum(load.prefix_cache_hits_total for load in loads) > 100
    assert sum(walk.num_refused for walk in walks) > 10
    ends = {life.end for walk in walks for life in walk.ended}
    assert ends == {FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR}


def test_walks_are_reproducible() -> None:
    first, second = Walk(3), Walk(3)
    first.run(300)
    second.run(300)
    assert first.runner.batches == second.runner.batches
