"""One rank's engine: schedule, execute, commit. Synchronous; belongs to one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.batch import Batch, Runner, Scheduled, StepToken
from engine.config import SchedulerLimits
from engine.errors import DuplicateRequestError, EngineError, InvalidRequestError, QueueFullError
from engine.kv.cache import KVCache
from engine.request import FinishReason, Output, PlainOutput, Request, TokenLogprobs, TokenOutput
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.stats import LoadSnapshot, LockstepTotals, StepStats
from engine.validation import validate

if TYPE_CHECKING:
    from engine.grammar.compiler import GrammarCompiler
    from engine.grammar.matcher import Matcher


@dataclass(frozen=True, slots=True)
class Rejected:
    """A request that was not accepted, and why."""

    request_id: str
    error: EngineError


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one turn of the engine brought, for whom.

    A request may have two outputs when its step failed: tokens first, then its end.
    """

    outputs: list[Output]
    stats: StepStats
    rejected: list[Rejected] = field(default_factory=list)


class EngineCore:
    """Every accepted request ends exactly once: one of its outputs, its last one, has a finish reason.

    When `step` raises, the caller goes on with `fail_step`.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        num_blocks: int,
        block_size: int,
        vocab_size: int,
        max_model_len: int,
        eos_token_ids: tuple[int, ...] = (),
        embedding_size: int | None = None,
        limits: SchedulerLimits = SchedulerLimits(),  # noqa: B008  # frozen
        prefix_caching: bool = True,
        grammars: GrammarCompiler | None = None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._runner = runner
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._eos_token_ids = eos_token_ids
        self._embedding_size = embedding_size  # None: the runner cannot pool
        self._limits = limits
        self.grammars = grammars  # None: no request can be constrained
        self.lockstep_totals: Callable[[], LockstepTotals] | None = None  # of a rank in a group
        self._clock_ns = clock_ns
        self._cache = KVCache(num_blocks, block_size, prefix_caching=prefix_caching)
        self._scheduler = Scheduler(self._cache, limits)
        self._live: dict[str, Sequence] = {}
        self._outputs: list[Output] = []  # made but not handed out yet
        self._batch: Batch | None = None  # in execution; still there after a step that raised
        self._num_arrived = 0
        self._num_steps = 0
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0

    @property
    def has_work(self) -> bool:
        return bool(self._live or self._outputs)

    @property
    def num_live(self) -> int:
        """Requests that were accepted and have not ended."""
        return len(self._live)

    def add(self, request: Request, matcher: Matcher | None = None) -> None:
        """Accepts a request, whose outputs come from the steps that follow.

        `matcher` is of its constraint and has taken its generated tokens; without it, this waits for the compiler.
        Raises InvalidRequestError, DuplicateRequestError or QueueFullError, and nothing has changed.
        """
        validate(
            request,
            vocab_size=self._vocab_size,
            max_model_len=self._max_model_len,
            num_slots=self._cache.num_slots,
            embedding_size=self._embedding_size,
        )
        if request.request_id in self._live:
            raise DuplicateRequestError(f"request_id: {request.request_id!r} is live already; choose another one")
        if request.constraint is not None and matcher is None:
            matcher = self._compile(request)
        sequence = self._sequence(request, matcher)
        if request.generated_token_ids and request.prompt_logprobs is None and sequence.finish_reason is not None:
            self._outputs.append(_last_output(sequence, sequence.finish_reason))
            return
        if len(self._live) >= self._limits.max_num_seqs + self._limits.max_queued:
            raise QueueFullError(
                f"{self._scheduler.num_running} requests run and {self._scheduler.num_waiting} wait, "
                f"more than max_num_seqs {self._limits.max_num_seqs} and max_queued {self._limits.max_queued} allow; "
                "try again later"
            )
        self._num_arrived += 1
        self._live[request.request_id] = sequence
        self._scheduler.add(sequence)

    def abort(self, request_id: str) -> TokenOutput | None:
        """Ends a request and frees its blocks at once. Returns its last output; None when it is not live."""
        sequence = self._live.get(request_id)
        if sequence is None:
            return None
        self._retire(sequence)
        return _last_output(sequence, FinishReason.ABORT)

    def step(self) -> StepResult:
        """One schedule, forward pass and commit. Raises what the runner raises: see `fail_step`."""
        started = self._clock_ns()
        scheduled = self._scheduler.schedule()
        executing = executed = self._clock_ns()
        num_tokens = 0
        if scheduled:
            num_tokens = sum(item.num_new_tokens for item in scheduled)
            self._batch = Batch(self._num_steps + 1, tuple(scheduled))
            step_tokens = self._runner.execute(self._batch)
            executed = self._clock_ns()
            self._commit(scheduled, step_tokens)
            self._batch = None
            self._num_steps += 1
        stats = StepStats(
            step=self._num_steps,
            num_sequences=len(scheduled),
            num_tokens=num_tokens,
            schedule_us=(executing - started) // 1000,
            execute_us=(executed - executing) // 1000,
            duration_us=(self._clock_ns() - started) // 1000,
            load=self.load(),
        )
        return StepResult(self._take_outputs(), stats)

    def fail_step(self, message: str) -> StepResult:
        """After a step that raised: ends the requests of its batch with an error, the others live on."""
        batch, self._batch = self._batch, None
        for item in batch.scheduled if batch is not None else ():
            if self._live.get(item.sequence.request_id) is item.sequence:
                self._outputs.append(_last_output(item.sequence, FinishReason.ERROR, message))
                self._retire(item.sequence)
        return self.between_steps(self._take_outputs())

    def abandon_step(self) -> None:
        """After a step whose computation could not be finished anywhere: nothing was committed, so that the next step
        computes the same again."""
        self._batch = None

    def end_all(self, reason: FinishReason, error: str = "") -> list[Output]:
        """Ends every live request, for good: the runner is not asked, it may be what is broken."""
        for sequence in list(self._live.values()):
            self._outputs.append(_last_output(sequence, reason, error))
            del self._live[sequence.request_id]
            self._scheduler.remove(sequence)
        return self._take_outputs()

    def between_steps(self, outputs: list[Output], rejected: list[Rejected] | None = None) -> StepResult:
        """A result for what happened without a forward pass."""
        stats = StepStats(
            step=self._num_steps,
            num_sequences=0,
            num_tokens=0,
            schedule_us=0,
            execute_us=0,
            duration_us=0,
            load=self.load(),
        )
        return StepResult(outputs, stats, rejected or [])

    def load(self) -> LoadSnapshot:
        scheduler, num_free, num_blocks = self._scheduler, self._cache.num_free, self._cache.num_blocks
        return LoadSnapshot(
            waiting=scheduler.num_waiting,
            running=scheduler.num_running,
            kv_usage=(num_blocks - num_free) / num_blocks,
            waiting_tokens=scheduler.num_waiting_tokens,
            prompt_tokens_total=self._num_prompt_tokens,
            generated_tokens_total=self._num_generated_tokens,
            prefix_cache_queries_total=scheduler.num_lookup_tokens,
            prefix_cache_hits_total=scheduler.num_hit_tokens,
            preemptions_total=scheduler.num_preemptions,
            steps_total=self._num_steps,
            free_blocks=num_free,
            total_blocks=num_blocks,
            lockstep=self.lockstep_totals() if self.lockstep_totals is not None else None,
        )

    def reset_prefix_cache(self) -> int:
        """Forgets every cached prefix; returns how many blocks could be found by one."""
        return self._cache.reset()

    def check(self) -> None:
        """Raises AssertionError when the books are wrong; for tests and debugging, its cost grows with the pool."""
        self._scheduler.check()
        num_known = self._scheduler.num_waiting + self._scheduler.num_running
        assert num_known == len(self._live), "a live request neither waits nor runs, or an ended one does"

    def _compile(self, request: Request) -> Matcher:
        if request.constraint is None or self.grammars is None:
            raise InvalidRequestError("constraint", "is not possible with this engine; leave it out")
        return self.grammars.prepare(request.constraint, request.generated_token_ids).result()

    def _sequence(self, request: Request, matcher: Matcher | None) -> Sequence:
        max_total_tokens = min(self._max_model_len, self._cache.num_slots)
        if request.stop.max_tokens is not None:
            max_total_tokens = min(max_total_tokens, len(request.prompt_token_ids) + request.stop.max_tokens)
        return Sequence(
            request,
            arrival=self._num_arrived,
            max_total_tokens=max_total_tokens,
            eos_token_ids=self._eos_token_ids,
            matcher=matcher,
        )

    def _commit(self, scheduled: list[Scheduled], step_tokens: list[StepToken]) -> None:
        for item, step_token in zip(scheduled, step_tokens, strict=True):
            sequence = item.sequence
            self._scheduler.advance(sequence, item.num_new_tokens)
            if sequence.num_prompt_tokens_counted < sequence.num_prompt_tokens:
                self._count_prompt_tokens(sequence)
            if step_token.prompt_logprobs:
                sequence.add_prompt_logprobs(step_token.prompt_logprobs)
            if sequence.num_computed == len(sequence.token_ids):
                self._catch_up(sequence, step_token)

    def _catch_up(self, sequence: Sequence, step_token: StepToken) -> None:
        """All that is known is computed: the sequence gets its next token, unless it is complete already."""
        token_ids: tuple[int, ...] = ()
        logprobs: tuple[TokenLogprobs, ...] = ()
        sampled = step_token.sampled
        if sequence.matcher is not None and sequence.matcher.failure:
            constraint = sequence.request.constraint
            assert constraint is not None
            self._outputs.append(
                _last_output(
                    sequence,
                    FinishReason.ERROR,
                    sequence.matcher.failure,
                    error_field=f"constraint.{constraint.kind.value}",
                )
            )
            self._retire(sequence)
            return
        if sampled is not None:
            token_ids = (sampled.token_id,)
            if sampled.logprobs is not None:
                logprobs = (sampled.logprobs,)
            sequence.token_ids.append(sampled.token_id)
            self._num_generated_tokens += 1
        finish_reason = sequence.finish_reason
        assert sampled is not None or finish_reason is not None, f"nothing was sampled for {sequence.request_id}"
        if finish_reason is None:
            prompt = None if sequence.prompt_reported else sequence.report_prompt()
            if logprobs or prompt is not None:
                self._outputs.append(TokenOutput(sequence.request_id, token_ids, logprobs, prompt))
            else:
                self._outputs.append(PlainOutput(sequence.request_id, token_ids))
        else:
            self._outputs.append(
                _last_output(
                    sequence, finish_reason, token_ids=token_ids, logprobs=logprobs, embedding=step_token.embedding
                )
            )
            self._retire(sequence)

    def _retire(self, sequence: Sequence) -> None:
        del self._live[sequence.request_id]
        self._scheduler.remove(sequence)
        self._runner.forget(sequence.request_id)

    def _count_prompt_tokens(self, sequence: Sequence) -> None:
        num_done = min(sequence.num_computed, sequence.num_prompt_tokens)
        if num_done > sequence.num_prompt_tokens_counted:
            self._num_prompt_tokens += num_done - sequence.num_prompt_tokens_counted
            sequence.num_prompt_tokens_counted = num_done

    def _take_outputs(self) -> list[Output]:
        outputs, self._outputs = self._outputs, []
        return outputs


def _last_output(
    sequence: Sequence,
    reason: FinishReason,
    error: str = "",
    *,
    error_field: str = "",
    token_ids: tuple[int, ...] = (),
    logprobs: tuple[TokenLogprobs, ...] = (),
    embedding: tuple[float, ...] | None = None,
) -> TokenOutput:
    """The end of a request. What became of the prompt is told if the request got through it."""
    completed = reason in (FinishReason.STOP, FinishReason.LENGTH)
    return TokenOutput(
        request_id=sequence.request_id,
        token_ids=token_ids,
        logprobs=logprobs,
        prompt=sequence.report_prompt() if completed else None,
        finish_reason=reason,
        stop_token_id=sequence.stop_token_id if reason is FinishReason.STOP else None,
        usage=sequence.usage,
        error=error,
        error_field=error_field,
        embedding=embedding,
    )
