"""Wire to domain and back: presence, ranges, and the names of fields in refusals."""

from __future__ import annotations

import math

import grpc
import pytest
from muster import v1 as wire

from engine import request as domain
from services.engine import convert
from services.rpc.errors import RpcError

LIMITS = convert.Limits(vocab_size=100, max_model_len=50)


def generate_request(**fields: object) -> wire.GenerateRequest:
    return wire.GenerateRequest(**{"prompt_token_ids": [1, 2, 3], **fields})  # type: ignore[arg-type]


def to_request(message: wire.GenerateRequest) -> domain.Request:
    return convert.to_request(message, "key", LIMITS, draw=lambda: 77)


def refused(message: wire.GenerateRequest) -> RpcError:
    with pytest.raises(RpcError) as caught:
        to_request(message)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    return caught.value


def test_absent_fields_take_the_domain_defaults() -> None:
    request = to_request(generate_request())
    assert request == domain.Request("key", (1, 2, 3), domain.SamplingParams(seed=77), domain.StopConditions())


def test_present_zeros_are_zeros() -> None:
    sampling = wire.SamplingParams(temperature=0, top_p=0, top_k=0, seed=0)
    message = generate_request(sampling=sampling, stop=wire.StopConditions(max_tokens=0), logprobs=0, prompt_logprobs=0)
    request = to_request(message)
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.seed) == (0.0, 0.0, 0)
    assert (request.stop.max_tokens, request.logprobs, request.prompt_logprobs) == (0, 0, 0)
    assert request.sampling.greedy


def test_every_field_arrives() -> None:
    sampling = wire.SamplingParams(
        temperature=0.5,
        top_k=7,
        top_p=0.25,
        min_p=0.125,
        presence_penalty=-1.5,
        frequency_penalty=1.5,
        repetition_penalty=1.25,
        seed=-9,
        logit_bias={5: -100.0, 6: 100.0},
        allowed_token_ids=[5, 6, 7],
        bad_words=[wire.TokenSequence(token_ids=[8, 9])],
    )
    stop = wire.StopConditions(max_tokens=9, min_tokens=2, stop_token_ids=[4, 4], ignore_eos=True)
    message = generate_request(
        request_id="theirs",
        generated_token_ids=[10, 11],
        sampling=sampling,
        stop=stop,
        logprobs=20,
        prompt_logprobs=3,
        priority=-5,
        cache_salt="salt",
    )
    expected = domain.SamplingParams(
        0.5, 7, 0.25, 0.125, -1.5, 1.5, 1.25, -9, {5: -100.0, 6: 100.0}, (5, 6, 7), ((8, 9),)
    )
    conditions = domain.StopConditions(9, 2, frozenset({4}), True)
    assert to_request(message) == domain.Request("key", (1, 2, 3), expected, conditions, (10, 11), 20, 3, -5, "salt")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (wire.Constraint(json_schema="{}"), domain.Constraint(domain.ConstraintKind.JSON_SCHEMA, "{}")),
        (wire.Constraint(json_object=True), domain.Constraint(domain.ConstraintKind.JSON_OBJECT)),
        (wire.Constraint(regex="a+"), domain.Constraint(domain.ConstraintKind.REGEX, "a+")),
        (
            wire.Constraint(choice=wire.ChoiceConstraint(values=["a", "b"])),
            domain.Constraint(domain.ConstraintKind.CHOICE, choices=("a", "b")),
        ),
        (wire.Constraint(grammar='start: "a"'), domain.Constraint(domain.ConstraintKind.GRAMMAR, 'start: "a"')),
    ],
)
def test_constraints_arrive(message: wire.Constraint, expected: domain.Constraint) -> None:
    assert to_request(generate_request(constraint=message)).constraint == expected


@pytest.mark.parametrize(
    ("message", "field"),
    [(wire.Constraint(), "constraint"), (wire.Constraint(json_object=False), "constraint.json_object")],
)
def test_constraints_that_say_nothing_are_refused(message: wire.Constraint, field: str) -> None:
    assert [violation.field for violation in refused(generate_request(constraint=message)).violations] == [field]


def test_a_temperature_too_small_for_float32_is_greedy() -> None:
    assert to_request(generate_request(sampling=wire.SamplingParams(temperature=1e-30))).sampling.greedy


def test_drawn_seeds_differ_and_fit_the_wire() -> None:
    seeds = {convert.draw_seed() for _ in range(100)}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)


BAD_NUMBERS = [math.nan, math.inf, -math.inf, 3e38, -3e38]


