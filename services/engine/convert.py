"""The only translator between the wire and the engine's types.

Everything past `to_request` is valid by type: ranges, NaN and token ids were checked here, and every
violation names the field as the contract writes it.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
from muster import v1 as wire

from engine import request as domain
from services.rpc.errors import FieldViolation, RpcError

if TYPE_CHECKING:
    from engine.build import Phase
    from engine.facts import ModelFacts
    from engine.stats import LoadSnapshot, StepStats

MAX_LOGPROBS = 20
MAX_ID_LENGTH = 512
MAX_LIST_LENGTH = 1024  # bad words and stop token ids: the sampler looks at each of them in every step

MAX_INPUTS = 256  # of one Embed call

# Below this the softmax overflows in float32 and its limit is the most likely token: greedy.
_SMALLEST_TEMPERATURE = 1e-5

_POOLING_METHODS: dict[int, domain.PoolingMethod] = {
    wire.POOLING_METHOD_UNSPECIFIED: domain.PoolingMethod.MEAN,
    wire.POOLING_METHOD_MEAN: domain.PoolingMethod.MEAN,
    wire.POOLING_METHOD_LAST: domain.PoolingMethod.LAST,
}
_FINISH_REASONS = {
    domain.FinishReason.STOP: wire.FINISH_REASON_STOP,
    domain.FinishReason.LENGTH: wire.FINISH_REASON_LENGTH,
    domain.FinishReason.ABORT: wire.FINISH_REASON_ABORT,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What the loaded model can take."""

    vocab_size: int
    max_model_len: int
    embedding_size: int = 0


def draw_seed() -> int:
    """A seed for a request that has none; not negative, fits int64."""
    return secrets.randbits(63)


def to_request(
    message: wire.GenerateRequest, request_id: str, limits: Limits, draw: Callable[[], int] = draw_seed
) -> domain.Request:
    """The domain request under the engine's own `request_id`.

    Raises RpcError INVALID_ARGUMENT that lists every violation.
    """
    check = _Check(limits)
    _check_prompt(message, check)
    sampling = _to_sampling(message.sampling, check, draw)
    stop = _to_stop(message.stop, check)
    logprobs = check.count("logprobs", message.logprobs if message.HasField("logprobs") else None, MAX_LOGPROBS)
    prompt_logprobs = check.count(
        "prompt_logprobs", message.prompt_logprobs if message.HasField("prompt_logprobs") else None, MAX_LOGPROBS
    )
    check.length("request_id", len(message.request_id), MAX_ID_LENGTH)
    check.length("cache_salt", len(message.cache_salt), MAX_ID_LENGTH)
    constraint = _to_constraint(message.constraint, check) if message.HasField("constraint") else None
    check.finish()
    return domain.Request(
        request_id=request_id,
        prompt_token_ids=tuple(message.prompt_token_ids),
        sampling=sampling,
        stop=stop,
        generated_token_ids=tuple(message.generated_token_ids),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        priority=message.priority,
        cache_salt=message.cache_salt,
        constraint=constraint,
    )


def check_embed(message: wire.EmbedRequest, limits: Limits) -> None:
    """Raises RpcError INVALID_ARGUMENT that lists every violation."""
    check = _Check(limits)
    if not message.inputs:
        check.fail("inputs", "is empty; send at least one input")
    check.length("inputs", len(message.inputs), MAX_INPUTS)
    for index, tokens in enumerate(message.inputs[:MAX_INPUTS]):
        name, num_tokens = f"inputs[{index}].token_ids", len(tokens.token_ids)
        if not num_tokens:
            check.fail(name, "is empty; send at least one token id")
        elif num_tokens > limits.max_model_len:
            check.fail(name, f"has {num_tokens} token ids; the model's context is {limits.max_model_len} tokens")
        else:
            check.token_ids(name, tokens.token_ids)
    if message.pooling not in _POOLING_METHODS:
        check.fail("pooling", f"is {message.pooling}, which this engine does not know; send MEAN or LAST")
    if message.HasField("dimensions") and not 1 <= message.dimensions <= limits.embedding_size:
        check.fail("dimensions", f"is {message.dimensions}; must be between 1 and {limits.embedding_size}")
    check.length("cache_salt", len(message.cache_salt), MAX_ID_LENGTH)
    check.finish()


def to_embedding_request(message: wire.EmbedRequest, index: int, request_id: str) -> domain.Request:
    """The domain request of one input of a checked message."""
    dimensions = message.dimensions if message.HasField("dimensions") else None
    return domain.Request(
        request_id=request_id,
        prompt_token_ids=tuple(message.inputs[index].token_ids),
        stop=domain.StopConditions(max_tokens=0),
        priority=message.priority,
        cache_salt=message.cache_salt,
        pooling=domain.Pooling(_POOLING_METHODS[message.pooling], dimensions),
    )


