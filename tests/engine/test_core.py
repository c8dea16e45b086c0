"""The engine core with a scripted runner: what comes out for what went in."""

from __future__ import annotations

import pytest

from engine.config import SchedulerLimits
from engine.core import EngineCore
from engine.errors import DuplicateRequestError, InvalidRequestError, QueueFullError
from engine.request import FinishReason, Output, Request, StopConditions, TokenLogprobs, Usage
from tests.support.scripted_runner import VOCAB_SIZE, ScriptedRunner, continuation

EOS = 0
PROMPT = tuple(range(10, 20))


def make_core(
    num_blocks: int = 64,
    *,
    block_size: int = 4,
    max_model_len: int = 100,
    limits: SchedulerLimits | None = None,
    prefix_caching: bool = True,
) -> tuple[EngineCore, ScriptedRunner]:
    runner = ScriptedRunner(num_blocks, block_size)
    core = EngineCore(
        runner,
        num_blocks=num_blocks,
        block_size=block_size,
        vocab_size=VOCAB_SIZE,
        max_model_len=max_model_len,
        eos_token_ids=(EOS,),
        limits=limits or SchedulerLimits(max_num_seqs=8, max_num_batched_tokens=16, max_queued=16),
        prefix_caching=prefix_caching,
    )
    return core, runner


def request(request_id: str = "r", max_tokens: int | None = 5, **changes: object) -> Request:
    changes.setdefault("prompt_token_ids", PROMPT)
    changes.setdefault("stop", StopConditions(max_tokens=max_tokens))
    return Request(request_id, **changes)  # type: ignore[arg-type]


def run(core: EngineCore) -> dict[str, list[Output]]:
    """Steps until nothing is left; outputs by request. Each request ends exactly once, with its last output."""
    outputs: dict[str, list[Output]] = {}
    while core.has_work:
        for output in core.step().outputs:
            outputs.setdefault(output.request_id, []).append(output)
        core.check()
    for request_id, parts in outputs.items():
        ends = [index for index, part in enumerate(parts) if part.finish_reason is not None]
        assert ends == [len(parts) - 1], f"{request_id} ended at {ends} of {len(parts)} outputs"
    assert core.num_live == 0
    assert core.load().free_blocks == core.load().total_blocks
    return outputs


def tokens(outputs: list[Output]) -> list[int]:
    return [token_id for output in outputs for token_id in output.token_ids]


def test_one_request_from_prompt_to_length() -> None:
    core, runner = make_core()
    core.add(request())
    outputs = run(core)["r"]
    assert tokens(outputs) == continuation(PROMPT, 5)
    assert [len(output.token_ids) for output in outputs] == [1] * 5
    assert outputs[0].prompt is not None
    assert (outputs[0].prompt.num_tokens, outputs[0].prompt.cached_tokens) == (10, 0)
    assert all(output.prompt is None for output in outputs[1:])
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert outputs[-1].usage == Usage(prompt_tokens=10, completion_tokens=5, cached_tokens=0)
    assert all(output.usage is None for output in outputs[:-1])
    assert runner.forgotten == ["r"]


def test_chunks_bring_no_output_before_the_prompt_is_done() -> None:
    core, _ = make_core()
    core.add(request(prompt_token_ids=tuple(range(40))))
    assert [len(core.step().outputs) for _ in range(4)] == [0, 0, 1, 1]


@pytest.mark.parametrize("stop_id", [EOS, 77])
def test_stop_tokens_are_delivered_and_named(stop_id: int) -> None:
    core, runner = make_core()
    runner.choose = lambda sequence: stop_id if sequence.num_output_tokens == 2 else 5
    core.add(request(stop=StopConditions(stop_token_ids=frozenset({77}))))
    outputs = run(core)["r"]
    assert tokens(outputs) == [5, 5, stop_id]
    assert (outputs[-1].finish_reason, outputs[-1].stop_token_id) == (FinishReason.STOP, stop_id)
    assert outputs[-1].usage is not None
    assert outputs[-1].usage.completion_tokens == 3


def test_ignore_eos() -> None:
    core, runner = make_core()
    runner.choose = lambda sequence: EOS
    core.add(request(stop=StopConditions(max_tokens=4, ignore_eos=True)))
    outputs = run(core)["r"]
    assert tokens(outputs) == [EOS] * 4
    assert (outputs[-1].finish_reason, outputs[-1].stop_token_id) == (FinishReason.LENGTH, None)


@pytest.mark.parametrize("max_tokens", [None, 10_000])
def test_max_tokens_is_clamped_to_the_context(max_tokens: int | None) -> None:
    core, _ = make_core(max_model_len=16)
    core.add(request(max_tokens=max_tokens))
    outputs = run(core)["r"]
    assert len(tokens(outputs)) == 6
    assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_the_cache_is_a_limit_too() -> None:
    core, _ = make_core(num_blocks=4)
    core.add(request(max_tokens=None))
    assert tokens(run(core)["r"]) == continuation(PROMPT, 6)


