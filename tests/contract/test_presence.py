"""Field presence: "cannot say" and "not given" are absent, zero is zero.

A number is `optional` unless its zero can only mean one thing. Those that are not are listed here with that meaning, so
that a field which is added without thinking of it is noticed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from muster import v1 as wire

from gateway.wire_convert import to_load_snapshot, to_sampling
from services.engine.convert import Limits, to_request

NUMBERS = {
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
    FieldDescriptor.CPPTYPE_DOUBLE,
    FieldDescriptor.CPPTYPE_FLOAT,
}
# What a caller may leave out, or a peer may be unable to tell: all numbers in these are optional, but for those named.
ZERO_MEANS = {
    "SamplingParams": {},
    "DefaultSampling": {},
    "StopConditions": {},
    "GenerationOptions": {"priority": "the default"},
    "GenerateRequest": {"priority": "the default"},
    "EmbedRequest": {"priority": "the default"},
    "TokenLogprobs": {"token_id": "the id 0", "rank": "never: ranks count from 1"},
    "LoadStats": {"waiting": "none", "running": "none"},
    "ModelInfo": {
        "max_model_len": "never",
        "vocab_size": "never",
        "block_size": "never",
        "max_num_seqs": "never",
        "max_num_batched_tokens": "never",
    },
    "GetStatusResponse": {"incarnation": "never", "num_threads": "nothing loaded yet"},
    "Hello": {"pid": "never", "incarnation": "never", "accepted_by": "no head"},
    "Finished": {"handle": "the handle 0"},
}


def numbers_without_presence(message: Descriptor) -> Iterator[str]:
    for field in message.fields:
        if field.cpp_type in NUMBERS and not field.is_repeated and not field.has_presence:
            yield field.name


@pytest.mark.parametrize("name", ZERO_MEANS)
def test_a_number_that_may_be_unknown_has_presence(name: str) -> None:
    message = getattr(wire, name)
    assert set(numbers_without_presence(message.DESCRIPTOR)) == set(ZERO_MEANS[name])


def test_an_engine_tells_nothing_from_zero() -> None:
    silent, idle = wire.LoadStats(running=1), wire.LoadStats(running=1, kv_usage=0.0, preemptions_total=0)
    response = wire.WatchLoadResponse(loads=[wire.RankLoad(rank=0, stats=silent), wire.RankLoad(rank=1, stats=idle)])
    first, second = to_load_snapshot(response).loads
    assert (first.kv_usage, first.preemptions_total) == (None, None)
    assert (second.kv_usage, second.preemptions_total) == (0.0, 0)


def test_a_caller_tells_nothing_from_zero() -> None:
    given, nothing = wire.SamplingParams(temperature=0.0, top_k=0, seed=0), wire.SamplingParams()
    assert (to_sampling(given).temperature, to_sampling(given).top_k, to_sampling(given).seed) == (0.0, 0, 0)
    assert to_sampling(nothing).temperature is to_sampling(nothing).top_k is to_sampling(nothing).seed is None


def test_the_engine_tells_nothing_from_zero() -> None:
    limits = Limits(vocab_size=10, max_model_len=100)
    scoring = wire.GenerateRequest(prompt_token_ids=[1], stop=wire.StopConditions(max_tokens=0), logprobs=0)
    plain = wire.GenerateRequest(prompt_token_ids=[1])
    assert (to_request(scoring, "a", limits).stop.max_tokens, to_request(scoring, "a", limits).logprobs) == (0, 0)
    assert to_request(plain, "b", limits).stop.max_tokens is to_request(plain, "b", limits).logprobs is None
    assert to_request(plain, "c", limits).sampling.temperature == 1.0