def _check_prompt(message: wire.GenerateRequest, check: _Check) -> None:
    num_tokens = len(message.prompt_token_ids) + len(message.generated_token_ids)
    if not message.prompt_token_ids:
        check.fail("prompt_token_ids", "is empty; send at least one token id")
    elif num_tokens > check.limits.max_model_len:
        check.fail(
            "prompt_token_ids",
            f"and generated_token_ids have {num_tokens} token ids together; the model's context is "
            f"{check.limits.max_model_len} tokens",
        )
    else:
        check.token_ids("prompt_token_ids", message.prompt_token_ids)
        check.token_ids("generated_token_ids", message.generated_token_ids)


def _to_sampling(message: wire.SamplingParams, check: _Check, draw: Callable[[], int]) -> domain.SamplingParams:
    default = domain.SamplingParams()

    def number(name: str, low: float, high: float) -> float:
        if not message.HasField(name):  # type: ignore[arg-type]  # the stubs list the literal names
            return float(getattr(default, name))
        return check.number(f"sampling.{name}", float(getattr(message, name)), low, high)

    temperature = number("temperature", 0.0, 2.0)
    if temperature < _SMALLEST_TEMPERATURE:
        temperature = 0.0
    check.token_ids("sampling.allowed_token_ids", message.allowed_token_ids)
    return domain.SamplingParams(
        temperature=temperature,
        top_k=message.top_k if message.HasField("top_k") else default.top_k,
        top_p=number("top_p", 0.0, 1.0),
        min_p=number("min_p", 0.0, 1.0),
        presence_penalty=number("presence_penalty", -2.0, 2.0),
        frequency_penalty=number("frequency_penalty", -2.0, 2.0),
        # Outside of this range logits overflow; the contract only says "greater than 0".
        repetition_penalty=number("repetition_penalty", 0.01, 100.0),
        seed=message.seed if message.HasField("seed") else draw(),
        logit_bias=_to_logit_bias(message, check),
        allowed_token_ids=tuple(message.allowed_token_ids),
        bad_words=_to_bad_words(message, check),
    )


def _to_logit_bias(message: wire.SamplingParams, check: _Check) -> dict[int, float]:
    check.token_ids("sampling.logit_bias", tuple(message.logit_bias))
    return {
        token_id: check.number(f"sampling.logit_bias[{token_id}]", bias, -100.0, 100.0)
        for token_id, bias in message.logit_bias.items()
    }


def _to_bad_words(message: wire.SamplingParams, check: _Check) -> tuple[tuple[int, ...], ...]:
    check.length("sampling.bad_words", len(message.bad_words), MAX_LIST_LENGTH)
    words = tuple(tuple(word.token_ids) for word in message.bad_words[:MAX_LIST_LENGTH])
    for index, word in enumerate(words):
        name = f"sampling.bad_words[{index}].token_ids"
        if not word:
            check.fail(name, "is empty; send at least one token id")
        check.token_ids(name, word)
    return words