def test_the_last_output_of_a_one_token_request_has_everything() -> None:
    core, _ = make_core()
    core.add(request(max_tokens=1, logprobs=0))
    [output] = run(core)["r"]
    assert output.prompt is not None
    assert output.logprobs == (TokenLogprobs(output.token_ids[0], -0.5, 1),)
    assert output.finish_reason is FinishReason.LENGTH


def test_scoring_generates_nothing() -> None:
    core, _ = make_core()
    core.add(request(max_tokens=0, prompt_logprobs=0, prompt_token_ids=tuple(range(40))))
    [output] = run(core)["r"]
    assert output.token_ids == ()
    assert output.finish_reason is FinishReason.LENGTH
    assert output.usage == Usage(prompt_tokens=40, completion_tokens=0, cached_tokens=0)
    assert output.prompt is not None
    assert [entry.token_id for entry in output.prompt.logprobs] == list(range(40))
    assert [entry.logprob for entry in output.prompt.logprobs] == [None] + [-1.0] * 39


def test_scoring_may_fill_the_context() -> None:
    core, _ = make_core(max_model_len=10)
    core.add(request(max_tokens=0))
    [output] = run(core)["r"]
    assert output.finish_reason is FinishReason.LENGTH


def test_prompt_logprobs_survive_preemption() -> None:
    core, runner = make_core(num_blocks=8, limits=SchedulerLimits(4, 4, 8), prefix_caching=False)
    core.add(request("a", max_tokens=20, prompt_token_ids=(1, 2, 3)))
    core.add(request("b", max_tokens=2, prompt_token_ids=tuple(range(16)), prompt_logprobs=0))
    outputs = run(core)["b"]
    assert outputs[0].prompt is not None
    assert [entry.token_id for entry in outputs[0].prompt.logprobs] == list(range(16))
    assert runner.forgotten.count("b") == 1


def test_generation_goes_on_after_earlier_output() -> None:
    core, _ = make_core()
    whole = continuation(PROMPT, 8)
    core.add(request(max_tokens=8, generated_token_ids=tuple(whole[:5])))
    outputs = run(core)["r"]
    assert tokens(outputs) == whole[5:]
    assert outputs[-1].usage == Usage(prompt_tokens=10, completion_tokens=8, cached_tokens=0)


@pytest.mark.parametrize(
    ("generated", "stop", "reason", "stop_token_id"),
    [
        ((5, 6, 7), StopConditions(max_tokens=3), FinishReason.LENGTH, None),
        ((5, 6, 7, 8), StopConditions(max_tokens=3), FinishReason.LENGTH, None),
        ((5, EOS), StopConditions(max_tokens=9), FinishReason.STOP, EOS),
        ((5, 77), StopConditions(stop_token_ids=frozenset({77})), FinishReason.STOP, 77),
    ],
)
def test_a_continuation_that_is_complete_ends_at_once(
    generated: tuple[int, ...], stop: StopConditions, reason: FinishReason, stop_token_id: int | None
) -> None:
    core, runner = make_core()
    core.add(request(generated_token_ids=generated, stop=stop))
    assert core.has_work
    [output] = run(core)["r"]
    assert (output.finish_reason, output.stop_token_id, output.token_ids) == (reason, stop_token_id, ())
    assert output.usage is not None
    assert output.usage.completion_tokens == len(generated)
    assert runner.batches == []


def test_cached_tokens_are_reported() -> None:
    core, _ = make_core()
    core.add(request("a"))
    run(core)
    core.add(request("b"))
    core.add(request("other", cache_salt="x"))
    outputs = run(core)
    assert tokens(outputs["b"]) == tokens(outputs["other"]) == continuation(PROMPT, 5)
    assert outputs["b"][0].prompt is not None
    assert outputs["b"][0].prompt.cached_tokens == 8
    assert outputs["b"][-1].usage == Usage(10, 5, 8)
    assert outputs["other"][-1].usage == Usage(10, 5, 0)
    load = core.load()
    assert (load.prefix_cache_queries_total, load.prefix_cache_hits_total) == (30, 8)
    assert load.prompt_tokens_total == 30


def test_generated_tokens_are_found_by_the_next_turn_of_a_conversation() -> None:
    core, _ = make_core()
    core.add(request("a", max_tokens=8))
    answer = tokens(run(core)["a"])
    core.add(request("b", prompt_token_ids=(*PROMPT, *answer, 1, 2)))
    outputs = run(core)["b"]
    assert outputs[-1].usage is not None
    assert outputs[-1].usage.cached_tokens == 16


def test_reset_prefix_cache() -> None:
    core, _ = make_core()
    core.add(request("a"))
    run(core)
    assert core.reset_prefix_cache() == 3
    core.add(request("b"))
    assert run(core)["b"][-1].usage == Usage(10, 5, 0)


def test_abort_frees_at_once() -> None:
    core, runner = make_core(limits=SchedulerLimits(1, 16, 8))
    core.add(request("running"))
    core.add(request("waiting"))
    core.step()
    for request_id, num_generated in (("running", 1), ("waiting", 0)):
        output = core.abort(request_id)
        assert output is not None
        assert (output.finish_reason, output.usage) == (FinishReason.ABORT, Usage(10, num_generated, 0))
    core.check()
    assert core.load().free_blocks == core.load().total_blocks
    assert not core.has_work
    assert core.abort("running") is None
    assert core.abort("unknown") is None
    assert runner.forgotten == ["running", "waiting"]


