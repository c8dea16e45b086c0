"""Requests for the checks of a device, and how their answers are compared.

Float32 on torch's attention is exact enough for equal tokens. In bfloat16 sums that are taken in another order move
logprobs a little, and where two tokens are about equally likely the greedy choice may then fall on the other: answers
are compared up to there, and the gap at that place has to be as small.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.device.engine import Answer
from benchmarks.device.place import CheckFailedError, Place
from engine.request import Request, SamplingParams, StopConditions

# Of logprobs in bfloat16, through all layers: a step of a logit of 8 is 1/32.
BFLOAT16_TOLERANCE = 0.25
FLOAT32_TOLERANCE = 2e-3


def make_requests(
    place: Place,
    *,
    first: int = 0,
    count: int = 8,
    max_prompt: int = 0,
    num_tokens: int = 0,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
) -> list[Request]:
    """Greedy requests with prompts of very different lengths."""
    longest = max_prompt or (60 if place.is_short else 300)
    requests = []
    for index in range(first, first + count):
        draw = random.Random(index)
        # At least a block and a token, so that the prefix cache can have something.
        length = draw.choice([17, 18, longest, draw.randint(17, longest), draw.randint(17, longest)])
        requests.append(
            Request(
                f"{index}",
                tuple(draw.randrange(256) for _ in range(length)),
                sampling=SamplingParams(temperature=0.0),
                stop=StopConditions(max_tokens=num_tokens or place.tokens, ignore_eos=True),
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs,
            )
        )
    return requests


def rescoring(requests: Sequence[Request], generated: Sequence[Answer]) -> list[Request]:
    """Requests whose prompts are the earlier prompts and answers together, to be scored."""
    return [
        replace(
            request,
            prompt_token_ids=(*request.prompt_token_ids, *answer.token_ids),
            prompt_logprobs=0,
            stop=StopConditions(max_tokens=1, ignore_eos=True),
        )
        for request, answer in zip(requests, generated, strict=True)
    ]


def scored_difference(generated: Sequence[Answer], scored: Sequence[Answer], tolerance: float) -> str:
    """Logprobs while generating, and of the prompts, against those of the same tokens scored as one prompt."""
    worst, total, count = 0.0, 0.0, 0
    for answer, again in zip(generated, scored, strict=True):
        mine = [*answer.prompt_logprobs, *answer.logprobs]
        for a, b in zip(mine[1:], again.prompt_logprobs[1:], strict=True):
            assert a.logprob is not None
            assert b.logprob is not None
            difference = abs(a.logprob - b.logprob)
            worst, total, count = max(worst, difference), total + difference, count + 1
    text = f"{count} logprobs, largest difference {worst:.4f}, mean {total / count:.5f}"
    if not worst <= tolerance or not total / count <= tolerance / 5:
        raise CheckFailedError(f"{text}; {tolerance} and {tolerance / 5:g} are allowed")
    return text


def agreement(expected: Sequence[Answer], actual: Sequence[Answer], tolerance: float, *, exact: bool) -> str:
    """Compares answers token by token; with `exact` none may differ, otherwise only where two are about equal."""
    worst, num_tokens, num_ties = 0.0, 0, 0
    for index, (mine, theirs) in enumerate(zip(expected, actual, strict=True)):
        if mine.error or theirs.error or len(mine.token_ids) != len(theirs.token_ids):
            raise CheckFailedError(f"request {index}: {mine.error or theirs.error or 'another number of tokens'}")
        for position, (a, b) in enumerate(zip(mine.logprobs, theirs.logprobs, strict=True)):
            assert a.logprob is not None
            assert b.logprob is not None
            if a.token_id != b.token_id:
                gap = _gap(a.logprob, dict(zip(a.top_token_ids, a.top_logprobs, strict=True)).get(b.token_id))
                if exact or not gap <= tolerance:
                    raise CheckFailedError(f"request {index}: token {position} is another one, {gap:.4f} less likely")
                num_ties += 1
                break
            worst, num_tokens = max(worst, abs(a.logprob - b.logprob)), num_tokens + 1
    text = f"{num_tokens} tokens, logprobs within {worst:.5f}"
    if not worst <= tolerance:
        raise CheckFailedError(f"{text}; {tolerance} is allowed")
    return text + (f", {num_ties} near-ties fell the other way" if num_ties else "")


def _gap(chosen: float, other: float | None) -> float:
    return math.inf if other is None else chosen - other