@pytest.mark.parametrize("value", BAD_NUMBERS)
@pytest.mark.parametrize(
    "name",
    [
        "temperature",
        "top_p",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
    ],
)
def test_numbers_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    error = refused(generate_request(sampling=wire.SamplingParams(**{name: value})))  # type: ignore[arg-type]
    assert [violation.field for violation in error.violations] == [f"sampling.{name}"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 2.01),
        ("temperature", -0.01),
        ("top_p", 1.01),
        ("min_p", -0.01),
        ("presence_penalty", 2.01),
        ("frequency_penalty", -2.01),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
    ],
)
def test_numbers_just_out_of_range_are_refused(name: str, value: float) -> None:
    error = refused(generate_request(sampling=wire.SamplingParams(**{name: value})))  # type: ignore[arg-type]
    assert error.violations[0].field == f"sampling.{name}"


@pytest.mark.parametrize(("name", "value"), [("temperature", 2.0), ("top_p", 1.0), ("repetition_penalty", 0.01)])
def test_borders_are_allowed_exactly(name: str, value: float) -> None:
    request = to_request(generate_request(sampling=wire.SamplingParams(**{name: value})))  # type: ignore[arg-type]
    assert getattr(request.sampling, name) == pytest.approx(value)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (wire.GenerateRequest(), "prompt_token_ids"),
        (generate_request(prompt_token_ids=[1, 2, 100]), "prompt_token_ids[2]"),
        (generate_request(prompt_token_ids=[2**32 - 1]), "prompt_token_ids[0]"),
        (generate_request(prompt_token_ids=[1] * 51), "prompt_token_ids"),
        (generate_request(generated_token_ids=[1] * 48), "prompt_token_ids"),
        (generate_request(generated_token_ids=[100]), "generated_token_ids[0]"),
        (generate_request(logprobs=21), "logprobs"),
        (generate_request(prompt_logprobs=2**32 - 1), "prompt_logprobs"),
        (generate_request(stop=wire.StopConditions(stop_token_ids=[1, 100])), "stop.stop_token_ids[1]"),
        (generate_request(stop=wire.StopConditions(max_tokens=1, min_tokens=2)), "stop.min_tokens"),
        (generate_request(stop=wire.StopConditions(min_tokens=2**32 - 1)), "stop.min_tokens"),
        (generate_request(sampling=wire.SamplingParams(logit_bias={100: 1.0})), "sampling.logit_bias[0]"),
        (generate_request(sampling=wire.SamplingParams(logit_bias={7: math.nan})), "sampling.logit_bias[7]"),
        (generate_request(sampling=wire.SamplingParams(logit_bias={7: 100.5})), "sampling.logit_bias[7]"),
        (generate_request(sampling=wire.SamplingParams(allowed_token_ids=[100])), "sampling.allowed_token_ids[0]"),
        (
            generate_request(sampling=wire.SamplingParams(bad_words=[wire.TokenSequence()])),
            "sampling.bad_words[0].token_ids",
        ),
        (
            generate_request(sampling=wire.SamplingParams(bad_words=[wire.TokenSequence(token_ids=[1, 100])])),
            "sampling.bad_words[0].token_ids[1]",
        ),
        (
            generate_request(sampling=wire.SamplingParams(bad_words=[wire.TokenSequence(token_ids=[1])] * 1025)),
            "sampling.bad_words",
        ),
        (generate_request(request_id="x" * 513), "request_id"),
        (generate_request(cache_salt="x" * 513), "cache_salt"),
    ],
)
def test_refusals_name_the_field(message: wire.GenerateRequest, field: str) -> None:
    assert [violation.field for violation in refused(message).violations] == [field]


def test_all_violations_are_told_at_once() -> None:
    message = generate_request(logprobs=99, sampling=wire.SamplingParams(temperature=9, top_p=9))
    fields = {violation.field for violation in refused(message).violations}
    assert fields == {"logprobs", "sampling.temperature", "sampling.top_p"}


def test_logprobs_keep_the_absent_logprob_of_the_first_prompt_token() -> None:
    first, second = convert.to_logprobs(
        [domain.TokenLogprobs(3, None, 1), domain.TokenLogprobs(4, -0.5, 2, (9, 4), (-0.25, -0.5))]
    )
    assert not first.HasField("logprob")
    assert second == wire.TokenLogprobs(
        token_id=4, logprob=-0.5, rank=2, top_token_ids=[9, 4], top_logprobs=[-0.25, -0.5]
    )


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (domain.FinishReason.STOP, wire.FINISH_REASON_STOP),
        (domain.FinishReason.LENGTH, wire.FINISH_REASON_LENGTH),
        (domain.FinishReason.ABORT, wire.FINISH_REASON_ABORT),
    ],
)
def test_finish_reasons(reason: domain.FinishReason, expected: int) -> None:
    assert convert.to_finish_reason(reason) == expected


def test_an_error_is_no_finish_reason() -> None:
    with pytest.raises(KeyError):
        convert.to_finish_reason(domain.FinishReason.ERROR)