def test_an_ended_id_can_be_used_again() -> None:
    core, _ = make_core()
    core.add(request())
    with pytest.raises(DuplicateRequestError, match="'r'"):
        core.add(request())
    run(core)
    core.add(request())
    assert tokens(run(core)["r"]) == continuation(PROMPT, 5)


def test_the_queue_has_a_limit() -> None:
    core, _ = make_core(limits=SchedulerLimits(max_num_seqs=2, max_num_batched_tokens=16, max_queued=1))
    for name in "abc":
        core.add(request(name))
    with pytest.raises(QueueFullError, match="max_queued 1") as caught:
        core.add(request("d"))
    assert caught.value.retry_after_s > 0
    assert len(run(core)) == 3
    core.add(request("d"))


def test_a_refused_request_leaves_no_trace() -> None:
    core, _ = make_core()
    with pytest.raises(InvalidRequestError):
        core.add(request(prompt_token_ids=()))
    assert not core.has_work
    core.check()


def test_step_stats() -> None:
    core, _ = make_core()
    core.add(request("a"))
    core.add(request("b"))
    stats = core.step().stats
    assert (stats.step, stats.num_sequences, stats.num_tokens) == (1, 2, 16)
    assert stats.duration_us >= stats.schedule_us + stats.execute_us
    assert (stats.load.running, stats.load.waiting, stats.load.steps_total) == (2, 0, 1)
    assert stats.load.kv_usage == 6 / 64
    assert stats.load.prompt_tokens_total == 16
    assert core.step().stats.load.generated_tokens_total == 3


def test_an_idle_step_computes_nothing() -> None:
    core, runner = make_core()
    stats = core.step().stats
    assert (stats.step, stats.num_sequences, stats.num_tokens) == (0, 0, 0)
    assert runner.batches == []


def test_waiting_tokens_and_preemptions_are_counted() -> None:
    core, _ = make_core(num_blocks=6, limits=SchedulerLimits(2, 32, 8))
    for name in "abc":
        core.add(request(name, max_tokens=12, prompt_token_ids=tuple(range(ord(name), ord(name) + 7))))
    core.step()
    assert core.load().waiting_tokens == 7
    run(core)
    load = core.load()
    assert load.preemptions_total > 0
    assert load.prompt_tokens_total == 21, "recomputed tokens count once"
    assert load.generated_tokens_total == 36


def test_a_failed_step_ends_its_requests_and_no_others() -> None:
    core, runner = make_core(limits=SchedulerLimits(2, 16, 8))
    for name in "abc":
        core.add(request(name))
    core.step()

    def fail(_: object) -> None:
        raise RuntimeError("out of memory")

    runner.on_execute = fail
    with pytest.raises(RuntimeError, match="out of memory"):
        core.step()
    result = core.fail_step("the step failed: out of memory")
    core.check()
    assert [(output.request_id, output.finish_reason, output.error) for output in result.outputs] == [
        (name, FinishReason.ERROR, "the step failed: out of memory") for name in "ab"
    ]
    assert all(output.usage is not None for output in result.outputs)
    runner.on_execute = None
    assert tokens(run(core)["c"]) == continuation(PROMPT, 5)


def test_a_step_that_fails_while_it_is_committed_loses_no_output() -> None:
    core, runner = make_core()
    core.add(request("a", max_tokens=1))
    core.add(request("b"))
    execute = runner.execute
    runner.execute = lambda batch: execute(batch)[:1]  # type: ignore[method-assign]
    with pytest.raises(ValueError):
        core.step()
    outputs = core.fail_step("broken").outputs
    assert [(output.request_id, output.finish_reason) for output in outputs] == [
        ("a", FinishReason.LENGTH),
        ("b", FinishReason.ERROR),
    ]
    assert not core.has_work


def test_an_error_outside_a_forward_pass_ends_nobody() -> None:
    core, _ = make_core()
    core.add(request())
    core.step()
    assert core.fail_step("not in a step").outputs == []
    assert len(tokens(run(core)["r"])) == 4


def test_what_a_failed_step_wrote_is_never_found() -> None:
    core, runner = make_core()
    core.add(request("a"))

    def fail(_: object) -> None:
        raise RuntimeError

    runner.on_execute = fail
    with pytest.raises(RuntimeError):
        core.step()
    core.fail_step("")
    runner.on_execute = None
    core.add(request("b"))
    assert run(core)["b"][-1].usage == Usage(10, 5, 0)


def test_ending_all() -> None:
    core, _ = make_core(limits=SchedulerLimits(1, 16, 8))
    core.add(request("done", generated_token_ids=(EOS,)))
    core.add(request("a"))
    core.add(request("b"))
    outputs = {output.request_id: output for output in core.end_all(FinishReason.ERROR, "gone")}
    assert outputs["done"].finish_reason is FinishReason.STOP
    assert outputs["a"].error == outputs["b"].error == "gone"
    assert not core.has_work
    core.check()
