"""What has to be equal on a device, whatever is done for speed. Each check returns a line for people, or raises."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from benchmarks.device.answers import (
    BFLOAT16_TOLERANCE,
    FLOAT32_TOLERANCE,
    agreement,
    make_requests,
    rescoring,
    scored_difference,
)
from benchmarks.device.attention import flash_functions
from benchmarks.device.engine import EOS_TOKEN_ID, Answer, Settings, engine
from benchmarks.device.place import CheckFailedError, CheckSkippedError, Place
from engine.request import Constraint, ConstraintKind, SamplingParams, StopConditions

# Two ways to compute the same answers with these settings, and a remark.
Pair = tuple[list[Answer], list[Answer], str]


def flash_engine(place: Place) -> str:
    """The whole model: what flash generates, scored again by torch attention in one prefill."""
    flash_functions(place, head_dim=64, block_size=16)
    lines = []
    for model in (place.model, place.window_model):
        requests = make_requests(place, logprobs=0, prompt_logprobs=0)
        with engine(model, **place.half | {"attention_backend": "flash"}) as flash:
            generated = flash.run(requests)
        with engine(model, **place.half | {"attention_backend": "torch"}) as plain:
            scored = plain.run(rescoring(requests, generated))
        lines.append(f"{model.name}: {scored_difference(generated, scored, BFLOAT16_TOLERANCE)}")
    return "; ".join(lines)


def graphs_are_eager(place: Place) -> str:
    """The same padded batches from CUDA graphs and launched one by one: not a bit may differ."""
    flash_functions(place, head_dim=64, block_size=16)
    batches = [make_requests(place, count=count, logprobs=3) for count in (1, 3, 8, 21)]
    with engine(place.model, **place.half | {"attention_backend": "flash"}) as served:
        graphs = served.runner._decode_graphs
        if graphs is None:
            raise CheckSkippedError(f"no graphs are captured on {place.device.type}")
        replayed = [served.run(batch) for batch in batches]
        graphs._replays = {size: (lambda size=size: graphs._forward(size)) for size in graphs._replays}
        served.built.core.reset_prefix_cache()
        launched = [served.run(batch) for batch in batches]
    if replayed != launched:
        raise CheckFailedError("tokens or logprobs differ between graphs and kernels launched one by one")
    return f"batches of 1, 3, 8 and 21 over {place.tokens} steps each, bit for bit"


def batch_mates(place: Place) -> str:
    """Alone and among others, float32."""
    requests = make_requests(place, count=9, logprobs=1)
    with engine(place.model, **place.exact) as exact:
        together = exact.run(requests)
        exact.built.core.reset_prefix_cache()
        alone = [exact.run([request])[0] for request in requests]
    return agreement(together, alone, FLOAT32_TOLERANCE, exact=True)


def chunked_prefill(place: Place) -> str:
    """Prompts in one piece and in chunks."""
    requests = make_requests(place, count=6, logprobs=2)

    def both(settings: Settings) -> Pair:
        with engine(place.model, **settings | {"max_num_batched_tokens": 512}) as whole:
            expected = whole.run(requests)
        with engine(place.model, **settings | {"max_num_batched_tokens": 37}) as pieces:
            return expected, pieces.run(requests), ""

    return _twice(place, both)


def prefix_cache(place: Place) -> str:
    """The second run finds its prompts in the cache."""
    requests = make_requests(place, count=6, logprobs=2)

    def both(settings: Settings) -> Pair:
        with engine(place.model, **settings) as cached:
            cold, warm = cached.run(requests), cached.run(requests)
        if not all(answer.num_cached_tokens for answer in warm):
            raise CheckFailedError("the second run did not find its prompts in the prefix cache")
        return cold, warm, ""

    return _twice(place, both)


def preemption(place: Place) -> str:
    """A pool so small that sequences give up their blocks and are computed again."""
    requests = make_requests(place, count=8, logprobs=2, max_prompt=20, num_tokens=48)

    def both(settings: Settings) -> Pair:
        with engine(place.model, **settings) as roomy:
            expected = roomy.run(requests)
        with engine(place.model, **settings | {"num_blocks": 10, "max_model_len": 160}) as small:
            actual = small.run(requests)
            num_preemptions = small.built.core.load().preemptions_total
        if not num_preemptions:
            raise CheckFailedError("nothing was preempted")
        return expected, actual, f" with {num_preemptions} preemptions"

    return _twice(place, both)


def seeded_sampling(place: Place) -> str:
    """Temperature, top-k, top-p, min-p and penalties: the same seed gives the same tokens, whoever the mates are."""
    params = [
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(temperature=0.8, top_p=0.9, seed=2),
        SamplingParams(temperature=1.5, top_k=20, min_p=0.02, seed=3),
        SamplingParams(temperature=0.7, top_p=0.95, frequency_penalty=0.5, repetition_penalty=1.1, seed=4),
        SamplingParams(temperature=0.0, logit_bias={5: 2.0}, presence_penalty=0.3),
    ]
    requests = [
        replace(request, sampling=sampling)
        for request, sampling in zip(make_requests(place, count=5, logprobs=1), params, strict=True)
    ]
    with engine(place.model, **place.exact) as exact:
        together = exact.run(requests)
        exact.built.core.reset_prefix_cache()
        alone = [exact.run([request])[0] for request in requests]
    return agreement(together, alone, FLOAT32_TOLERANCE, exact=True)


def constrained_decoding(place: Place) -> str:
    """Answers of a model that knows nothing are in the language all the same."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "kind": {"enum": ["red", "green"]}},
        "required": ["name", "kind"],
        "additionalProperties": False,
    }
    constraints = [
        Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema)),
        Constraint(ConstraintKind.REGEX, "[a-f]{3}-[0-9]{4}"),
        Constraint(ConstraintKind.CHOICE, choices=("alpha", "beta")),
    ]
    requests = [
        replace(
            request,
            constraint=constraint,
            stop=StopConditions(max_tokens=400),  # white space is bounded, and a model that knows nothing likes it
            sampling=SamplingParams(temperature=temperature, seed=index),
        )
        for index, (request, constraint, temperature) in enumerate(
            zip(make_requests(place, count=6), constraints * 2, [0.0] * 3 + [1.0] * 3, strict=True)
        )
    ]
    unconstrained = make_requests(place, first=10, count=2)
    with engine(place.model, **place.half | {"max_num_batched_tokens": 64}) as served:
        answers = served.run([*requests, *unconstrained])[:6]
    if errors := [answer.error for answer in answers if answer.error]:
        raise CheckFailedError(errors[0])
    texts = [bytes(i for i in answer.token_ids if i < EOS_TOKEN_ID).decode() for answer in answers]
    for text, keeps in zip(texts, [_keeps_schema, _keeps_regex, ("alpha", "beta").__contains__] * 2, strict=True):
        if not keeps(text):
            raise CheckFailedError(f"an answer leaves its constraint: {text!r}")
    return f"schema, regex and choice kept, for example {texts[3]}"


def _keeps_schema(text: str) -> bool:
    try:
        document = json.loads(text)
    except ValueError:
        return False
    return set(document) == {"name", "kind"} and document["kind"] in ("red", "green") and len(document["name"]) <= 6


def _keeps_regex(text: str) -> bool:
    return len(text) == 8 and set(text[:3]) <= set("abcdef") and text[3] == "-" and text[4:].isdecimal()


def _twice(place: Place, both: Callable[[Settings], Pair]) -> str:
    """In float32, where tokens must be equal, and as served."""
    lines = []
    for name, settings, tolerance in (
        ("float32", place.exact, FLOAT32_TOLERANCE),
        ("as served", place.half, BFLOAT16_TOLERANCE),
    ):
        expected, actual, remark = both(settings)
        agreed = agreement(expected, actual, tolerance, exact=name == "float32")
        lines.append(f"{name}{remark}: {agreed}")
    return "; ".join(lines)