def _to_stop(message: wire.StopConditions, check: _Check) -> domain.StopConditions:
    max_tokens = message.max_tokens if message.HasField("max_tokens") else None
    if max_tokens is not None and message.min_tokens > max_tokens:
        check.fail("stop.min_tokens", f"is {message.min_tokens}, above stop.max_tokens {max_tokens}; lower it")
    elif message.min_tokens > check.limits.max_model_len:
        check.fail("stop.min_tokens", f"is {message.min_tokens}, above the context {check.limits.max_model_len}")
    check.length("stop.stop_token_ids", len(message.stop_token_ids), MAX_LIST_LENGTH)
    check.token_ids("stop.stop_token_ids", message.stop_token_ids)
    return domain.StopConditions(
        max_tokens=max_tokens,
        min_tokens=message.min_tokens,
        stop_token_ids=frozenset(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
    )


def _to_constraint(message: wire.Constraint, check: _Check) -> domain.Constraint | None:
    """Sizes and what compiling finds are the engine's to judge."""
    name = message.WhichOneof("kind")
    if name is None:
        check.fail("constraint", "has none of the kinds this engine knows; set one, or leave the constraint out")
        return None
    kind = domain.ConstraintKind(name)
    match kind:
        case domain.ConstraintKind.CHOICE:
            return domain.Constraint(kind, choices=tuple(message.choice.values))
        case domain.ConstraintKind.JSON_OBJECT:
            if not message.json_object:
                check.fail("constraint.json_object", "is false; set it to true, or leave the constraint out")
            return domain.Constraint(kind)
        case _:
            return domain.Constraint(kind, getattr(message, name))


class _Check:
    """Collects violations; a refused value is replaced by a harmless one so that all are found."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._violations: list[FieldViolation] = []

    def fail(self, name: str, description: str) -> None:
        self._violations.append(FieldViolation(name, description))

    def number(self, name: str, value: float, low: float, high: float) -> float:
        # The comparison of the next line is false for NaN too. Floats of the wire are 32 bits wide: 0.01 arrives
        # as a little less than 0.01, hence the tolerance.
        if not math.isfinite(value) or not low - 1e-6 <= value <= high + 1e-6:
            self.fail(name, f"is {value:g}; must be between {low:g} and {high:g}")
            return low
        return min(max(value, low), high)

    def count(self, name: str, value: int | None, high: int) -> int | None:
        if value is not None and value > high:
            self.fail(name, f"is {value}; must be at most {high}")
        return value

    def length(self, name: str, length: int, high: int) -> None:
        if length > high:
            self.fail(name, f"has length {length}; must be at most {high}")

    def token_ids(self, name: str, token_ids: Sequence[int]) -> None:
        if not token_ids or max(token_ids) < self.limits.vocab_size:
            return
        index = next(i for i, token_id in enumerate(token_ids) if token_id >= self.limits.vocab_size)
        self.fail(
            f"{name}[{index}]", f"is {token_ids[index]}; token ids of this model are 0 to {self.limits.vocab_size - 1}"
        )

    def finish(self) -> None:
        if self._violations:
            message = "; ".join(f"{violation.field} {violation.description}" for violation in self._violations)
            raise RpcError(
                grpc.StatusCode.INVALID_ARGUMENT, message, reason="INVALID_REQUEST", violations=self._violations
            )


def to_finish_reason(reason: domain.FinishReason) -> wire.FinishReason.ValueType:
    """ERROR has no counterpart: it travels as a status. KeyError shows a caller that forgot."""
    return _FINISH_REASONS[reason]


def to_logprobs(logprobs: Iterable[domain.TokenLogprobs]) -> list[wire.TokenLogprobs]:
    """One wire entry per position."""
    return [
        wire.TokenLogprobs(
            token_id=entry.token_id,
            logprob=entry.logprob,
            rank=entry.rank,
            top_token_ids=entry.top_token_ids,
            top_logprobs=entry.top_logprobs,
        )
        for entry in logprobs
    ]


def to_prompt_info(prompt: domain.PromptInfo) -> wire.PromptInfo:
    return wire.PromptInfo(
        num_tokens=prompt.num_tokens, cached_tokens=prompt.cached_tokens, logprobs=to_logprobs(prompt.logprobs)
    )


def to_usage(usage: domain.Usage) -> wire.Usage:
    return wire.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )


def to_load_stats(load: LoadSnapshot) -> wire.LoadStats:
    group = load.lockstep
    return wire.LoadStats(
        waiting=load.waiting,
        running=load.running,
        kv_usage=load.kv_usage,
        waiting_tokens=load.waiting_tokens,
        prompt_tokens_total=load.prompt_tokens_total,
        generated_tokens_total=load.generated_tokens_total,
        prefix_cache_queries_total=load.prefix_cache_queries_total,
        prefix_cache_hits_total=load.prefix_cache_hits_total,
        preemptions_total=load.preemptions_total,
        steps_total=load.steps_total,
        group_steps_total=None if group is None else group.steps,
        dummy_steps_total=None if group is None else group.dummy_steps,
        exchanged_bytes_total=None if group is None else group.bytes_sent,
    )


def to_model_info(
    facts: ModelFacts,
    *,
    served_model_names: Sequence[str],
    block_size: int,
    num_blocks: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
) -> wire.ModelInfo:
    sampling = facts.default_sampling
    return wire.ModelInfo(
        served_model_names=served_model_names,
        architecture=facts.architecture,
        dtype=facts.dtype,
        max_model_len=facts.max_model_len,
        vocab_size=facts.vocab_size,
        eos_token_ids=facts.eos_token_ids,
        bos_token_id=facts.bos_token_id,
        fingerprint=facts.fingerprint,
        num_parameters=facts.num_parameters,
        quantization=facts.quantization,
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        embedding_size=facts.embedding_size,
        default_sampling=wire.DefaultSampling(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
        ),
    )


def to_step_stats(stats: StepStats) -> wire.WatchStatsResponse:
    return wire.WatchStatsResponse(
        step=stats.step,
        num_sequences=stats.num_sequences,
        num_tokens=stats.num_tokens,
        duration_us=stats.duration_us,
        schedule_us=stats.schedule_us,
        execute_us=stats.execute_us,
        load=to_load_stats(stats.load),
    )


def to_phase(phase: Phase) -> wire.EnginePhase.ValueType:
    """The loader's phases have the names of the contract's."""
    return wire.EnginePhase.Value(f"ENGINE_PHASE_{phase.name}")
