"""InferenceService's requests and metadata into a GenerationRequest; pure, the limits are those of the REST API."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from muster import v1 as wire

from gateway.errors import InvalidRequest
from gateway.generation_request import Constraint, GenerationRequest
from gateway.request_limits import (
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_REQUEST_ID_CHARS,
    MAX_SALT_CHARS,
    MAX_STOP_CHARS,
    MAX_STOP_IDS,
    MAX_STOP_STRINGS,
    RANK_KEY,
    valid_traceparent,
)
from gateway.wire_convert import to_constraint, to_sampling

REQUEST_ID_KEY = "x-request-id"
TRACEPARENT_KEY = "traceparent"
# As in the REST API: a completion without max_tokens is short, a chat answer takes what the context leaves.
DEFAULT_COMPLETION_TOKENS = 16

_RANGES = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.01, 100.0),
}
# Floats of the wire are 32 bits wide: 0.01 arrives as a little less.
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What a call's metadata and deadline say."""

    request_id: str
    rank: int | None = None
    traceparent: str = ""
    timeout_s: float | None = None


def call_facts(context: Any) -> CallFacts:
    """Of a gRPC call; raises as `read_metadata`."""
    remaining_s = context.time_remaining()
    # A call without a deadline reports none, or centuries.
    timeout_s = remaining_s if remaining_s is not None and remaining_s < 1e8 and math.isfinite(remaining_s) else None
    return read_metadata(context.invocation_metadata() or (), timeout_s)


def read_metadata(metadata: Iterable[tuple[str, str | bytes]], timeout_s: float | None) -> CallFacts:
    """Reads the keys we know. Raises InvalidRequest for one that is repeated or malformed."""
    known = (RANK_KEY, REQUEST_ID_KEY, TRACEPARENT_KEY)
    values: dict[str, str] = {}
    for key, value in metadata:
        if key not in known:
            continue
        if key in values:
            raise InvalidRequest(key, f"metadata {key} is given more than once: send it once")
        values[key] = value if isinstance(value, str) else value.decode("latin-1")
    return CallFacts(
        request_id=_read_request_id(values.get(REQUEST_ID_KEY)),
        rank=_read_rank(values.get(RANK_KEY)),
        traceparent=valid_traceparent(values.get(TRACEPARENT_KEY, "")),
        timeout_s=timeout_s,
    )


def to_generation_request(
    options: wire.GenerationOptions, prompt_token_ids: Sequence[int], facts: CallFacts, default_max_tokens: int | None
) -> GenerationRequest:
    """The request for `gateway.generation`. Raises InvalidRequest naming the field, its value and its range."""
    conditions = options.conditions
    _check_sampling(options.sampling)
    _check_options(options)
    max_tokens = conditions.max_tokens if conditions.HasField("max_tokens") else default_max_tokens
    if max_tokens is not None and conditions.min_tokens > max_tokens:
        _refuse("options.conditions.min_tokens", conditions.min_tokens, f"at most max_tokens, {max_tokens}")
    field_rank = options.rank if options.HasField("rank") else None
    return GenerationRequest(
        request_id=facts.request_id,
        prompt_token_ids=tuple(prompt_token_ids),
        sampling=to_sampling(options.sampling),
        max_tokens=max_tokens,
        min_tokens=conditions.min_tokens,
        stop_token_ids=tuple(conditions.stop_token_ids),
        ignore_eos=conditions.ignore_eos,
        stop_strings=tuple(options.stop_strings),
        include_stop_string=options.include_stop_string,
        n=options.n if options.HasField("n") else 1,
        logprobs=options.logprobs if options.HasField("logprobs") else None,
        skip_special_tokens=not options.keep_special_tokens,
        rank=facts.rank if facts.rank is not None else field_rank,
        priority=options.priority,
        cache_salt=options.cache_salt,
        timeout_s=facts.timeout_s,
        traceparent=facts.traceparent,
        constraint=_read_constraint(options),
    )


def _read_constraint(options: wire.GenerationOptions) -> Constraint | None:
    if not options.HasField("constraint"):
        return None
    constraint = to_constraint(options.constraint, "options.constraint")
    if constraint is None:
        _refuse("options.constraint", "without a kind that is known here", "exactly one kind")
    for name in ("ignore_eos", "min_tokens"):
        if getattr(options.conditions, name):
            _refuse(f"options.conditions.{name}", "set", "not to be set together with options.constraint")
    return constraint


def _read_request_id(value: str | None) -> str:
    if value is None:
        return uuid.uuid4().hex
    if not 0 < len(value) <= MAX_REQUEST_ID_CHARS or not (value.isascii() and value.isprintable()):
        raise InvalidRequest(
            REQUEST_ID_KEY,
            f"metadata {REQUEST_ID_KEY} is {value[:20]!r}…: send 1 to {MAX_REQUEST_ID_CHARS} printable characters",
        )
    return value


def _read_rank(value: str | None) -> int | None:
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal() and len(value) <= 9):
        raise InvalidRequest(RANK_KEY, f"metadata {RANK_KEY} is {value!r}: send a global rank, a decimal number")
    return int(value)


def _check_sampling(sampling: wire.SamplingParams) -> None:
    for name, (low, high) in _RANGES.items():
        if sampling.HasField(name):  # type: ignore[arg-type]
            # Written so that NaN fails.
            value = getattr(sampling, name)
            if not low - _TOLERANCE <= value <= high + _TOLERANCE:
                _refuse(f"options.sampling.{name}", value, f"{low:g} to {high:g}")
    for token_id, bias in sampling.logit_bias.items():
        if not -100 <= bias <= 100:
            _refuse(f"options.sampling.logit_bias[{token_id}]", bias, "-100 to 100")


def _check_options(options: wire.GenerationOptions) -> None:
    if options.HasField("n") and not 1 <= options.n <= MAX_CHOICES:
        _refuse("options.n", options.n, f"1 to {MAX_CHOICES}")
    if options.HasField("logprobs") and options.logprobs > MAX_LOGPROBS:
        _refuse("options.logprobs", options.logprobs, f"0 to {MAX_LOGPROBS}")
    if len(options.stop_strings) > MAX_STOP_STRINGS:
        _refuse("options.stop_strings", f"{len(options.stop_strings)} strings", f"at most {MAX_STOP_STRINGS}")
    for stop in options.stop_strings:
        if not 0 < len(stop) <= MAX_STOP_CHARS:
            _refuse("options.stop_strings", f"a string of {len(stop)} characters", f"1 to {MAX_STOP_CHARS} characters")
    num_stop_ids = len(options.conditions.stop_token_ids)
    if num_stop_ids > MAX_STOP_IDS:
        _refuse("options.conditions.stop_token_ids", f"{num_stop_ids} ids", f"at most {MAX_STOP_IDS}")
    if len(options.cache_salt) > MAX_SALT_CHARS:
        _refuse("options.cache_salt", f"{len(options.cache_salt)} characters", f"at most {MAX_SALT_CHARS}")


def _refuse(field: str, value: object, expected: str) -> NoReturn:
    raise InvalidRequest(field, f"{field} is {value}: expected {expected}")
